"""Drawings of released numbers with matplotlib, if it is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from scrimp.errors import MissingPackage, ScrimpError

if TYPE_CHECKING:
    from scrimp.models import Account, MetricPoint, Trial

PARTS = (("spent", "#8a3ffc"), ("held", "#f1c21b"), ("remaining", "#42be65"))


def _axes() -> Any:
    try:
        from matplotlib import pyplot as plt
    except ImportError:
        raise MissingPackage("plot()", "matplotlib", "scrimp-client[notebook]") from None
    return plt.subplots()[1]


def metrics(points: Sequence[MetricPoint], title: str) -> Any:
    """Every score by step, with a band of one std of its noise; returns the axes.

    Raises:
        ScrimpError: there are no points.
    """
    if not points:
        raise ScrimpError("this job has released no scores to draw")
    axes = _axes()
    for name in dict.fromkeys(point.name for point in points):
        mine = [point for point in points if point.name == name]
        steps, values = [point.step for point in mine], [point.value for point in mine]
        (line,) = axes.plot(steps, values, marker="o", label=f"{name} ({mine[0].on})")
        below, above = [p.value - p.std for p in mine], [p.value + p.std for p in mine]
        axes.fill_between(steps, below, above, color=line.get_color(), alpha=0.2)
    axes.set(xlabel="step", title=title)
    axes.legend()
    return axes


def trials(found: Sequence[Trial]) -> Any:
    """Each scored trial's noisy score by its learning rate; returns the axes.

    Raises:
        ScrimpError: no trial has a score.
    """
    scored = [(each, each.score) for each in found if each.score]
    if not scored:
        raise ScrimpError("no trial of this study has a score to draw")
    axes = _axes()
    rates = [each.learning_rate for each, _ in scored]
    values, stds = ([score[name] for _, score in scored] for name in ("value", "std"))
    axes.errorbar(rates, values, yerr=stds, fmt="o", capsize=3)
    axes.set(xscale="log", xlabel="learning rate", ylabel="score ± std of its noise")
    return axes


def accounts(found: dict[str, Account]) -> Any:
    """Each account's budget as a bar: spent, held, left; returns the axes."""
    axes = _axes()
    for place, (name, account) in enumerate(found.items()):
        left = 0.0
        for part, colour in PARTS:
            share = getattr(account, part) / max(account.budget, 1)
            axes.barh(name, share, left=left, color=colour, label=part if place == 0 else None)
            left += share
    axes.set(xlabel="share of the budget", xlim=(0, 1))
    axes.legend()
    return axes
