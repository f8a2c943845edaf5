"""A study as charts: scores by trial and over η and T, all settings side by side, and the line that leads to r*."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.dashboard.chart import MOST_POINTS, NORMAL_95, SERIES, Axis, Chart, Line, Point, around, decades, thinned
from app.dashboard.numbers import significant, with_noise
from app.db.models import Job
from app.jobs.trials import FitView, TrialList, TrialView, trials
from core.contracts.metrics import METRICS, rule_of

LINE_POINTS = 60
MOST_LINES = 100  # in the chart of all settings; the best ones


@dataclass(frozen=True)
class StudyPart:
    """A study on its job's page: its trials, the best score first, and their charts."""

    trials: TrialList
    ranked: list[TrialView]
    charts: StudyCharts


def study_part(session: Session, job: Job) -> StudyPart:
    """Gathers a study's trials."""
    trial_list = trials(session, job)
    return StudyPart(trial_list, ranked(trial_list), study_charts(trial_list))


def ranked(trial_list: TrialList) -> list[TrialView]:
    """The trials, the best score first; those without a score last, by number."""
    sign = -1.0 if larger_is_better(trial_list) else 1.0
    return sorted(trial_list.items, key=lambda trial: (trial.score is None, sign * _value(trial), trial.number))


def larger_is_better(trial_list: TrialList) -> bool:
    """How the study compares its trials."""
    name = next((each.score.name for each in trial_list.items if each.score), None)
    return rule_of(name).larger_is_better if name in METRICS else True  # of places, a share


@dataclass(frozen=True)
class StudyCharts:
    """A study's charts; a list is empty, and `scaling` None, where there is nothing to draw yet."""

    scores: list[Chart]
    all_settings: Chart | None
    scaling: Chart | None


def study_charts(trial_list: TrialList) -> StudyCharts:
    """The charts of a study, from the scores that were released so far."""
    scored = thinned([each for each in trial_list.items if each.score and math.isfinite(each.score.value)], MOST_POINTS)
    charts = []
    if scored:
        by_number = Axis("trial", -0.5, max(each.number for each in scored) + 0.5)
        charts.append(_slice("number", "by trial", by_number, scored, lambda trial: trial.number))
        for name, label, setting_of in SLICES:
            values = [setting_of(each) for each in scored]
            if min(values) > 0 and max(values) > min(values):
                axis = Axis(label, *decades(values), scale="log")
                charts.append(_slice(name, f"over {label}", axis, scored, setting_of))
    return StudyCharts(charts, _all_settings(trial_list), _scaling(trial_list))


SLICES: tuple[tuple[str, str, Callable[[TrialView], float]], ...] = (
    ("rate", "learning rate η", lambda trial: trial.learning_rate),
    ("steps", "steps T", lambda trial: float(trial.steps)),
)


def _value(trial: TrialView) -> float:
    return trial.score.value if trial.score else 0.0


def _slice(
    name: str, title: str, axis: Axis, scored: list[TrialView], setting_of: Callable[[TrialView], float]
) -> Chart:
    """The scores of all trials over one number of theirs; the delivered trial in its own colour."""
    lines = []
    for is_chosen in (False, True):
        points = [_scored(each, setting_of(each)) for each in scored if each.chosen == is_chosen]
        if points:
            caption, colour = ("delivered trial", SERIES[1]) if is_chosen else ("trials", SERIES[0])
            lines.append(Line(caption, sorted(points, key=lambda point: point.x), colour, "dots", "bars"))
    score = scored[0].score.name if scored[0].score else "score"
    ends = [end for line in lines for point in line.points for end in (point.low, point.high) if end is not None]
    return Chart(f"study-{name}", f"{score} {title}", axis, Axis(score, *around(ends)), lines)


def _scored(trial: TrialView, x: float) -> Point:
    std = trial.score.std if trial.score else 0.0
    low, high = _value(trial) - NORMAL_95 * std, _value(trial) + NORMAL_95 * std
    return Point(x, _value(trial), said(trial), with_noise(_value(trial), std), low, high)


def said(trial: TrialView) -> str:
    """A trial in words."""
    return f"trial {trial.number}, η {significant(trial.learning_rate, 3)}, T {trial.steps}"


def _all_settings(trial_list: TrialList) -> Chart | None:
    """Parallel coordinates: a line for each scored trial through its η, T, r and score; None for fewer than two."""
    best = [each for each in ranked(trial_list) if each.score and math.isfinite(each.score.value)][:MOST_LINES]
    if len(best) < 2:
        return None
    axes: list[tuple[str, list[float], bool]] = [
        ("η", [each.learning_rate for each in best], True),
        ("T", [float(each.steps) for each in best], True),
    ]
    if all(each.max_grad_norm is not None for each in best):
        axes.append(("C", [each.max_grad_norm or 1.0 for each in best], True))
    axes.append(("r", [each.r for each in best], True))
    axes.append((best[0].score.name if best[0].score else "score", [_value(each) for each in best], False))
    names = [f"{name} {significant(min(values), 3)} … {significant(max(values), 3)}" for name, values, _ in axes]
    lines = []
    for at in reversed(range(len(best))):  # the best one is drawn last, above the others
        points = [
            Point(float(place), _height(values, at, log=log), said(best[at]), f"{name} {significant(values[at], 4)}")
            for place, (name, values, log) in enumerate(axes)
        ]
        rank = "best" if at == 0 else "best third" if at < -(-len(best) // 3) else "others"
        lines.append(Line(rank, points, {"best": SERIES[1], "best third": SERIES[0]}.get(rank, "muted")))
    x = Axis("", -0.3, len(axes) - 0.7, "names", names=names)
    return Chart("study-all", "every scored trial through its settings", x, Axis("", -0.05, 1.05, "hidden"), lines)


def _height(values: list[float], at: int, *, log: bool) -> float:
    """A value's place between the smallest and the largest, 0 … 1."""
    placed = [math.log(each) for each in values] if log and min(values) > 0 else values
    low, high = min(placed), max(placed)
    return (placed[at] - low) / (high - low) if high > low else 0.5


def _scaling(trial_list: TrialList) -> Chart | None:
    """r over the privacy of a trial, with the line and r*; None for other strategies, and until r* is known."""
    fit = trial_list.study.fit if trial_list.study else None
    if fit is None or not trial_list.items:
        return None
    unit = "μ" if fit.fit_in == "mu" else "ε"
    best = {level.best for level in fit.levels}
    pilots = [(_place(each, fit), each) for each in trial_list.items if each.role != "final"]
    low, high = decades([each.r for each in trial_list.items] + [fit.r_star])
    ends = [fit.at_final * k / LINE_POINTS for k in range(1, LINE_POINTS + 1)]
    curve = [(at, sum(c * at**k for k, c in enumerate(fit.coefficients))) for at in ends]
    star = Point(fit.at_final, fit.r_star, "the final trial", f"r* = {significant(fit.r_star, 4)}")

    def dots(is_chosen: bool) -> list[Point]:
        return [
            Point(x, each.r, said(each), f"r {significant(each.r, 4)}")
            for x, each in pilots
            if (each.number in best) == is_chosen
        ]

    highest = max([x for x, _ in pilots] + [fit.at_final]) * 1.08
    lines = [
        Line("line", [Point(x, r, "", "") for x, r in curve if low <= r <= high], "accent", dashed=True, quiet=True),
        Line("other trials", dots(False), "accent", "dots", hollow=True),
        Line("best of its level", dots(True), "accent", "dots"),
        Line("r*", [star], SERIES[1], "dots", mark="r*"),
    ]
    title = f"total step size r of each trial over its {unit}, and the line to r*"
    return Chart("study-scaling", title, Axis(f"{unit} of a trial", 0.0, highest), Axis("r", low, high, "log"), lines)


def _place(trial: TrialView, fit: FitView) -> float:
    """The position of a trial: at its level, or at the final trial's."""
    return fit.at_final if trial.level is None else fit.levels[trial.level].at
