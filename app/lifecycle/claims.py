"""Claims and leases: an attempt holds a job, and each of its writes proves that it still does.

A key may have a limit of running jobs. A claim over it leaves the job queued; the end of one of the key's jobs wakes
its next one (app.lifecycle.settle). Both hold the key's row while they check, so that no job misses its wake-up. Row
locks are taken in one order: study, job, key, account.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal, get_args

from sqlalchemy import Float, Row, String, and_, bindparam, func, select, update
from sqlalchemy.orm import Session

from app.db.clock import ClockName, in_seconds
from app.db.models import ApiKey, Attempt, Job, JobEvent, table_of
from app.db.statement_batch import Together, Values, row_of, values_of
from app.db.trip import Trip, round_trip
from app.lifecycle import job_events, measures, study_states
from app.lifecycle.settle import Cause
from app.lifecycle.states import ACTIVE, ANNOUNCE, IS_DUE, among, append_event, enqueue, event_row
from core.contracts.stored_documents import Failure
from core.errors import StaleAttempt
from core.ids import whole_second

LONGEST_BACKOFF_S = 60.0
JOBS, KEYS, ATTEMPTS, EVENTS = (table_of(each) for each in (Job, ApiKey, Attempt, JobEvent))
IS_HELD = and_(JOBS.c.id == bindparam("own_job"), JOBS.c.attempt == bindparam("own_attempt"), JOBS.c.status.in_(ACTIVE))
LEASE: Values = {
    "lease_until": in_seconds(bindparam("renewed_s", type_=Float(53))),
    "lease_clock": ClockName(),
    "ran_s": func.coalesce(bindparam("so_far_s", type_=Float(53)), JOBS.c.ran_s),
}
RENEW = (
    update(Job)
    .where(IS_HELD)
    .values(**LEASE)
    .returning(Job)
    .execution_options(synchronize_session=False, populate_existing=True)
)
# Without its documents: a block's start and a heartbeat need none.
RENEW_ALONE = (
    update(JOBS)
    .where(IS_HELD)
    .values(**LEASE)
    .returning(*(JOBS.c[each] for each in ("id", "status", "steps", "steps_started", "step", "segments")))
)
_RUNS = JOBS.alias("runs")
OF_JOB = select(JOBS.c.key_id).where(JOBS.c.id == bindparam("job", type_=String)).scalar_subquery()
# Locked in this order. Of a job that is a trial, its study; a key that has a limit.
STUDY = (
    select(_RUNS.c.id)
    .where(_RUNS.c.id == select(JOBS.c.parent_id).where(JOBS.c.id == bindparam("job", type_=String)).scalar_subquery())
    .with_for_update(key_share=True)
)
_READ = ("id", "parent_id", "device", "threads", "spec", "attempt", "events", "traceparent")
QUEUED = (
    select(*(JOBS.c[each] for each in _READ))
    .where(JOBS.c.id == bindparam("job", type_=String), JOBS.c.status == "queued", JOBS.c.study.is_(None), IS_DUE)
    .with_for_update(key_share=True)
)
LIMIT = (
    select(KEYS.c.max_running_jobs.label("most"))
    .where(KEYS.c.id == OF_JOB, KEYS.c.max_running_jobs.is_not(None))
    .with_for_update(key_share=True)
)
# Trials count, not their study.
RUNNING = select(func.count().label("count")).where(
    _RUNS.c.key_id == OF_JOB, among(_RUNS.c.status, *ACTIVE), _RUNS.c.study.is_(None)
)
TAKE = Together(
    update(JOBS)
    .where(JOBS.c.id == bindparam("job", type_=String))
    .values(
        status="running",
        attempt=JOBS.c.attempt + 1,
        worker=bindparam("at_worker", type_=String),
        lease_until=in_seconds(bindparam("lease_s", type_=Float(53))),
        lease_clock=ClockName(),
        started_at=func.coalesce(JOBS.c.started_at, bindparam("at")),
        events=JOBS.c.events + 1,
    )
    .returning(JOBS.c.id),
    row_of(ATTEMPTS, "job_id", "number", "worker", "status", "started_at", "ranks"),
    row_of(EVENTS, "job_id", "seq", "type", "data", "created_at"),
    ANNOUNCE,
)
STALE = "another attempt holds this job, or it has ended"
LAPSES = 10  # so many lapsed leases end a job where one crash would
Gone = Literal["lost", "lapsed", "crashed"]


@dataclass(frozen=True)
class Claim:
    """A worker's claim on a job. `attempt` is the fencing token: it grows with every claim. `traceparent` is where the
    job's trace goes on, if it has one. `ranks` are how many processes the attempt has room for."""

    job_id: str
    attempt: int
    worker: str
    traceparent: str | None = None
    ranks: int = 1


class Queued:
    """A job that is to be claimed, under the locks that a claim needs; read it after the trip that asks for it."""

    def __init__(self, trip: Trip, job_id: str) -> None:
        values = {"job": job_id}
        trip.send(STUDY, values)
        self._job, self._limit = trip.send(QUEUED, values), trip.send(LIMIT, values)
        self._running = trip.send(RUNNING, values)

    @property
    def job(self) -> SimpleNamespace | None:
        """Its row; None if it is not queued (a doubled or late message), or if it has still to wait."""
        return self._job.one_or_none()

    @property
    def has_place(self) -> bool:
        """True if the job's key may have one more running job."""
        limit, running = self._limit.one_or_none(), self._running.one_or_none()
        return limit is None or (running is not None and running.count < limit.most)


def claim(session: Session, job_id: str, worker: str, lease_s: float, ranks: int = 1) -> Claim | None:
    """Takes a queued job; None if it is not queued, or if its key has reached its limit of running jobs.

    PostgreSQL too needs no SKIP LOCKED: the job is already chosen, so no claim searches the queue for a free one. Of
    two claims on one job, the second waits for the first's row lock (a millisecond), reads the row again and finds it
    running: then it knows of the first one's turn. SKIP LOCKED would hide that turn, and a job whose row is locked for
    another reason, such as a cancel or an event.

    Args:
        ranks: how many processes it has room for there.
    """
    session.flush()
    connection = session.connection()
    with round_trip(connection) as trip:
        queued = Queued(trip, job_id)
    job = queued.job
    if job is None or not queued.has_place:
        return None
    with round_trip(connection) as trip:
        return take(trip, job, worker, lease_s, ranks)


def take(trip: Trip, job: SimpleNamespace, worker: str, lease_s: float, ranks: int) -> Claim:
    """Takes a job whose row `Queued` has locked."""
    attempt, event, at = job.attempt + 1, job.events + 1, whole_second()
    begun = {"job_id": job.id, "number": attempt, "worker": worker, "status": "running", "started_at": at}
    started = job_events.AttemptStarted(attempt=attempt, worker=worker)
    values = (
        {"job": job.id, "at_worker": worker, "lease_s": lease_s, "at": at, "event": event}
        | values_of(ATTEMPTS, begun | {"ranks": ranks})
        | values_of(EVENTS, event_row(job.id, event, "attempt_started", started))
    )
    trip.send(TAKE, values)
    if job.parent_id is not None:
        trip.send(study_states.STARTED, {"study_id": job.parent_id, "at": at})
    return Claim(job.id, attempt, worker, job.traceparent, ranks)


def fence(session: Session, own_claim: Claim, lease_s: float, ran_s: float | None = None) -> Job:
    """Renews the lease and proves that this attempt still holds the job. Each of its writes starts with this.

    Args:
        ran_s: seconds that the job has run, over all attempts.

    Raises:
        StaleAttempt: another attempt holds the job, or the job has ended. Nothing may be written.
    """
    job = session.scalars(RENEW, _lease_of(own_claim, lease_s, ran_s)).one_or_none()
    if job is None:
        raise StaleAttempt(STALE)
    return job


def fence_alone(session: Session, own_claim: Claim, lease_s: float, ran_s: float | None) -> Row[Any]:
    """As `fence`, and reads no document of the job: its `status`, its steps and its segments."""
    row = session.connection().execute(RENEW_ALONE, _lease_of(own_claim, lease_s, ran_s)).one_or_none()
    if row is None:
        raise StaleAttempt(STALE)
    return row


def _lease_of(own_claim: Claim, lease_s: float, ran_s: float | None) -> Values:
    return {"own_job": own_claim.job_id, "own_attempt": own_claim.attempt, "renewed_s": lease_s, "so_far_s": ran_s}


def end_attempt(session: Session, job: Job, status: str) -> None:
    """Records the end of the job's current attempt, and counts its time for the job's key."""
    ended = whole_second()
    began = session.scalar(
        update(Attempt)
        .where(Attempt.job_id == job.id, Attempt.number == job.attempt)
        .values(status=status, ended_at=ended)
        .returning(Attempt.started_at)
    )
    if began is not None:
        # Whole seconds, as every caller who sees the job sees them.
        ran = max(0.0, (ended - began).total_seconds())
        measures.count_within(session, measures.KEY_SECONDS, job.key_id, amount=ran)


def give_back(session: Session, job: Job, outcome: Gone, max_attempts: int) -> None:
    """Queues the job of a gone attempt again; a replay under the same keys is identical and free.

    `lost`: the worker was stopped, or what it needs was away. That cause is external, so the job never fails for it,
    however often it happens. `lapsed`: nobody renewed its lease, as the worker died or cannot reach the database, or
    the attempt has ended it; or its ranks on several machines cannot reach each other; after LAPSES times
    `max_attempts` the job fails as one that crashed. `crashed`: the attempt's own process died under a living worker
    (the kernel may have killed it for memory that private lengths needed); after `max_attempts` the job fails and
    nothing is released. A job that was being cancelled is cancelled, and one that was being paused is paused. From the
    second time on a job waits before it may be claimed again.
    """
    end_attempt(session, job, outcome)
    # The event does not say how: a crash may depend on private data.
    append_event(session, job.id, "attempt_lost", job_events.AttemptLost(attempt=job.attempt))
    if job.status == "cancelling":
        study_states.end(session, job, "cancelled")
        return
    ended = session.execute(
        select(Attempt.status, func.count())
        .where(Attempt.job_id == job.id, Attempt.status.in_(get_args(Gone)))
        .group_by(Attempt.status)
    )
    gone = {row[0]: row[1] for row in ended}
    limits = {"lost": math.inf, "lapsed": LAPSES * max_attempts, "crashed": max_attempts}
    if gone[outcome] >= limits[outcome]:
        message = f"{gone[outcome]} attempts ended without a result ({outcome})"
        failure = Failure(code="worker-crashed", message=message)
        study_states.end(session, job, "failed", failure=failure, cause=Cause.ERROR)
        return
    if job.status == "pausing":
        study_states.park(session, job)
        return
    enqueue(session, job, backoff_s(sum(gone.values())))


def backoff_s(gone: int) -> float:
    """Returns the seconds that a job waits after `gone` attempts without an end of its own: 0, 1, 2, 4, …

    >>> [backoff_s(gone) for gone in range(1, 5)]
    [0.0, 1.0, 2.0, 4.0]
    """
    return 0.0 if gone < 2 else min(2.0 ** min(gone - 2, 30), LONGEST_BACKOFF_S)
