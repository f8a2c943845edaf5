"""A study as a drawing: r of each trial over its privacy, and the line that leads to the final trial."""

from __future__ import annotations

import math
from dataclasses import dataclass

from app.dashboard.curve import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Tick, ticks
from app.jobs.trials import FitView, TrialList, TrialView

LINE_POINTS = 60


@dataclass(frozen=True)
class Dot:
    """A trial. `best`: the trial of its level whose r the line uses; or the final trial."""

    x: float
    y: float
    best: bool
    trial: TrialView


@dataclass(frozen=True)
class ScalingPicture:
    """r over μ (or ε), r in powers of ten, in a viewBox of WIDTH × HEIGHT. `line`: the fit, as an SVG polyline."""

    fit_in: str
    dots: list[Dot]
    line: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]

    left, right, top, bottom = LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM
    width, height = WIDTH, HEIGHT


def scaling_picture(found: TrialList) -> ScalingPicture | None:
    """The picture of linear scaling; None for other strategies, and until r* is known."""
    fit = found.study.fit if found.study else None
    placed = [(_place(each, fit), each) for each in found.items] if fit else []
    if fit is None or not placed:
        return None
    most = max(x for x, _ in placed) * 1.05
    lows = [each.r for _, each in placed] + [fit.r_star]
    decades = range(math.floor(math.log10(min(lows))), math.ceil(math.log10(max(lows)) + 1e-9) + 1)
    low, high = decades[0], max(decades[-1], decades[0] + 1)

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * value / most

    def y(r: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (math.log10(r) - low) / (high - low)

    ends = [fit.at_final * k / LINE_POINTS for k in range(1, LINE_POINTS + 1)]
    curve = [(at, sum(c * at**k for k, c in enumerate(fit.coefficients))) for at in ends]
    best = {level.best for level in fit.levels}
    return ScalingPicture(
        fit_in="μ" if fit.fit_in == "mu" else "ε",
        dots=[Dot(x(at), y(each.r), each.number in best or each.role == "final", each) for at, each in placed],
        line=" ".join(f"{x(at):.1f},{y(r):.1f}" for at, r in curve if 10.0**low <= r <= 10.0**high),
        x_ticks=[Tick(x(each), f"{each:g}") for each in ticks(0.0, most, 6) if each <= most],
        y_ticks=[Tick(y(10.0**each), f"{10.0**each:g}") for each in decades],
    )


def _place(trial: TrialView, fit: FitView) -> float:
    """The position of a trial: at its level, or at the final trial's."""
    return fit.at_final if trial.level is None else fit.levels[trial.level].at
