"""Quotes jobs, admits them with their hold in one transaction, and cancels them.

`submit` is the admission: plan (planning.py) → price (app.privacy.pricing) → hold (app.ledger.accounts). The job, its
hold, its idempotency key and the wake-up message for a worker commit atomically.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from pathlib import Path
from typing import Literal

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app import tracing
from app.audit import record as audit
from app.contracts.job_spec import JobSpec
from app.contracts.optimizers import PublicSideSettings
from app.datasets.repository import check_content
from app.db.engine import Database
from app.db.models import Job
from app.errors import BudgetError, Conflict, Forbidden, InvalidRequest, PolicyError, PrivacyError, Unauthenticated
from app.grants import service as grants
from app.grants.service import Access
from app.ids import now
from app.jobs import admission, memory, repository
from app.jobs.admission import LookedUp
from app.jobs.plans import DatasetFacts, Plan
from app.jobs.priced import facts_for, pinned, price_on_blocks, side_facts, without_blocks
from app.jobs.pricing import PricingService
from app.jobs.quotes import quote_of
from app.jobs.rows import new_job
from app.jobs.schemas import Forecast, Quote, Start
from app.keys import service as keys
from app.keys.service import Caller, KeyLike
from app.ledger import behind, blocks
from app.ledger.heads import Head, Heads
from app.ledger.memos import HeldFor
from app.ledger.repository import dataset_with_account
from app.lifecycle import marks, pausing
from app.lifecycle.ahead import ahead_of
from app.lifecycle.events import Requested
from app.lifecycle.presence import GpuWorkers
from app.lifecycle.settle import settle
from app.lifecycle.states import IDLE, append_event, get_job
from app.lifecycle.studies import cancel as cancel_study
from app.lifecycle.studies import pause as pause_study
from app.lifecycle.studies import resume as resume_study
from app.logs import about
from app.privacy.filters import load_numerics
from app.privacy.prices import Charge, Price, StudyPrice, Units

logger = logging.getLogger(__name__)
STOPPABLE = ("queued", "running", "pausing", "paused")
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


def _planned(
    pricing: PricingService,
    spec: JobSpec,
    facts: DatasetFacts,
    side: DatasetFacts | None,
    models_root: Path | None,
    memory_bytes: int | None,
) -> tuple[Plan, Price | StudyPrice]:
    """The plan and its price, if an attempt has the memory."""
    planned, priced = price_on_blocks(pricing, pinned(spec, models_root, facts), facts, side)
    memory.check(planned.spec, planned.facts, memory_bytes)
    return planned, priced


def quote(
    db: Database,
    pricing: PricingService,
    caller: Caller,
    spec: JobSpec,
    gpus: GpuWorkers,
    *,
    models_root: Path | None = None,
    records: int | None = None,
    memory_bytes: int | None = None,
) -> Quote:
    """Quotes a job's cost, and tells if it fits and can run now. Writes only the price, into the cache.

    Args:
        records: a hypothetical public number of training records: the quote is that of a data set registered with so
            many, and default slots, whose ledger is this one's; None: the declared number.

    Raises:
        InvalidRequest, NotFound, Forbidden: as in `submit`; or a data set with blocks and `records`.
    """
    _check_priority(caller, spec)
    with db.read() as session:
        dataset, access = grants.find(session, caller, spec.dataset, "train")
        facts, side = facts_for(session, caller, dataset, spec), side_facts(session, caller, spec)
    declared = facts.records_train
    if records is not None:
        if facts.blocks:
            raise InvalidRequest.at("/dataset", "this data set has blocks: its number of records is that of its blocks")
        facts = facts.with_records(records)
    planned, priced = _planned(pricing, spec, facts, side, models_root, memory_bytes)
    with db.read() as session:
        left = repository.remaining(session, planned.facts.reads, caller.id)
        inside = repository.left_within(session, planned.facts.reads, caller.id)
        known = not planned.study and records in (None, declared)  # other jobs' times are of the declared number
        pace = repository.seconds_per_step(session, planned.facts.id, planned.spec) if known else None
        start = None if planned.study else _start(session, caller, dataset.owner_key, spec, gpus.lease_s)
    found = Quote.model_validate(quote_of(planned, priced).model_dump(mode="json"))
    found.declaration = planned.facts.declaration
    found.scores = list(planned.scores)
    found.estimated_duration_s = round(pace * planned.steps, 1) if pace is not None else None
    found.start = start
    found.memory = memory.of_plan(planned)
    if (much := memory.warning(found.memory, memory_bytes)) is not None:
        found.warnings.append(much)
    lack = gpus.lack(spec.runtime, None)
    if lack is not None:
        found.warnings.append(LACKS[lack].format(ranks=spec.runtime.ranks))
    if left is None or planned.pricing is None:
        return found.model_copy(update={"fits": True})
    charge = priced.charge
    allowed = _is_allowed(access, priced)
    if not allowed:
        found.warnings.append(_policy(access))
    if inside is not None and not inside.covers(charge):
        found.warnings.append(BEYOND_BUDGET)
    found.fits = left.covers(charge) and allowed
    found.jobs_that_fit = left.holds(charge) if allowed else 0
    if found.fits:
        after = Charge(train=left.train - charge.train, holdout=left.holdout - charge.holdout, unit=charge.unit)
        found.remaining_after = after
    found.largest_epsilon_that_fits = _largest_that_fits(pricing, planned, left, access)
    return found


def _start(session: Session, caller: Caller, owner: str, spec: JobSpec, lease_s: float) -> Start | None:
    """Forecasts when the job would start. The time is a function of durations that the caller sees."""
    ahead = ahead_of(session, caller.id, owner, spec, lease_s)
    if ahead is None:
        return None
    duration_s = repository.typical_duration_s(session, grants.visible(caller, Job.dataset_id))
    in_s = 0.0 if ahead.ends == 0 else None if duration_s is None else round(ahead.ends * duration_s, 1)
    return Start(claims_before=ahead.claims, at_least=not ahead.is_whole, in_s=in_s)


def forecast(
    db: Database,
    pricing: PricingService,
    caller: Caller,
    dataset_id: str,
    spec: JobSpec,
    *,
    models_root: Path | None = None,
    memory_bytes: int | None = None,
) -> Forecast:
    """Tells how many jobs of this spec fit what is left of a data set's budget. Writes only the price, into the cache.

    Args:
        dataset_id: the data set's id or name; the spec must name the same one.

    Raises:
        NotFound: also on public data, which have no ledger.
        InvalidRequest, Forbidden: as in `submit`.
    """
    with db.read() as session:
        dataset, access = grants.find(session, caller, dataset_id, "train")
        if grants.find(session, caller, spec.dataset, "train")[0].id != dataset.id:
            raise InvalidRequest.at("/dataset", "the job names another data set than the address: name the same one")
        account = dataset_with_account(session, dataset.id)[1]
        facts, side = facts_for(session, caller, dataset, spec), side_facts(session, caller, spec)
    planned, priced = _planned(pricing, spec, facts, side, models_root, memory_bytes)
    with db.read() as session:
        left = repository.remaining(session, planned.facts.reads, caller.id)
    charge = Units(train=priced.charge.train, holdout=priced.charge.holdout)
    fit = left.holds(charge) if left is not None else None
    if fit is None:
        raise PrivacyError("a job on private data has a cost")
    budgets = ((charge.train, account.train_budget), (charge.holdout, account.holdout_budget))
    share = max(each / budget for each, budget in budgets if budget > 0)
    return Forecast(jobs_that_fit=fit if _is_allowed(access, priced) else 0, per_job=charge, share_per_job=share)


def submit(
    db: Database,
    pricing: PricingService,
    caller: Caller,
    spec: JobSpec,
    idempotency_key: str,
    max_queued_jobs: int,
    heads: Heads,
    *,
    models_root: Path | None = None,
    memory_bytes: int | None = None,
) -> tuple[str, Job | None]:
    """Admits a job if its whole cost fits.

    Args:
        idempotency_key: scoped to the caller's key; the same one with the same spec returns the same job.
        max_queued_jobs: the limit for a key without its own.
        heads: the recorded heads; the data set's ledger must match its record outside the database.
        memory_bytes: the limit of an attempt, if one is set.

    Returns:
        The job's id, and the job itself if this call created it.

    Raises:
        BudgetError: the job does not fit. Nothing is consumed.
        PolicyError: the job costs more than the owner allows this key for one job. Nothing is consumed.
        Conflict: the idempotency key was used for another spec; `too-many-jobs`: the key's queue is full;
            `ledger-behind`: the database has lost some of this data set's spending; `content-deleted`.
        NotFound, Forbidden: the key may not see the data set, or not train on it.
    """
    digest = hashlib.sha256(json.dumps(spec.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()
    found = _look_up(db, caller, spec, idempotency_key)
    if found.before is not None:
        return _same(*found.before, digest), None
    _check_priority(caller, spec)
    facts, side = _facts(db, caller, spec, found)
    with tracing.span("price", {"dataset": facts.id}):
        planned, priced = _planned(pricing, spec, facts, side, models_root, memory_bytes)
    job = new_job(caller, planned, priced, idempotency_key, digest)
    for each in planned.facts.reads:
        behind.require_witnessed(db, heads, each)
    recorded = {each: behind.read_recorded(heads, each) for each in planned.facts.reads}
    try:
        with tracing.span("hold", {"job": job.id}), db.write() as session:
            key = admission.write(session, caller, planned, priced, job)
            # From here to the commit this key's other submissions wait.
            access = _check(session, caller, key, planned, priced, recorded, max_queued_jobs)
            hold(session, caller, planned, priced, job.id)
        with about({"job": job.id}):
            logger.info("admitted")
        return job.id, job.job()
    except IntegrityError:
        # Two concurrent requests had the same idempotency key: the database admitted one.
        with db.read() as session:
            before = _replayed(session, caller, idempotency_key, digest)
        if before is None:
            raise
        return before, None
    except BudgetError as refusal:
        _explain(refusal, pricing, planned, access)
        raise


def cancel(db: Database, caller: Caller, job_id: str, heads: Heads) -> None:
    """Cancels a job: at once if no worker has it, within a second if one runs it.

    Args:
        heads: the marks of jobs lie beside them: what left the job and the database has forgotten is charged.

    Raises:
        Conflict: `wrong-state`: the job has ended, or is a trial. `ledger-behind`: its mark is damaged, so that it is
            unknown what left it.
        NotFound: there is no such job, or the key may not see its data set.
        Forbidden: the key is none of these: the submitter's, if it may still train; the data set's owner's; an admin's.
    """
    load_numerics()  # for a paused job, whose started part is charged now
    outside = marks.outside(db, heads, job_id)
    with db.write() as session:
        job = _steered(session, caller, job_id, "cancel")
        if job.status == "cancelling":
            return
        if job.status not in STOPPABLE:
            raise Conflict("wrong-state", f"there is nothing to cancel: the job is {job.status}", job_status=job.status)
        job.cancel_requested_at = now()
        append_event(session, job.id, "cancel_requested", Requested(by=caller.id))
        audit.record(session, "job.cancelled", job.id)
        marks.adopt_all(session, outside, IDLE)
        if job.study is not None:
            cancel_study(session, job)
        elif job.status in IDLE:
            settle(session, job, "cancelled")
        else:
            job.status = "cancelling"


def pause(db: Database, caller: Caller, job_id: str) -> None:
    """Pauses a job: at once if it is queued, within a second if it runs. Its hold stays.

    Raises:
        Conflict: `wrong-state`: it has ended or is being cancelled, or it is a trial.
        NotFound, Forbidden: as `cancel`.
    """
    with db.write() as session:
        job = _steered(session, caller, job_id, "pause")
        if job.status in ("pausing", "paused"):
            return
        if job.status not in ("queued", "running"):
            raise Conflict("wrong-state", f"there is nothing to pause: the job is {job.status}", job_status=job.status)
        append_event(session, job.id, "pause_requested", Requested(by=caller.id))
        audit.record(session, "job.paused", job.id)
        (pause_study if job.study is not None else pausing.request)(session, job)


def resume(db: Database, caller: Caller, job_id: str) -> None:
    """Lets a paused job go on where its record ends: it repeats the steps before bit for bit, free of charge.

    Raises:
        Conflict: `wrong-state`: it is not paused.
        NotFound, Forbidden: as `cancel`.
    """
    with db.write() as session:
        job = _steered(session, caller, job_id, "resume")
        if job.status not in ("pausing", "paused"):
            raise Conflict("wrong-state", f"there is nothing to resume: the job is {job.status}", job_status=job.status)
        audit.record(session, "job.resumed", job.id)
        (resume_study if job.study is not None else pausing.resume)(session, job)


def _steered(session: Session, caller: Caller, job_id: str, how: Literal["cancel", "pause", "resume"]) -> Job:
    """A job's locked row, for a caller who may steer it."""
    if not may_cancel(session, caller, grants.require_job(session, caller, job_id)):
        raise Forbidden(f"only the key that submitted this job, the data set's owner or an admin may {how} it")
    # Locked: a worker may be claiming the job now, and the hold of a started step must not be voided.
    job = get_job(session, job_id, lock=True)
    if job.parent_id is not None:
        raise Conflict("wrong-state", f"a trial ends with its study: {how} the study", study=job.parent_id)
    return job


def may_cancel(session: Session, caller: Caller, job: Job) -> bool:
    """Returns True if the caller may cancel, pause and resume the job: as its submitter who may train, as the owner, or
    as an admin."""
    access = grants.access_to_job(session, caller, job)
    return access is not None and access.covers("train" if caller.id == job.key_id else "own")


def _look_up(db: Database, caller: Caller, spec: JobSpec, idempotency_key: str) -> LookedUp:
    """Looks up the data set, and the job that this request made before.

    Raises: as `submit`.
    """
    with db.quick_read() as connection:
        found = admission.look_up(connection, caller, spec.dataset, idempotency_key)
    if found is None:
        with db.read() as session:
            grants.refuse(session, caller, spec.dataset)
    grants.check(found.access, "train")
    return found


def _facts(db: Database, caller: Caller, spec: JobSpec, found: LookedUp) -> tuple[DatasetFacts, DatasetFacts | None]:
    """Returns the facts of what the job reads, and of the optimizer's public data set.

    Raises: as `submit`.
    """
    if found.facts is not None and not isinstance(spec.optimizer, PublicSideSettings):
        return without_blocks(found.facts, spec), None
    with db.read() as session:
        dataset, _access = grants.find(session, caller, spec.dataset, "train")
        return facts_for(session, caller, dataset, spec), side_facts(session, caller, spec)


def _check(
    session: Session,
    caller: Caller,
    key: KeyLike | None,
    planned: Plan,
    priced: Price | StudyPrice,
    recorded: dict[str, Head | None],
    max_queued_jobs: int,
) -> Access:
    """Checks the key, whose row is locked, again: pricing took a while. The count of queued jobs includes the new one;
    the lock prevents two submissions from both taking the last place.

    Raises: as `submit`.
    """
    if key is None or not keys.is_alive(key):
        raise Unauthenticated(keys.NOT_HELD)
    if isinstance(planned.spec.optimizer, PublicSideSettings):
        side = planned.spec.optimizer.public_dataset
        grants.check(grants.access_by_id(session, caller, side), "train")
        check_content(session, {side})
    limit = key.max_queued_jobs or max_queued_jobs
    found = admission.standing(session, caller, planned.facts.reads, recorded, limit + 1)
    access = grants.check(found.access, "train")
    _check_policy(access, planned, priced)
    if found.queued > limit:
        detail = f"this key has {limit} jobs in the queue; its limit is {limit}: wait until some have started"
        raise Conflict("too-many-jobs", detail, limit=limit, queued=limit)
    if found.problem is not None:
        raise behind.refusal(found.problem)
    return access


def _check_priority(caller: Caller, spec: JobSpec) -> None:
    if spec.priority > caller.max_priority:
        detail = f"your key's jobs may have priorities up to {caller.max_priority}: choose one of these"
        raise InvalidRequest.at("/priority", detail)


def _is_allowed(access: Access, priced: Price | StudyPrice) -> bool:
    """Returns True if the owner's policy for this key covers the priced ε, at the job's δ."""
    if access.max_epsilon is None:
        return True
    return priced.epsilon is not None and priced.epsilon.value <= access.max_epsilon


def _policy(access: Access) -> str:
    return f"the data set's owner allows this key at most ε = {access.max_epsilon:g} for one job"


def _check_policy(access: Access, planned: Plan, priced: Price | StudyPrice) -> None:
    if not planned.facts.is_private or _is_allowed(access, priced):
        return
    if priced.epsilon is None:
        raise PrivacyError("a job on private data needs a price")
    detail = f"{_policy(access)}; this job costs ε = {priced.epsilon.value:g}"
    requested = priced.epsilon.model_dump(mode="json")
    raise PolicyError(detail, requested=requested, allowed=requested | {"value": access.max_epsilon})


def _replayed(session: Session, caller: Caller, idempotency_key: str, digest: str) -> str | None:
    job = repository.by_idempotency_key(session, caller.id, idempotency_key)
    return None if job is None else _same(job.id, job.request_sha256, digest)


def _same(job_id: str, request_sha256: str, digest: str) -> str:
    """Returns the job of an Idempotency-Key if it was the same request; raises Conflict if not."""
    if request_sha256 != digest:
        raise Conflict(
            "idempotency-key-reused", "this Idempotency-Key was used for another job: take a new one", job=job_id
        )
    return job_id


def hold(session: Session, caller: Caller, planned: Plan, priced: Price | StudyPrice, job_id: str) -> None:
    """Holds the job's charge on all that it reads. Call it last: other holds on the data set wait for its account's row
    until the commit. Any error must end the transaction."""
    if planned.facts.is_private:
        trials = len(planned.study.slots) if planned.study else None
        blocks.hold_all(
            session,
            planned.facts.reads,
            job_id=job_id,
            train=priced.charge.train,
            holdout=priced.charge.holdout,
            actor=caller.id,
            alone=True,
            memo=HeldFor(epsilon=priced.epsilon, study=trials),
        )


def _largest_that_fits(pricing: PricingService, planned: Plan, left: Units, access: Access) -> float | None:
    """Returns the largest target ε that both the budget and the owner's policy for the key cover."""
    if planned.study is not None and planned.study.pricing is not None:
        largest = pricing.largest_study_that_fits(planned.study.pricing, left).epsilon
    elif planned.pricing is not None:
        largest = pricing.largest_that_fits(planned.pricing, left).epsilon
    else:
        return None
    if largest is None or access.max_epsilon is None:
        return largest
    return min(largest, access.max_epsilon)


def _explain(refusal: BudgetError, pricing: PricingService, planned: Plan, access: Access) -> None:
    """Adds the largest ε that still fits to a refusal, and the block that cannot pay."""
    refused = refusal.members.pop("dataset")
    for each in planned.facts.blocks:
        if each.id == refused:
            refusal.members["block"] = each.label
            refusal.message = f"block {each.label!r}: {refusal.message}"
    left = Units.model_validate(refusal.members["remaining"])
    largest = _largest_that_fits(pricing, planned, left, access)
    refusal.members["largest_epsilon_that_fits"] = largest
    # Rounded down: the printed value must fit.
    more = (
        f"the largest target_epsilon that fits is {math.floor(largest * 1e4) / 1e4}"
        if largest
        else "no ε above 0.0001 fits what is left"
    )
    refusal.message = f"{refusal.message}; {more}"
    refusal.args = (refusal.message,)
