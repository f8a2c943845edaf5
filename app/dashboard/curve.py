"""Released numbers as a drawing: positions of points, error bars and ticks. The template turns it into SVG.

error bar = value ± 1.96 std        95 % of the added noise; nothing else is in it
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from app.jobs.schemas import MetricView

WIDTH, HEIGHT = 640, 280
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 14, 46
NORMAL_95 = 1.96


@dataclass(frozen=True)
class Tick:
    """A mark on an axis: its position and its label."""

    at: float
    label: str


@dataclass(frozen=True)
class Point:
    """A released number at its position, with the ends of its error bar."""

    x: float
    y: float
    low: float
    high: float
    metric: MetricView


@dataclass(frozen=True)
class Curve:
    """One metric's drawing, in a viewBox of WIDTH × HEIGHT."""

    name: str
    on: str
    released_by: str
    points: list[Point]
    x_ticks: list[Tick]
    y_ticks: list[Tick]

    left, right, top, bottom = LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM
    width, height = WIDTH, HEIGHT

    @property
    def line(self) -> str:
        """The points as an SVG polyline."""
        return " ".join(f"{point.x:.1f},{point.y:.1f}" for point in self.points)


def curves(metrics: Iterable[MetricView], steps: int) -> list[Curve]:
    """A curve for each metric, over steps 0 … T."""
    by_name: dict[str, list[MetricView]] = {}
    for metric in metrics:
        if math.isfinite(metric.value) and math.isfinite(metric.std):
            by_name.setdefault(metric.name, []).append(metric)
    return [_curve(name, sorted(found, key=lambda each: each.step), steps) for name, found in by_name.items()]


def ticks(low: float, high: float, most: int) -> list[float]:
    """At most `most` + 1 round numbers that cover [low, high], evenly spaced by 1, 2 or 5 times a power of ten."""
    span = (high - low) / most
    power = 10.0 ** math.floor(math.log10(span))
    width = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= span * (1 - 1e-9))
    first, last = math.floor(low / width + 1e-9), math.ceil(high / width - 1e-9)
    return [round(each * width, 12) for each in range(first, last + 1)]


@dataclass(frozen=True)
class Plane:
    """The axes of a drawing: x over steps 0 … T, y over all error bars.

    Attributes:
        steps: T.
        values: the ticks of y.
    """

    steps: int
    values: list[float]

    @classmethod
    def around(cls, ends: Iterable[tuple[float, float]], steps: int) -> Plane:
        """The plane that holds these (low, high) error bars."""
        lows, highs = zip(*ends, strict=True)
        low, high = min(lows), max(highs)
        # A margin above and below; a fixed height if the numbers are almost equal.
        pad = 0.08 * (high - low) if high - low > 1e-6 * max(abs(high), 1.0) else max(abs(high) * 0.05, 0.01)
        return cls(max(steps, 1), ticks(low - pad, high + pad, 5))

    def x(self, step: float) -> float:
        """The position of a step."""
        return LEFT + (WIDTH - LEFT - RIGHT) * step / self.steps

    def y(self, value: float) -> float:
        """The position of a value."""
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - self.values[0]) / (self.values[-1] - self.values[0])

    def points(self, metrics: list[MetricView]) -> list[Point]:
        """Released numbers, each with its error bar."""
        return [
            Point(self.x(each.step), self.y(each.value), self.y(low), self.y(high), each)
            for each, (low, high) in ((each, bar(each)) for each in metrics)
        ]

    @property
    def x_ticks(self) -> list[Tick]:
        """Whole steps."""
        values = [each for each in ticks(0, self.steps, 8) if each <= self.steps and each == int(each)]
        return [Tick(self.x(each), f"{each:g}" if each < 1e4 else f"{each / 1000:g}k") for each in values]

    @property
    def y_ticks(self) -> list[Tick]:
        """Values with the decimals that tell them apart."""
        decimals = max(0, -math.floor(math.log10(self.values[1] - self.values[0]) + 1e-9))
        return [Tick(self.y(each), f"{each:.{decimals}f}") for each in self.values]


def bar(metric: MetricView) -> tuple[float, float]:
    """The ends of a released number's error bar."""
    return metric.value - NORMAL_95 * metric.std, metric.value + NORMAL_95 * metric.std


def _curve(name: str, metrics: list[MetricView], steps: int) -> Curve:
    plane = Plane.around(map(bar, metrics), steps)
    return Curve(
        name=name,
        on=metrics[-1].on,
        released_by=metrics[-1].released_by,
        points=plane.points(metrics),
        x_ticks=plane.x_ticks,
        y_ticks=plane.y_ticks,
    )
