"""A job's released numbers by training step, a chart for each metric."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from app.dashboard.chart import MOST_POINTS, Axis, Chart, Line, Point, around, bar, drawable, thinned
from app.dashboard.numbers import integer, with_noise
from app.jobs.schemas import MetricView

# Scores that lie in [0, 1]; only noise leaves it.
FRACTIONS = (
    "accuracy",
    "auc",
    "macro_f1",
    "average_precision",
    "balanced_accuracy",
    "recall",
    "precision",
    "hit",
    "ndcg",
)
LABELS = {"accuracy": "accuracy (fraction correct)", "loss": "loss (mean)"}


@dataclass(frozen=True)
class Curve:
    """One metric's chart, and how its numbers were released.

    Attributes:
        name: the metric's, or that of a number that comes with it, such as `accuracy:rare`.
    """

    name: str
    on: str
    released_by: str
    chart: Chart


def curves(metrics: Iterable[MetricView], steps: int) -> list[Curve]:
    """A curve for each metric, over steps 0 … T."""
    by_name: dict[str, list[MetricView]] = {}
    for metric in drawable(metrics):
        by_name.setdefault(metric.name, []).append(metric)
    return [
        _curve(name, sorted(metrics_of_name, key=lambda metric: metric.step), steps)
        for name, metrics_of_name in by_name.items()
    ]


def points_of(metrics: list[MetricView], limit: int) -> list[Point]:
    """Released numbers by step, each with its error bar."""
    return [
        Point(each.step, each.value, f"step {integer(each.step)}", with_noise(each.value, each.std), *ends)
        for each in thinned(metrics, limit)
        for ends in [bar(each) if each.std else (None, None)]
    ]


def steps_axis(last: int) -> Axis:
    """Steps 0 … T."""
    return Axis("training step", 0, max(last, 1) * 1.02)


def values_axis(name: str, metrics: Iterable[MetricView]) -> Axis:
    """The values of a metric, with all error bars; those of a fraction are cut at 0 and 1."""
    numbers = list(metrics)
    low, high = around(end for each in numbers for end in bar(each))
    if re.split("[:@]", name)[0] in FRACTIONS:  # a band is cut at 0 and 1; a released number never
        low = max(low, min(0.0, *(each.value for each in numbers)))
        high = min(high, max(1.0, *(each.value for each in numbers)))
    return Axis(LABELS.get(name, name), low, high)


def _curve(name: str, metrics: list[MetricView], steps: int) -> Curve:
    line = Line(name, points_of(metrics, MOST_POINTS), spread="band")
    last = max(steps, metrics[-1].step)
    chart = Chart(f"curve-{name}", f"{name} by training step", steps_axis(last), values_axis(name, metrics), [line])
    return Curve(name=name, on=metrics[-1].on, released_by=metrics[-1].released_by, chart=chart)
