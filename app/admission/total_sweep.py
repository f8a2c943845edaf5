"""A study's final trial under other totals, levels and numbers of pilots.

The points are separate requests to the pricing process, so that others' prices are computed in between.
"""

from __future__ import annotations

import itertools

from pydantic import ValidationError

from app.admission.choices import closed, levels_of
from app.admission.request import Request, resolve
from app.admission.service import Admission
from app.admission.study import CheckedStudy, check_study
from app.keys.service import Caller
from app.pricing.service import PricingService
from core.contracts.base import Deferred, Epsilon
from core.contracts.hpo import LinearScaling
from core.contracts.job_spec import JobSpec
from core.contracts.sweep import Sweep
from core.errors import InvalidRequest
from core.privacy.accounting import epsilon_of_trial
from core.privacy.gdp import mu_from_epsilon
from core.privacy.price_requests import FinalRunRequest

MOST, MOST_SAMPLED = 400, 12  # points of a sweep: a full-batch one takes about a millisecond, a sampled one seconds


class SweepPoint(Deferred):
    """One combination. If the study is not possible, `final` is null, `reason` explains it, and
    `smallest_total_epsilon` is the least total that works, if there is one."""

    total_epsilon: float
    levels: list[float]
    runs_per_level: int
    runs: int  # trainings in all
    final: Epsilon | None
    smallest_total_epsilon: float | None
    reason: str | None


class SweepView(Deferred):
    """The points, ordered by levels, then by trials, then by total, each in the order of the request."""

    points: list[SweepPoint]


def sweep(admission: Admission, caller: Caller, request: Sweep) -> SweepView:
    """Computes the final trial's privacy for every combination; the points are ordered as they are asked for.

    Raises:
        InvalidRequest: as `combinations`, or `spec` cannot be planned.
        NotFound, Forbidden: as for a quote.
    """
    totals, levels, runs = combinations(request)
    try:
        resolved = resolve(admission.db, Request.of(caller, request.spec, admission.limits))
        study = check_study(closed(resolved.spec, resolved.facts).spec, resolved.facts, resolved.side)
    except InvalidRequest as error:
        raise _within_spec(error) from None
    pricing = admission.pricing.of(caller.id)
    return SweepView(
        points=[_point(pricing, study, *each) for each in itertools.product(levels, runs, totals)]  # last one fastest
    )


def combinations(request: Sweep) -> tuple[list[float], list[list[float]] | list[None], list[int]]:
    """The totals, levels and numbers of pilots of a sweep.

    Raises:
        InvalidRequest: `spec` is not a plan of linear scaling, a list does not fit it, or there are too many points.
    """
    hpo = request.spec.hpo
    if not isinstance(hpo, LinearScaling):
        raise InvalidRequest.at("/spec/hpo", "a sweep needs `linear_scaling`: other strategies have no pilots")
    totals = request.total_epsilon or [_own_total(request.spec)]
    levels: list[list[float]] | list[None] = request.levels or ([None] if hpo.levels == "auto" else [hpo.levels])
    runs = request.runs_per_level or [hpo.runs_per_level]
    _check(request, hpo, len(totals) * len(levels) * len(runs))
    return totals, levels, runs


def _own_total(spec: JobSpec) -> float:
    if spec.privacy is None or spec.privacy.target_epsilon is None:
        raise InvalidRequest.at("/spec/privacy", "a study divides a total among its trials: give `target_epsilon`")
    return spec.privacy.target_epsilon


def _check(request: Sweep, hpo: LinearScaling, points: int) -> None:
    sampled = request.spec.sampling.is_sampled
    limit = MOST_SAMPLED if sampled else MOST
    if points > limit:
        sampling = " under Poisson sampling" if sampled else ""
        raise InvalidRequest.at("", f"that is {points} combinations; at most {limit} are allowed{sampling}")
    for place, levels in enumerate(request.levels or []):
        try:
            LinearScaling.model_validate(hpo.model_dump() | {"levels": levels})
        except ValidationError as error:
            sampling = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise InvalidRequest.at(f"/levels/{place}", sampling) from None


def _within_spec(error: InvalidRequest) -> InvalidRequest:
    errors = [each | {"pointer": f"/spec{each['pointer']}"} for each in error.members["errors"]]
    return InvalidRequest(error.message, errors)


def _point(
    pricing: PricingService, study: CheckedStudy, levels: list[float] | None, runs_per_level: int, total: float
) -> SweepPoint:
    """`levels` None: those that "auto" means at this total."""
    if study.pricing is None:
        raise InvalidRequest.at("/spec/privacy", "without privacy there is nothing to divide: give `target_epsilon`")
    if levels is None:
        delta = study.pricing.target_delta
        try:
            levels = levels_of(mu_from_epsilon(total, delta), delta, runs_per_level)
        except InvalidRequest as error:
            return SweepPoint(
                total_epsilon=total,
                levels=[],
                runs_per_level=runs_per_level,
                runs=2 * runs_per_level + 1,
                final=None,
                smallest_total_epsilon=None,
                reason=error.members["errors"][0]["detail"],
            )
    run = pricing.final_run(
        FinalRunRequest(study=study.pricing, total_epsilon=total, levels=tuple(levels), runs_per_level=runs_per_level)
    )
    return SweepPoint(
        total_epsilon=total,
        levels=levels,
        runs_per_level=runs_per_level,
        runs=len(levels) * runs_per_level + 1,
        final=epsilon_of_trial(study.pricing, run.epsilon),
        smallest_total_epsilon=run.smallest_total_epsilon,
        reason=run.reason,
    )
