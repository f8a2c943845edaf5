"""A chart: the numbers that the browser draws with uPlot, and that the page also shows as a table.

The server decides what is drawn: thinned points, ranges, and each point's words. The script draws and reads out.

error bar, band = value ± 1.96 std        95 % of the added noise; nothing else is in it
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, TypeVar

from app.jobs.schemas import MetricView

MOST_POINTS = 2000  # in one chart
MOST_ROWS = 500  # in its table
NORMAL_95 = 1.96
# Colours of the style sheet; s0 … s7 tell jobs or keys apart.
Colour = Literal["accent", "spent", "held", "cap", "muted", "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7"]
SERIES: tuple[Colour, ...] = ("s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7")
T = TypeVar("T")


@dataclass(frozen=True)
class Point:
    """A number of a chart.

    Attributes:
        low, high: the ends of its error bar.
        at, value: x and y in words.
    """

    x: float
    y: float
    at: str
    value: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Line:
    """Points that belong together.

    Attributes:
        shape: joined by straight lines, by steps, or not joined.
        spread: how error bars are drawn.
        mark: a text beside the last point.
        hollow: the dots are rings.
        quiet: drawn, but neither read out nor in the table.
    """

    name: str
    points: list[Point]
    colour: Colour = "accent"
    shape: Literal["line", "steps", "dots"] = "line"
    spread: Literal["band", "bars", "none"] = "none"
    filled: bool = False
    dashed: bool = False
    hollow: bool = False
    quiet: bool = False
    mark: str = ""


@dataclass(frozen=True)
class Axis:
    """An axis.

    Attributes:
        scale: `time` is in seconds since 1970, shown in UTC; `names` has a name at 0, 1, 2, …; `hidden` has no ticks.
        unit: stands behind each tick.
    """

    label: str
    low: float
    high: float
    scale: Literal["linear", "log", "time", "names", "hidden"] = "linear"
    unit: str = ""
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Chart:
    """A chart with its axes. `name` is unique on its page."""

    name: str
    title: str
    x: Axis
    y: Axis
    lines: list[Line]

    @property
    def document(self) -> dict[str, object]:
        """The chart for the script. Points are lists: x, y, low, high, their words."""
        return {
            "x": asdict(self.x),
            "y": asdict(self.y),
            "lines": [
                {name: value for name, value in vars(line).items() if name != "points"}
                | {"points": [[each.x, each.y, each.low, each.high, each.at, each.value] for each in line.points]}
                for line in self.lines
            ],
        }

    @property
    def legend(self) -> list[Line]:
        """One line of each name, where there are several."""
        lines = list({line.name: line for line in self.lines}.values())
        return lines if len(lines) > 1 else []

    @property
    def rows(self) -> list[tuple[str, Point]]:
        """The table: each point with its line's name, the last ones first."""
        points = [(line.name, point) for line in self.lines if not line.quiet for point in line.points]
        return sorted(points, key=lambda row: row[1].x, reverse=True)[:MOST_ROWS]

    @property
    def left_out(self) -> int:
        """How many drawn points the table leaves out."""
        return max(0, sum(len(line.points) for line in self.lines if not line.quiet) - MOST_ROWS)


def thinned(items: Sequence[T], limit: int) -> list[T]:
    """At most `limit` of the items, evenly spaced, with the first and the last."""
    if len(items) <= limit:
        return list(items)
    if limit < 2:
        return [items[-1]]
    return [items[round(k * (len(items) - 1) / (limit - 1))] for k in range(limit)]


def around(ends: Iterable[float]) -> tuple[float, float]:
    """A range that holds these numbers, with a margin; of a fixed height if they are almost equal."""
    values = list(ends)
    low, high = min(values), max(values)
    pad = 0.08 * (high - low) if high - low > 1e-6 * max(abs(high), 1.0) else max(abs(high) * 0.05, 0.01)
    return low - pad, high + pad


def decades(values: Iterable[float]) -> tuple[float, float]:
    """A range of positive numbers for a logarithmic axis, with a margin."""
    logs = [math.log10(each) for each in values]
    low, high = min(logs), max(logs)
    pad = max(0.08 * (high - low), 0.15)
    return 10.0 ** (low - pad), 10.0 ** (high + pad)


def bar(metric: MetricView) -> tuple[float, float]:
    """The ends of a released number's error bar."""
    return metric.value - NORMAL_95 * metric.std, metric.value + NORMAL_95 * metric.std


def drawable(metrics: Iterable[MetricView]) -> Iterator[MetricView]:
    """The metrics that have a place on a plane."""
    return (each for each in metrics if math.isfinite(each.value) and math.isfinite(each.std))
