"""A study's next trials, given the scores so far: pure functions of public numbers and of scores that were paid for.

`runs_of` names every trial that a study has so far; the caller starts the missing ones. With the same scores it returns
the same trials, so a crash between the call and the start neither repeats nor loses a trial.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.hpo.scaling_fit import Fit, fit
from app.hpo.space import Bounds, Point
from app.hpo.study_draws import Draws
from core.contracts.hpo import GridOracle, LinearScaling, Random, RandomK, Strategy
from core.contracts.stored_documents import Role


@dataclass(frozen=True)
class Run:
    """One trial of a study.

    Attributes:
        number: 0, 1, …: its place in the study's plan, which fixes its share of the budget.
        role: only the score of a `pilot` is used; the model of the best `candidate`, or of the `final` trial, is
            delivered.
        level: a pilot's level, counted from 0.
    """

    number: int
    role: Role
    level: int | None
    point: Point


@dataclass(frozen=True)
class Slot:
    """A trial before its point is known."""

    number: int
    role: Role
    level: int | None


@dataclass(frozen=True)
class Study:
    """A study, fixed at admission.

    Attributes:
        seed: of the draws; public.
        levels: μ or ε of each level, in the unit of the fit; empty for strategies without levels.
        at_final: the same for the final trial.
        larger_is_better: for scores.
    """

    hpo: Strategy
    bounds: Bounds
    seed: str
    levels: tuple[float, ...] = ()
    at_final: float = 0.0
    larger_is_better: bool = True

    def best(self, scores: Mapping[int, float], among: list[int]) -> int:
        """The number of the trial with the best score; the first of equal ones."""
        sign = -1.0 if self.larger_is_better else 1.0
        return min(among, key=lambda number: (sign * scores[number], number))


@dataclass(frozen=True)
class Decision:
    """How the final trial was chosen: the best pilot of each level, the curve through them, r*."""

    best: tuple[int, ...]
    rs: tuple[float, ...]
    fit: Fit


def slots(hpo: Strategy, bounds: Bounds) -> list[Slot]:
    """All trials that a study will have, by number. Known before anything is drawn."""
    match hpo:
        case LinearScaling():
            pilots = [level for level in range(len(hpo.epsilons)) for _ in range(hpo.runs_per_level)]
            return [Slot(n, "pilot", level) for n, level in enumerate(pilots)] + [Slot(len(pilots), "final", None)]
        case Random():
            return [Slot(0, "final", None)]
        case RandomK():
            return [Slot(n, "candidate", None) for n in range(hpo.runs)]
        case GridOracle():
            return [Slot(n, "candidate", None) for n in range(len(bounds.grid()))]


def runs_of(study: Study, scores: Mapping[int, float]) -> list[Run]:
    """Every trial that the study has so far.

    Pilots wait neither for each other nor for other levels: a level's draws do not depend on results.

    Args:
        scores: of the succeeded trials, by number.
    """
    planned = slots(study.hpo, study.bounds)
    if isinstance(study.hpo, GridOracle):
        grid = study.bounds.grid()
        return [Run(each.number, each.role, None, grid[each.number]) for each in planned]
    if not isinstance(study.hpo, LinearScaling):
        return [Run(each.number, each.role, None, study.bounds.draw(_draws(study, each))) for each in planned]
    *pilots, final = planned
    split = study.hpo.split
    runs = [
        Run(each.number, "pilot", each.level, study.bounds.draw_by_r(split, _draws(study, each))) for each in pilots
    ]
    if all(each.number in scores for each in pilots):
        r_star = decide(study, runs, scores).fit.r_star
        bounds = study.bounds.longest(r_star) if study.hpo.final_steps == "longest" else study.bounds
        runs.append(Run(final.number, "final", None, bounds.split(r_star, split, _draws(study, final))))
    return runs


def decide(study: Study, pilots: list[Run], scores: Mapping[int, float]) -> Decision:
    """Computes r* from the pilots' scores. It reads nothing else that depends on private data."""
    hpo = study.hpo
    if not isinstance(hpo, LinearScaling):
        raise TypeError("only linear scaling decides by a fit")
    by_number = {run.number: run for run in pilots}
    best = tuple(
        study.best(scores, [run.number for run in pilots if run.level == level]) for level in range(len(hpo.epsilons))
    )
    rs = tuple(by_number[number].point.r for number in best)
    return Decision(best, rs, fit(study.levels, rs, study.at_final, study.bounds.r, hpo.curve))


def winner(study: Study, scores: Mapping[int, float]) -> int:
    """The number of the trial whose model is delivered, once all have succeeded."""
    planned = slots(study.hpo, study.bounds)
    if planned[-1].role == "final":
        return planned[-1].number
    return study.best(scores, [each.number for each in planned])


def _draws(study: Study, slot: Slot) -> Draws:
    return Draws(study.seed, f"run-{slot.number}")
