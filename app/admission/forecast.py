"""What a job would cost, and whether it fits: quotes, forecasts, sweeps, and what a refusal says would fit.

All are prefixes of an admission, and write only prices, into the cache. A sweep's points are separate requests to the
pricing process, so that others' prices are computed in between.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from pydantic import BaseModel, ValidationError
from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from app.admission import memory
from app.admission.choices import levels_of
from app.admission.memory import MemoryEstimate
from app.admission.price import ModelQuote, Priced, ReadBlock
from app.admission.request import Resolved, left_within, remaining
from app.admission.standing import is_allowed, policy
from app.admission.study import CheckedStudy, SearchQuote, epsilon_of_run
from app.contracts.base import Epsilon
from app.contracts.hpo import LinearScaling
from app.contracts.job_spec import JobSpec
from app.contracts.sweep import Sweep
from app.db.engine import Database
from app.db.models import Account, Dataset, Job
from app.errors import BudgetError, InvalidRequest, PrivacyError
from app.grants import service as grants
from app.hpo.rates import Resolved as ResolvedRate
from app.ledger.repository import dataset_with_account
from app.lifecycle.queue.ahead import ahead_of
from app.lifecycle.queue.presence import GpuWorkers
from app.pricing.service import PricingService
from app.privacy.gdp import mu_from_epsilon
from app.privacy.numerics import Numerics
from app.privacy.plans import FinalRunRequest
from app.privacy.prices import Charge, Line, Units
from app.privacy.releases import ScoreNoise

NO_GPU = (
    "no GPU worker is alive now: a job that asks for a GPU waits until there is one (`waiting_for`: cuda), and can be "
    "cancelled free of charge while it waits"
)
NO_GPUS = (
    "no living worker has {ranks} equal GPUs for one job: the job waits until one has (`waiting_for`: gpus), and can "
    "be cancelled free of charge while it waits"
)
NO_PROCESSES = (
    "no worker that runs so many processes for one job is alive now: the job waits until there is one (`waiting_for`: "
    "processes), and can be cancelled free of charge while it waits"
)
LACKS = {"cuda": NO_GPU, "gpus": NO_GPUS, "processes": NO_PROCESSES}
BEYOND_BUDGET = (
    "this key's budget within the cap has less left than this job costs: ask the data set's owner for more "
    "(POST /v1/budget-requests)"
)
MOST, MOST_SAMPLED = 400, 12  # points of a sweep: a full-batch one takes about a millisecond, a sampled one seconds


class Start(BaseModel):
    """When a job would start that is submitted now, if nobody submits more and jobs take as long as the caller's own
    and visible ones did."""

    claims_before: int  # jobs that workers take first, by turns, weights and the key's own priorities
    at_least: bool = False  # there may be more of them
    in_s: float | None = None  # null: no job that this key may see has ended yet


class Quote(BaseModel):
    """A price. `mechanism` is the event tree of each account, for accountants."""

    noise_multiplier: float | None
    sample_rate: float
    steps: int
    expected_batch_size: int
    mechanism: dict[str, Any] | None
    epsilon: Epsilon | None
    comparison: dict[str, float | None] | None
    charge: Charge
    lines: list[Line]
    scores: list[ScoreNoise] = []  # each score's noise; its std at most about this. In a study, of the final trial
    model: ModelQuote | None = None  # its parameters, and its layers with the shapes of their tensors
    numerics: Numerics | None = None  # shapes and types of the passes; null for jobs older than this member
    fits: bool | None = None
    remaining_after: Charge | None = None
    largest_epsilon_that_fits: float | None = None
    jobs_that_fit: int | None = None  # how many jobs of this price fit now; null on public data
    hpo: SearchQuote | None = None  # for a study: how pilots, scores and the final trial share the total
    estimated_duration_s: float | None = None
    start: Start | None = None  # null inside a job, for a study, and if no worker is alive that may take it
    declaration: int | None = None  # the version of the data set's declaration; null inside a job, which has it itself
    warnings: list[str] = []
    memory: MemoryEstimate | None = None  # of each process of an attempt; null inside a job
    resolved: ResolvedRate | None = None  # the learning rate that "auto" stands for, and why
    reads: list[ReadBlock] = []  # the blocks that it reads, with their declared records; empty for older jobs


class Forecast(BaseModel):
    """How many jobs of one price fit what is left: that many are admitted one after another, and not one more.

    `per_job` is the price on each account, in the filter's units; `share_per_job` its share of the budget, on the
    account where that is larger.
    """

    jobs_that_fit: int
    per_job: Units
    share_per_job: float


class SweepPoint(BaseModel):
    """One combination. If the study is not possible, `final` is null, `reason` explains it, and
    `smallest_total_epsilon` is the least total that works, if there is one."""

    total_epsilon: float
    levels: list[float]
    runs_per_level: int
    runs: int  # trainings in all
    final: Epsilon | None
    smallest_total_epsilon: float | None
    reason: str | None


class SweepView(BaseModel):
    """The points, ordered by levels, then by trials, then by total, each in the order of the request."""

    points: list[SweepPoint]


def quote(
    db: Database, pricing: PricingService, resolved: Resolved, priced: Priced, *, hypothetical: bool = False
) -> Quote:
    """A priced job's quote: its cost, line by line, whether it fits now, and when it would start.

    Args:
        hypothetical: it has another number of records than is declared, and other jobs' times say nothing of it.
    """
    caller, facts, checked = resolved.request.caller, priced.checked.facts, priced.checked
    limits, is_study = resolved.request.limits, priced.study is not None
    gpus = GpuWorkers(db, limits.lease_s)
    with db.read() as session:
        left, inside = remaining(session, facts.reads, caller.id), left_within(session, facts.reads, caller.id)
        pace = None if is_study or hypothetical else _seconds_per_step(session, facts.id, checked.spec)
        start = None if is_study else _start(session, resolved, facts.id)
    found = Quote.model_validate(priced.quote.model_dump(mode="json"))
    found.declaration = facts.declaration
    found.scores = list(checked.scores)
    found.estimated_duration_s = round(pace * checked.steps, 1) if pace is not None else None
    found.start = start
    found.memory = memory.of_job(checked)
    if (much := memory.warning(found.memory, limits.memory_bytes)) is not None:
        found.warnings.append(much)
    lack = gpus.lack(resolved.request.spec.runtime, None)
    if lack is not None:
        found.warnings.append(LACKS[lack].format(ranks=checked.spec.runtime.ranks))
    if left is None or checked.pricing is None:
        return found.model_copy(update={"fits": True})
    charge, allowed = priced.price.charge, is_allowed(resolved.access, priced.price.epsilon)
    if not allowed:
        found.warnings.append(policy(resolved.access))
    if inside is not None and not inside.covers(charge):
        found.warnings.append(BEYOND_BUDGET)
    found.fits = left.covers(charge) and allowed
    found.jobs_that_fit = left.holds(charge) if allowed else 0
    if found.fits:
        after = Charge(train=left.train - charge.train, holdout=left.holdout - charge.holdout, unit=charge.unit)
        found.remaining_after = after
    found.largest_epsilon_that_fits = _largest_that_fits(pricing, resolved, priced, left)
    return found


def with_records(resolved: Resolved, records: int) -> Resolved:
    """The same request on a data set that is registered with so many training records, and default slots, whose ledger
    is this one's.

    Raises:
        InvalidRequest: the data set has blocks, or no data set can have so many.
    """
    if resolved.facts.blocks:
        raise InvalidRequest.at("/dataset", "this data set has blocks: its number of records is that of its blocks")
    return Resolved.of(resolved.request, resolved.facts.with_records(records), resolved.side, resolved.access)


def account_at(db: Database, resolved: Resolved, dataset_id: str) -> Account:
    """The account of the data set that a job reads, which must be the one with this id or name.

    Raises:
        NotFound, Forbidden: the key may not train on it; or it is public, and has no account.
        InvalidRequest: it is another data set.
    """
    with db.read() as session:
        dataset, _ = grants.find(session, resolved.request.caller, dataset_id, "train")
        if dataset.id != resolved.facts.id:
            raise InvalidRequest.at("/dataset", "the job names another data set than the address: name the same one")
        return dataset_with_account(session, dataset.id)[1]


def forecast(db: Database, resolved: Resolved, priced: Priced, account: Account) -> Forecast:
    """How many such jobs fit what is left of a data set's budget."""
    with db.read() as session:
        left = remaining(session, priced.checked.facts.reads, resolved.request.caller.id)
    fit = left.holds(priced.units) if left is not None else None
    if fit is None:
        raise PrivacyError("a job on private data has a cost")
    budgets = ((priced.units.train, account.train_budget), (priced.units.holdout, account.holdout_budget))
    share = max(each / budget for each, budget in budgets if budget > 0)
    fit = fit if is_allowed(resolved.access, priced.price.epsilon) else 0
    return Forecast(jobs_that_fit=fit, per_job=priced.units, share_per_job=share)


def sweep(pricing: PricingService, study: CheckedStudy, asked: Sweep) -> SweepView:
    """Computes the final trial's privacy for every combination; the points are ordered as they are asked for."""
    totals, levels, runs = combinations(asked)
    return SweepView(
        points=[_point(pricing, study, *each) for each in itertools.product(levels, runs, totals)]  # last one fastest
    )


def combinations(asked: Sweep) -> tuple[list[float], list[list[float]] | list[None], list[int]]:
    """The totals, levels and numbers of pilots of a sweep.

    Raises:
        InvalidRequest: `spec` is not a plan of linear scaling, a list does not fit it, or there are too many points.
    """
    hpo = asked.spec.hpo
    if not isinstance(hpo, LinearScaling):
        raise InvalidRequest.at("/spec/hpo", "a sweep needs `linear_scaling`: other strategies have no pilots")
    totals = asked.total_epsilon or [_own_total(asked.spec)]
    levels: list[list[float]] | list[None] = asked.levels or ([None] if hpo.levels == "auto" else [hpo.levels])
    runs = asked.runs_per_level or [hpo.runs_per_level]
    _check(asked, hpo, len(totals) * len(levels) * len(runs))
    return totals, levels, runs


def explain(refusal: BudgetError, pricing: PricingService, resolved: Resolved, priced: Priced) -> None:
    """Adds the largest ε that still fits to a refusal, and the block that cannot pay."""
    refused = refusal.members.pop("dataset")
    for each in priced.checked.facts.blocks:
        if each.id == refused:
            refusal.members["block"] = each.label
            refusal.message = f"block {each.label!r}: {refusal.message}"
    left = Units.model_validate(refusal.members["remaining"])
    largest = _largest_that_fits(pricing, resolved, priced, left)
    refusal.members["largest_epsilon_that_fits"] = largest
    # Rounded down: the printed value must fit.
    more = (
        f"the largest target_epsilon that fits is {math.floor(largest * 1e4) / 1e4}"
        if largest
        else "no ε above 0.0001 fits what is left"
    )
    noise = largest_noise_mu(refusal, left, priced.checked.spec)
    if noise is not None:
        refusal.members["largest_noise_mu_that_fits"] = noise
        more = f"the score must have more noise: evaluation.noise_mu at most {noise:g}"
    refusal.message = f"{refusal.message}; {more}"
    refusal.args = (refusal.message,)


LEAST_NOISE_MU = 1e-5  # of a job's specification


def largest_noise_mu(refusal: BudgetError, left: Units, spec: JobSpec) -> float | None:
    """The largest noise_mu of a job's score with which it fits a hold-out that cannot pay; None if that is not what
    binds. A score's charge is proportional to noise_mu² under both filters; rounded down to three digits."""
    evaluation, asked = spec.evaluation, Units.model_validate(refusal.members["requested"]).holdout
    if evaluation is None or refusal.members["account"] != "holdout" or spec.hpo is not None or asked == 0:
        return None
    exact = evaluation.noise_mu * math.sqrt(left.holdout / asked) * (1.0 - 1e-6)
    if exact < LEAST_NOISE_MU:
        return None
    unit = 10.0 ** (math.floor(math.log10(exact)) - 2)
    return float(f"{math.floor(exact / unit) * unit:.3g}")


def _largest_that_fits(pricing: PricingService, resolved: Resolved, priced: Priced, left: Units) -> float | None:
    """Returns the largest target ε that both the budget and the owner's policy for the key cover."""
    if priced.study is not None and priced.study.pricing is not None:
        largest = pricing.largest_study_that_fits(priced.study.pricing, left).epsilon
    elif priced.checked.pricing is not None:
        largest = pricing.largest_that_fits(priced.checked.pricing, left).epsilon
    else:
        return None
    most = resolved.access.max_epsilon
    return largest if largest is None or most is None else min(largest, most)


def _start(session: Session, resolved: Resolved, dataset_id: str) -> Start | None:
    """Forecasts when the job would start. The time is a function of durations that the caller sees."""
    request, owner = resolved.request, session.get_one(Dataset, dataset_id).owner_key
    ahead = ahead_of(session, request.caller.id, owner, request.spec, request.limits.lease_s)
    if ahead is None:
        return None
    duration_s = _typical_duration_s(session, grants.visible(request.caller, Job.dataset_id))
    in_s = 0.0 if ahead.ends == 0 else None if duration_s is None else round(ahead.ends * duration_s, 1)
    return Start(claims_before=ahead.claims, at_least=not ahead.is_whole, in_s=in_s)


def _seconds_per_step(session: Session, dataset_id: str, spec: JobSpec) -> float | None:
    """Returns the median time per step of recent similar jobs: same data set, model and sampling; None without any."""
    asked = spec.model_dump(mode="json")
    like = {name: asked.get(name) for name in ("model", "sampling", "blocks")}
    recent = session.scalars(
        select(Job)
        .where(Job.dataset_id == dataset_id, Job.status == "succeeded", Job.attempt == 1, Job.study.is_(None))
        .order_by(Job.created_at.desc())
        .limit(20)
    )
    times = [
        (job.finished_at - job.started_at).total_seconds() / job.steps
        for job in recent
        if job.finished_at and job.started_at and {name: job.spec.get(name) for name in like} == like
    ]
    return sorted(times)[len(times) // 2] if times else None


def _typical_duration_s(session: Session, among: ColumnElement[bool]) -> float | None:
    """Returns the median time from start to end of recent jobs that may be shown; None without any."""
    recent = (
        select(Job.started_at, Job.finished_at)
        .where(among, Job.status == "succeeded", Job.study.is_(None), Job.started_at.is_not(None))
        .order_by(Job.created_at.desc())
        .limit(20)
    )
    times = [(ended - began).total_seconds() for began, ended in session.execute(recent) if began and ended]
    return sorted(times)[len(times) // 2] if times else None


def _own_total(spec: JobSpec) -> float:
    if spec.privacy is None or spec.privacy.target_epsilon is None:
        raise InvalidRequest.at("/spec/privacy", "a study divides a total among its trials: give `target_epsilon`")
    return spec.privacy.target_epsilon


def _check(asked: Sweep, hpo: LinearScaling, points: int) -> None:
    sampled = asked.spec.sampling.is_sampled
    most = MOST_SAMPLED if sampled else MOST
    if points > most:
        why = " under Poisson sampling" if sampled else ""
        raise InvalidRequest.at("", f"that is {points} combinations; at most {most} are allowed{why}")
    for place, levels in enumerate(asked.levels or []):
        try:
            LinearScaling.model_validate(hpo.model_dump() | {"levels": levels})
        except ValidationError as error:
            why = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise InvalidRequest.at(f"/levels/{place}", why) from None


def within_spec(error: InvalidRequest) -> InvalidRequest:
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
    found = pricing.final_run(
        FinalRunRequest(study=study.pricing, total_epsilon=total, levels=tuple(levels), runs_per_level=runs_per_level)
    )
    return SweepPoint(
        total_epsilon=total,
        levels=levels,
        runs_per_level=runs_per_level,
        runs=len(levels) * runs_per_level + 1,
        final=epsilon_of_run(study.pricing, found.epsilon),
        smallest_total_epsilon=found.smallest_total_epsilon,
        reason=found.reason,
    )
