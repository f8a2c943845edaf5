"""Jobs compared, as drawings: their curves over each other with bands of noise, and their scores over ε.

band = value ± 1.96 std         95 % of the added noise; nothing else is in it
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from app.dashboard.curve import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Plane, Point, Tick, bar, ticks
from app.jobs.schemas import JobView, MetricView


@dataclass(frozen=True)
class Compared:
    """A job among others. `number` chooses its colour and its mark."""

    number: int
    job: JobView
    dataset: str
    metrics: list[MetricView]

    @property
    def title(self) -> str:
        """Its name, or its id."""
        return self.job.name or self.job.id

    @property
    def epsilon(self) -> float | None:
        """The ε that it is planned for; None on public data."""
        return self.job.quote.epsilon.value if self.job.quote.epsilon else None


@dataclass(frozen=True)
class Series:
    """One job's released values of a metric."""

    of: Compared
    points: list[Point]

    @property
    def line(self) -> str:
        """The values, as an SVG polyline."""
        return " ".join(f"{each.x:.1f},{each.y:.1f}" for each in self.points)

    @property
    def band(self) -> str:
        """The error bars' ends, there and back, as an SVG polygon."""
        high = [f"{each.x:.1f},{each.high:.1f}" for each in self.points]
        return " ".join([*high, *(f"{each.x:.1f},{each.low:.1f}" for each in reversed(self.points))])


class Frame:
    """The viewBox of a drawing, and the plane within it."""

    left, right, top, bottom = LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM
    width, height = WIDTH, HEIGHT


@dataclass(frozen=True)
class Overlay(Frame):
    """One metric of several jobs, by step."""

    name: str
    series: list[Series]
    x_ticks: list[Tick]
    y_ticks: list[Tick]


def overlays(jobs: list[Compared]) -> list[Overlay]:
    """A drawing for each metric that some of the jobs released, by name."""
    found: dict[str, dict[int, list[MetricView]]] = {}
    for number, job in enumerate(jobs):
        for metric in job.metrics:
            if math.isfinite(metric.value) and math.isfinite(metric.std):
                found.setdefault(metric.name, {}).setdefault(number, []).append(metric)
    return [_overlay(name, jobs, by_job) for name, by_job in sorted(found.items())]


def _overlay(name: str, jobs: list[Compared], by_job: dict[int, list[MetricView]]) -> Overlay:
    metrics = [each for group in by_job.values() for each in group]
    plane = Plane.around(map(bar, metrics), max(each.step for each in metrics))
    series = [
        Series(jobs[number], plane.points(sorted(group, key=lambda each: each.step)))
        for number, group in by_job.items()
    ]
    return Overlay(name, series, plane.x_ticks, plane.y_ticks)


@dataclass(frozen=True)
class Paid:
    """A job's last score at the ε that it is planned for."""

    of: Compared
    point: Point


@dataclass(frozen=True)
class Tradeoff(Frame):
    """One metric's last value over ε, a point for each private job."""

    name: str
    paid: list[Paid]
    x_ticks: list[Tick]
    y_ticks: list[Tick]


def tradeoff(overlay: Overlay) -> Tradeoff | None:
    """A metric's scores over ε; None if fewer than two of the jobs have both."""
    last = [(each.of, each.points[-1].metric, each.of.epsilon) for each in overlay.series]
    private = [(of, metric, epsilon) for of, metric, epsilon in last if epsilon is not None]
    if len(private) < 2:
        return None
    most = max(epsilon for _, _, epsilon in private) * 1.1
    plane = Plane.around([bar(metric) for _, metric, _ in private], 1)

    def x(epsilon: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * epsilon / most

    paid = []
    for of, metric, epsilon in private:
        low, high = bar(metric)
        paid.append(Paid(of, Point(x(epsilon), plane.y(metric.value), plane.y(low), plane.y(high), metric)))
    x_ticks = [Tick(x(each), f"{each:g}") for each in ticks(0.0, most, 6) if each <= most]
    return Tradeoff(overlay.name, paid, x_ticks, plane.y_ticks)
