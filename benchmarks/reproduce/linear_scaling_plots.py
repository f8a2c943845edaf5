"""Plots of the linear scaling experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import matplotlib as mpl
import numpy as np

from benchmarks.reproduce.linear_scaling_grid import Curve
from benchmarks.reproduce.linear_scaling_runs import NAMES, mean, mu
from benchmarks.reproduce.linear_scaling_text import KINDS

mpl.use("Agg")
import matplotlib.pyplot as plt

COLOURS = {"oracle": "#444444", "ours": "#0072b2", "longest": "#009e73", "random": "#d55e00"}


class Compared(Protocol):
    name: str
    oracle: dict[float, Any]

    def accuracies(self, kind: str, epsilon: float) -> list[float]: ...


def plot_epsilons(outcomes: list[Any], to: Path) -> None:
    """Accuracy over ε: oracle, ours (which pays for its search), random. Bars: standard deviation over seeds."""
    figure, axes = plt.subplots(1, len(outcomes), figsize=(4.2 * len(outcomes), 3.4), squeeze=False)
    for axis, each in zip(axes[0], outcomes, strict=True):
        for kind, colour in COLOURS.items():
            epsilons = sorted(getattr(each, kind))
            values = [each.accuracies(kind, epsilon) for epsilon in epsilons]
            means, spreads = [mean(v) for v in values], [float(np.std(v, ddof=1)) for v in values]
            axis.errorbar(epsilons, means, yerr=spreads, label=KINDS[kind], color=colour, marker="o", ms=4, capsize=2)
        axis.set(title=NAMES[each.name], xlabel="total ε (δ = 1e-5)", xscale="log")
        epsilons = sorted(each.ours)
        axis.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        axis.minorticks_off()
    axes[0][0].set_ylabel("test accuracy")
    axes[0][0].legend(loc="lower right")
    _save(figure, to)


def plot_law(laws: dict[str, dict[float, Curve]], to: Path) -> None:
    """Above: accuracy over r at each ε. Below: the best r over μ, and the line through the first two."""
    figure, axes = plt.subplots(2, len(laws), figsize=(4.2 * len(laws), 6.4), squeeze=False)
    for column, (name, found) in enumerate(laws.items()):
        above, below = axes[0][column], axes[1][column]
        for shade, (epsilon, curve) in zip(np.linspace(0.25, 0.9, len(found)), found.items(), strict=True):
            r, accuracy = zip(*curve.points, strict=True)
            colour = plt.get_cmap("viridis")(shade)
            above.plot(r, accuracy, marker=".", color=colour, label=f"ε = {epsilon:g}")
            above.axvline(curve.best_r, color=colour, lw=0.8, ls=":")
        above.set(title=NAMES[name], xscale="log", xlabel="r = ηT")
        x, best = [mu(epsilon) for epsilon in found], [curve.best_r for curve in found.values()]
        slope = (best[1] - best[0]) / (x[1] - x[0])
        at = np.array([0.0, 1.08 * max(x)])
        below.plot(at, best[0] + slope * (at - x[0]), color="#999999", label="line through the first two")
        below.plot(x, best, "o", color=COLOURS["ours"], label="best r by grid")
        below.set(xlabel="μ of the run", ylim=(0.0, 1.5 * max(best)))
    axes[0][0].set_ylabel("test accuracy")
    axes[1][0].set_ylabel("r")
    axes[0][0].legend(loc="lower left")
    axes[1][0].legend()
    _save(figure, to)


def _save(figure: Any, to: Path) -> None:
    figure.tight_layout()
    to.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(to, dpi=110)
    plt.close(figure)
