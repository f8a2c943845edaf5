"""The division of a study's total among its trials: as it is priced, quoted and stored."""

from __future__ import annotations

import secrets
from itertools import pairwise

from app.admission.study import CheckedStudy
from app.contracts.base import Document, Epsilon
from app.contracts.hpo import GridOracle, LinearScaling, ScoredSearch
from app.errors import InvalidRequest
from app.hpo.stored import StoredRun, StoredStudy
from app.privacy.accounting import of_record
from app.privacy.plans import StudyRequest
from app.privacy.prices import Charge, Line, PricedRun, RunCost, StudyPrice
from app.privacy.releases import NoisyCount, NoisySum

# The least factor from a level to the next, in the fit's unit. Calibrated noise (Poisson sampling) is exact to 5e-4.
LEAST_RISE = 1.01


class RunQuote(RunCost):
    """A trial's part of the total."""

    epsilon: Epsilon | None


class Level(Document):
    """A level of a study's pilots, and how many it has."""

    level: int
    runs: int


class PilotsQuote(RunQuote, Level):  # in this order: stored quotes begin with the level
    """The pilots of one level, which all have the same price but for a mean: the study's first trial pays for it.

    `charge` is that of the level's last pilot.
    """


class SearchQuote(Document):
    """The `hpo` block of a quote: the division of the total before any trial runs. `procedure` is None for an oracle,
    whose trials are not accounted together."""

    strategy: str
    runs: int
    pilots: tuple[PilotsQuote, ...]
    scores: Line | None
    final: Epsilon | None
    final_run: RunQuote
    procedure: Epsilon | None


def stored(study: CheckedStudy, priced: StudyPrice) -> StoredStudy:
    """Builds the part of the plan that is stored with the job; its trials are built from it."""
    hpo = study.hpo
    runs = [
        StoredRun(
            role=slot.role,
            level=slot.level,
            share=run.share,
            mu=run.mu,
            noise_multiplier=run.noise_multiplier,
            charge=run.charge,
            training_epsilon=_epsilon(study, run.epsilon),
            epsilon=_epsilon(study, run.epsilon_with_scores),
            releases=releases,
        )
        for slot, run, releases in zip(study.slots, priced.runs, _releases(study), strict=True)
    ]
    levels, final = _levels(study, priced)
    score = study.evaluation.compared_by if study.evaluation else None
    return StoredStudy(
        seed=secrets.token_hex(16) if study.spec.seed is None else str(study.spec.seed),
        steps=study.bounds.steps[1],
        levels=tuple(levels),
        at_final=final,
        score=score,
        larger_is_better=study.evaluation is None or study.evaluation.larger_is_better,
        trial_evaluation=study.evaluation,
        keep_weights=hpo.keep_weights if isinstance(hpo, ScoredSearch | GridOracle) else False,
        common=study.pricing.common if study.pricing else None,
        runs=tuple(runs),
        decision=None,
        chosen=None,
    )


def unpriced(study: CheckedStudy) -> StudyPrice:
    """Returns the price of a study without privacy."""
    runs = tuple(PricedRun.unpriced() for _ in study.slots)
    return StudyPrice(epsilon=None, comparison=None, charge=Charge.nothing(), lines=(), runs=runs, events=None)


def quoted(study: CheckedStudy, priced: StudyPrice) -> SearchQuote:
    """Builds the quote's division of the total, before any trial runs."""
    by_level: dict[int, list[PricedRun]] = {}
    for slot, run in zip(study.slots, priced.runs, strict=True):
        if slot.level is not None:
            by_level.setdefault(slot.level, []).append(run)
    final = _part(study, priced.runs[-1])
    return SearchQuote(
        strategy=study.hpo.strategy,
        runs=len(priced.runs),
        pilots=tuple(
            PilotsQuote(level=level, runs=len(runs), **dict(_part(study, runs[-1]))) for level, runs in by_level.items()
        ),
        scores=next((line for line in priced.lines if line.what == "scores"), None),
        final=final.epsilon,
        final_run=final,
        procedure=None if isinstance(study.hpo, GridOracle) else priced.epsilon,
    )


def _part(study: CheckedStudy, run: PricedRun) -> RunQuote:
    cost = {name: getattr(run, name) for name in RunCost.model_fields}
    return RunQuote(**cost, epsilon=_epsilon(study, run.epsilon))


def _epsilon(study: CheckedStudy, value: float | None) -> Epsilon | None:
    return None if study.pricing is None else epsilon_of_run(study.pricing, value)


def epsilon_of_run(request: StudyRequest, value: float | None) -> Epsilon | None:
    """Wraps a trial's ε by the accountant of record; None gives None."""
    if value is None:
        return None
    accountant = of_record(sampled=request.training.sampling == "poisson")
    return Epsilon(value=value, delta=request.target_delta, accountant=accountant, unit=request.unit)


def _levels(study: CheckedStudy, priced: StudyPrice) -> tuple[list[float], float]:
    """Returns the levels' and the final trial's positions, in the fit's unit."""
    hpo = study.hpo
    if not isinstance(hpo, LinearScaling):
        return [], 0.0
    by_level = {
        slot.level: (run.mu if hpo.fit_in == "mu" else run.epsilon) or 0.0
        for slot, run in zip(study.slots, priced.runs, strict=True)
    }
    return [by_level[level] for level in range(len(hpo.epsilons))], by_level[None]


def check_levels(study: CheckedStudy, priced: StudyPrice) -> tuple[str, ...]:
    """Checks that a curve can be fitted through the priced levels.

    Returns:
        Warnings.

    Raises:
        InvalidRequest: two levels are nearly equal.
    """
    levels, final = _levels(study, priced)
    if any(not other >= one * LEAST_RISE or one <= 0.0 for one, other in pairwise(levels)):
        detail = "these levels are too close for a curve through them: raise each to at least 1 % above the one before"
        raise InvalidRequest.at("/hpo/levels", detail)
    if levels and final < levels[-1]:
        return ("The levels leave less privacy for the final run than a pilot of the top level has: lower them.",)
    return ()


def _releases(study: CheckedStudy) -> list[tuple[NoisyCount | NoisySum, ...]]:
    """Returns each trial's scores."""
    return [run.releases for run in study.pricing.runs] if study.pricing is not None else [() for _ in study.slots]
