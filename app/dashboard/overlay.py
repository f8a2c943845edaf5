"""Jobs compared, as charts: their curves over each other with bands of noise, and their scores over ε."""

from __future__ import annotations

from dataclasses import dataclass

from app.dashboard.chart import MOST_POINTS, SERIES, Axis, Chart, Line, Point, around, bar, drawable
from app.dashboard.curve import points_of, steps_axis, values_axis
from app.dashboard.numbers import up, with_noise
from app.jobs.schemas import JobView, MetricView
from core.contracts.metrics import METRICS, rule_of


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
    def said(self) -> str:
        """Its number and title: titles may be the same."""
        return f"{self.number + 1}: {self.title}"

    @property
    def epsilon(self) -> float | None:
        """The ε that it is planned for; None on public data."""
        return self.job.quote.epsilon.value if self.job.quote.epsilon else None

    @property
    def currency(self) -> tuple[str, float, str]:
        """Jobs compare by ε if this is the same: the data set, δ and the unit."""
        if self.job.quote.epsilon is None:
            raise ValueError("a public job has no ε")
        return self.job.dataset, self.job.quote.epsilon.delta, self.job.quote.epsilon.unit


@dataclass(frozen=True)
class Series:
    """One job's released values of a metric, by step."""

    of: Compared
    metrics: list[MetricView]


@dataclass(frozen=True)
class Overlay:
    """One metric of several jobs."""

    name: str
    series: list[Series]

    @property
    def chart(self) -> Chart:
        """The values by step."""
        every = [metric for each in self.series for metric in each.metrics]
        limit = MOST_POINTS // len(self.series)
        lines = [
            Line(
                each.of.said,
                points_of(each.metrics, limit),
                colour=SERIES[each.of.number],
                spread="band",
                mark=str(each.of.number + 1),
            )
            for each in self.series
        ]
        last = max(metric.step for metric in every)
        title = f"{self.name} of {len(lines)} jobs by training step"
        return Chart(f"overlay-{self.name}", title, steps_axis(last), values_axis(self.name, every), lines)


def overlays(jobs: list[Compared]) -> list[Overlay]:
    """A drawing for each metric that some of the jobs released, by name."""
    by_name: dict[str, dict[int, list[MetricView]]] = {}
    for number, job in enumerate(jobs):
        for metric in drawable(job.metrics):
            by_name.setdefault(metric.name, {}).setdefault(number, []).append(metric)
    return [
        Overlay(name, [Series(jobs[at], sorted(group, key=lambda metric: metric.step)) for at, group in by_job.items()])
        for name, by_job in sorted(by_name.items())
    ]


@dataclass(frozen=True)
class Paid:
    """A job's last score at the ε that it is planned for."""

    of: Compared
    epsilon: float
    metric: MetricView

    @property
    def point(self) -> Point:
        """Its place on the chart."""
        text = with_noise(self.metric.value, self.metric.std)
        return Point(self.epsilon, self.metric.value, f"ε {up(self.epsilon)}", text, *bar(self.metric))


def tradeoff(overlay: Overlay) -> Chart | None:
    """A score over ε, with its Pareto fronts; None if fewer than two of the jobs have both."""
    paid = [Paid(each.of, each.of.epsilon, each.metrics[-1]) for each in overlay.series if each.of.epsilon is not None]
    if len(paid) < 2 or overlay.name not in METRICS:
        return None
    lines = [
        Line(
            each.of.said,
            [each.point],
            colour=SERIES[each.of.number],
            shape="dots",
            spread="bars",
            mark=str(each.of.number + 1),
        )
        for each in paid
    ]
    fronts = [
        Line("best at its price", [each.point for each in front], "muted", dashed=True, quiet=True)
        for front in pareto_fronts(paid, larger_is_better=rule_of(overlay.name).larger_is_better)
    ]
    ends = [end for each in paid for end in bar(each.metric)]
    return Chart(
        f"tradeoff-{overlay.name}",
        f"last {overlay.name} of {len(paid)} jobs over their ε",
        Axis("ε of the job, as planned", 0.0, max(each.epsilon for each in paid) * 1.1),
        Axis(overlay.name, *around(ends)),
        fronts + lines,
    )


def pareto_fronts(paid: list[Paid], *, larger_is_better: bool) -> list[list[Paid]]:
    """The jobs that no other job beats in both score and ε, by ε: a front for each currency with two such jobs."""
    groups: dict[tuple[str, float, str], list[Paid]] = {}
    for point in paid:
        groups.setdefault(point.of.currency, []).append(point)
    sign = 1.0 if larger_is_better else -1.0
    fronts = []
    for group in groups.values():
        front: list[Paid] = []
        for point in sorted(group, key=lambda one: (one.epsilon, -sign * one.metric.value)):
            if not front or sign * point.metric.value > sign * front[-1].metric.value:
                front.append(point)
        fronts.append(front)
    return [front for front in fronts if len(front) > 1]
