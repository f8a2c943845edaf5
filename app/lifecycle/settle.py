"""Ends a job and its hold in one transaction, once.

nothing private was started                       void
succeeded, all T steps                            post the whole hold
cancelled, lost (external causes)                 post the started part, over all attempts; release the rest. A
                                                  selection of random size has no part: post the whole hold
the attempt's own error (also out of memory),     post the whole hold: the failure may depend on private data,
and any end but success after a crash             and so may the wish to stop the job
more was recorded than the hold covers            fail, deliver no model, post the whole hold
past its time limit                               post the whole hold, also before the first step
its mark is damaged (app.lifecycle.restore)       fail, post the whole hold, also before the first step
no hold in the ledger (changed from outside)      fail; once a step was started, charge the whole quoted cost on each
                                                  block of its data set, or what is left there
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Literal

from sqlalchemy import and_, case, false, func, select, true
from sqlalchemy.orm import Session

from app.db.models import Account, ApiKey, Artifact, Attempt, Dataset, Job, Metric
from app.ledger import accounts, block_accounts, joining, memos
from app.lifecycle import failures
from app.lifecycle.coverage import started_training
from app.lifecycle.job_events import Ended
from app.lifecycle.queue.room import leave_queue
from app.lifecycle.states import (
    ACTIVE,
    IN_ORDER,
    IS_DUE,
    append_event,
    discard,
    in_queue,
    notify,
    want_certificate,
)
from core.contracts.stored_documents import Failure
from core.errors import Conflict, PrivacyError
from core.ids import whole_second
from core.privacy.filters import filter_of
from core.privacy.mechanism import MechanismConfig
from core.privacy.prices import NO_UNITS, Units
from core.privacy.quoted import Quoted

Outcome = Literal["succeeded", "cancelled", "failed"]
MOVES_FROM = filter_of("gdp", None)
OVERRUN = "more was started or released than the job's hold covers"
UNHELD = "the job's hold is not in the ledger: the ledger was changed from outside"
logger = logging.getLogger(__name__)


class Cause(Enum):
    """Why a job ends, as far as its charge depends on that."""

    OUTSIDE = "success, a person's request, or a worker that was lost"
    ERROR = "the attempt's own error, or a hold that is not in the ledger"
    TIME_LIMIT = "the job's time limit"
    OVERRUN = "more was recorded than the hold covers"
    UNKNOWN = "what left the job is unknown, as its mark is damaged"


class Charging(Enum):
    """The part of a job's hold that its end posts."""

    NOTHING = 0
    STARTED_PART = 1
    WHOLE_HOLD = 2


@dataclass(frozen=True)
class Settlement:
    """How a job ends, and its charge.

    Attributes:
        job: a fresh row of the job, locked by this transaction.
        failure: code and message of a failed job, without values. app.lifecycle.failures decides what callers see.
        charge: at most the hold; None on public data, which have no account.
        withholds: models that this transaction was about to deliver are removed.
        unheld: the job's hold is not in the ledger.
    """

    job: Job
    outcome: Outcome
    failure: Failure | None
    charge: Units | None
    withholds: bool
    unheld: bool


def settlement_of(
    session: Session, job: Job, outcome: Outcome, *, failure: Failure | None = None, cause: Cause = Cause.OUTSIDE
) -> Settlement:
    """Returns how the job ends, and its charge; changes nothing.

    A broken invariant fails the job, also one that succeeded or was cancelled. It ends anyway: otherwise it would be
    attempted for ever, with its hold open.

    Args:
        job, failure: see Settlement.
    """
    mechanism = None if job.mechanism is None else MechanismConfig.model_validate(job.mechanism)
    released = Counter[str]() if mechanism is None else _released(session, job.id)
    unheld = lacks_hold(session, job)
    overrun = mechanism is not None and (
        job.steps_started > mechanism.training.steps or not released <= _planned(mechanism)
    )
    if unheld or overrun:
        outcome, cause = "failed", Cause.OVERRUN if overrun else Cause.ERROR
        failure = Failure(code=PrivacyError.code, message=UNHELD if unheld else OVERRUN)
    charge = None
    quoted = Quoted.of(job.quote).charge
    hold = Units(train=quoted.train, holdout=quoted.holdout)
    if mechanism is not None and hold != NO_UNITS:
        match _charging(session, job, outcome, cause):
            case Charging.NOTHING:
                charge = NO_UNITS
            case Charging.STARTED_PART if mechanism.selection is None:
                charge = _started_part(session, job, mechanism, hold, released)
            case Charging.STARTED_PART | Charging.WHOLE_HOLD:  # a selection's runs and scores have one price
                charge = hold
    return Settlement(job, outcome, failure, charge, withholds=unheld or overrun, unheld=unheld)


def _charging(session: Session, job: Job, outcome: Outcome, cause: Cause) -> Charging:
    """Returns what the table above charges."""
    match cause:
        case Cause.OVERRUN | Cause.TIME_LIMIT | Cause.UNKNOWN:
            return Charging.WHOLE_HOLD
        case _ if job.steps_started == 0:
            return Charging.NOTHING
        case Cause.ERROR:
            return Charging.WHOLE_HOLD
        case Cause.OUTSIDE if outcome != "succeeded" and _has_crashed(session, job):
            return Charging.WHOLE_HOLD
        case Cause.OUTSIDE:
            return Charging.STARTED_PART


def _has_crashed(session: Session, job: Job) -> bool:
    crashes = select(func.count()).where(Attempt.job_id == job.id, Attempt.status == "crashed")
    return bool(session.scalar(crashes))


def settle(session: Session, settlement: Settlement) -> None:
    """Ends the job and moves its hold, in the caller's transaction."""
    job = settlement.job
    outcome, failure, charge = settlement.outcome, settlement.failure, settlement.charge
    if settlement.withholds:
        _withhold(session, job)
    waiting = waiting_for(session, job)
    leave_queue(session, job)
    if failure is not None:
        failures.note(session, job, failure)
        failure = failures.told(job, failure)
    job.status, job.failure, job.finished_at = outcome, failure, whole_second()
    job.lease_until, job.lease_clock, job.worker = None, None, None
    ended = Ended(steps=job.steps_started).because(failure)
    if charge is not None:
        train, holdout = charge.train, charge.holdout
        spent = job.steps_started > 0 or charge != NO_UNITS
        if settlement.unheld:
            _spend(session, job, charge)
        elif spent and job.parent_id is not None:
            block_accounts.draw_all(
                session, job.id, study_id=job.parent_id, train=train, holdout=holdout, actor="worker"
            )
        elif spent:
            memo = memos.Settled(outcome=outcome)
            block_accounts.post_all(session, job.id, train=train, holdout=holdout, actor="worker", memo=memo)
        elif job.parent_id is None:
            block_accounts.void_all(session, job.id, actor="worker", memo=memos.Settled(outcome=outcome))
        ended = ended.model_copy(update={"charge": charge})
        if spent and job.parent_id is None:  # a study's certificate covers its trials
            want_certificate(session, job.id)
    append_event(session, job.id, outcome, ended)
    for job_id in waiting:
        notify(session, job_id)


def lacks_hold(session: Session, job: Job) -> bool:
    """Returns True if the job was admitted at a cost and its hold, or its study's, is not in the ledger: the ledger was
    changed from outside."""
    if Quoted.of(job.quote).charge.unit is None:  # public data
        return False
    return not block_accounts.held_on(session, job.parent_id or job.id)


def _spend(session: Session, job: Job, charge: Units) -> None:
    """Charges a job without a hold, as far as the budget goes. Its holds named the blocks that it reads, so every block
    pays, on its ledger with the unit of the job's price, or on the one that this ledger moved to."""
    dataset, unit = session.get_one(Dataset, job.dataset_id), Quoted.of(job.quote).charge.unit
    for member_id in block_accounts.family_of(session, dataset.parent_id or dataset.id):
        account = accounts.account_of(session, member_id)
        privacy_filter, train, holdout = filter_of(account.filter, account.order), charge.train, charge.holdout
        if privacy_filter.unit != unit:
            if unit != MOVES_FROM.unit:
                continue
            # The ledger of the job's price has moved to this one (decision 53).
            train, holdout = (MOVES_FROM.carried(each, privacy_filter) or 0 for each in (train, holdout))
        left = accounts.remaining_of(account)
        amounts = min(train, left["train"]), min(holdout, left["holdout"])
        if amounts == (0, 0):
            continue
        try:
            joining.spend(session, member_id, job.id, amounts, "worker", memos.Settled(outcome="failed"))
        except Conflict as closed:  # the account's row differs from its last entry: nothing is admitted there either
            logger.error("%s cannot be charged on %s: %s", job.id, member_id, closed)


def _withhold(session: Session, job: Job) -> None:
    """Removes models that this transaction was about to deliver."""
    models = session.scalars(select(Artifact).where(Artifact.job_id == job.id)).all()
    for model in models:
        session.delete(model)
    if models:
        discard(session, job.id)


def limit_of_running(session: Session, job_id: str) -> int | None:
    """Returns the limit of running jobs of the job's key; None for no limit."""
    return session.scalar(select(ApiKey.max_running_jobs).join(Job, Job.key_id == ApiKey.id).where(Job.id == job_id))


def waiting_for(session: Session, job: Job) -> list[str]:
    """Returns the queued jobs that this job's end, or pause, lets run: if its key has a limit, the key's first jobs,
    one for each place that is free without this job.

    Reads under the lock on the key's row. So it sees every claim that was refused because of this job, and a later
    claim sees that this job has ended.
    """
    limit = limit_of_running(session, job.id)
    if limit is None:
        return []
    session.get(ApiKey, job.key_id, with_for_update={"key_share": True}, populate_existing=True)
    conditions = (Job.key_id == job.key_id, Job.id != job.id, Job.study.is_(None))
    running = session.scalar(select(func.count()).select_from(Job).where(*conditions, Job.status.in_(ACTIVE))) or 0
    return _first_queued(session, job, limit - running)


def _first_queued(session: Session, but: Job, count: int) -> list[str]:
    """Returns the first queued jobs of a job's key without that job, in the order of claims.

    The queue's index has the key's jobs on each data set in that order, so that the first ones of each are read.
    """
    queued = (Job.key_id == but.key_id, *in_queue(Job))
    # PostgreSQL takes a plain condition for rarely true, and would sort all of them. Of a CASE it knows nothing.
    able = case((and_(IS_DUE, Job.id != but.id), true()), else_=false())
    heads = list[tuple[int, datetime, str]]()
    line = (Job.dataset_id, Job.lane)
    dataset, lane = "", ""
    while count > 0:
        nearest = ((Job.dataset_id == dataset, Job.lane > lane), (Job.dataset_id > dataset,))
        following = (
            session.execute(select(*line).where(*queued, *later).order_by(*line).limit(1)) for later in nearest
        )
        row = next((first for rows in following if (first := rows.one_or_none())), None)
        if row is None:
            break
        dataset, lane = row
        of_line = (*queued, Job.dataset_id == dataset, Job.lane == lane, able)
        place = select(Job.priority, Job.created_at, Job.id)
        rows = session.execute(place.where(*of_line).order_by(*IN_ORDER).limit(count))
        heads += ((-priority, created_at, job_id) for priority, created_at, job_id in rows)
    return [job_id for _, _, job_id in sorted(heads)[: max(0, count)]]


def _started_part(session: Session, job: Job, mechanism: MechanismConfig, hold: Units, released: Counter[str]) -> Units:
    """Returns the charge for the steps and scores that were started, at most the hold."""
    is_whole = job.steps_started == mechanism.training.steps
    train = hold.train if is_whole else _started_train(session, job, mechanism, released)
    on_holdout = [each.metric for each in mechanism.scores if each.account == "holdout"]
    counts = (sum(times[name] for name in on_holdout) for times in (released, _planned(mechanism)))
    return Units(train=min(train, hold.train), holdout=_released_charge(hold.holdout, *counts))


def _started_train(session: Session, job: Job, mechanism: MechanismConfig, released: Counter[str]) -> int:
    """Returns the price of the steps that were started, and of the scores on training records that were released."""
    account = session.get_one(Account, block_accounts.held_on(session, job.parent_id or job.id)[0])
    on_train = [
        each.model_copy(update={"times": released[each.metric]})
        for each in mechanism.scores
        if each.account == "train" and released[each.metric] > 0
    ]
    started = mechanism.started(started_training(session, job, mechanism.training), on_train)
    return filter_of(account.filter, account.order).charge(started, "train")


def _planned(mechanism: MechanismConfig) -> Counter[str]:
    """Counts how often each noisy sum may be released."""
    return Counter({each.metric: each.times for each in mechanism.scores})


def _released(session: Session, job_id: str) -> Counter[str]:
    """Counts how often each noisy sum was released. Exact scores of public records are free and not counted."""
    noisy = Metric.released_by.in_(("noisy_count", "noisy_sum"))
    counts = select(Metric.name, func.count()).where(Metric.job_id == job_id, noisy).group_by(Metric.name)
    return Counter({row[0]: row[1] for row in session.execute(counts)})


def _released_charge(hold: int, released: int, planned: int) -> int:
    """Returns the hold-out's charge for `released` of `planned` equal releases, rounded up."""
    return -(-hold * released // planned) if planned else 0
