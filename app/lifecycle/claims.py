"""Claims and leases: an attempt holds a job, and each of its writes proves that it still does.

A key may have a limit of running jobs. A claim over it leaves the job queued; the end of one of the key's jobs wakes
its next one (app.lifecycle.settle). Both hold the key's row while they check, so that no job misses its wake-up. Row
locks are taken in one order: study, job, key, account.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from sqlalchemy import Float, bindparam, func, insert, select, update
from sqlalchemy.orm import Session

from app.db.clock import ClockName, in_seconds
from app.db.models import ApiKey, Attempt, Job, table_of
from app.lifecycle import job_events, measures, study_states
from app.lifecycle.settle import Cause, limit_of_running
from app.lifecycle.states import ACTIVE, IS_DUE, append_event, enqueue, write_event
from core.contracts.stored_documents import Failure
from core.errors import StaleAttempt
from core.ids import whole_second

LONGEST_BACKOFF_S = 60.0
RENEW = (
    update(Job)
    .where(Job.id == bindparam("own_job"), Job.attempt == bindparam("own_attempt"), Job.status.in_(ACTIVE))
    .values(
        lease_until=in_seconds(bindparam("renewed_s", type_=Float(53))),
        lease_clock=ClockName(),
        ran_s=func.coalesce(bindparam("so_far_s", type_=Float(53)), Job.ran_s),
    )
    .returning(Job)
    .execution_options(synchronize_session=False, populate_existing=True)
)
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


def claim(session: Session, job_id: str, worker: str, lease_s: float, ranks: int = 1) -> Claim | None:
    """Takes a queued job by compare-and-set; None if it is not queued (a doubled or late message), or if its key has
    reached its limit of running jobs.

    PostgreSQL too needs no SELECT … FOR UPDATE SKIP LOCKED: the job is already chosen, so no claim searches the queue
    for a free one. Of two claims on one job, the second waits for the first's row lock (a millisecond), reads the row
    again and finds it running. SKIP LOCKED would hide a job whose row is locked for another reason, such as a cancel or
    an event.

    Args:
        ranks: how many processes it has room for there.
    """
    study_states.lock(session, job_id)
    if not _has_place(session, job_id):
        return None
    taken = session.execute(
        update(Job)
        .where(Job.id == job_id, Job.status == "queued", Job.study.is_(None), IS_DUE)
        .values(
            status="running",
            attempt=Job.attempt + 1,
            worker=worker,
            lease_until=in_seconds(lease_s),
            lease_clock=ClockName(),
            started_at=func.coalesce(Job.started_at, whole_second()),
            events=Job.events + 1,
        )
        .returning(Job.attempt, Job.traceparent, Job.events, Job.parent_id),
        execution_options={"synchronize_session": False},
    ).one_or_none()
    if taken is None:
        return None
    attempt, traceparent, event, study = taken
    begun = {"job_id": job_id, "number": attempt, "worker": worker, "status": "running", "started_at": whole_second()}
    session.execute(insert(table_of(Attempt)), begun | {"ranks": ranks})
    write_event(session, job_id, event, "attempt_started", job_events.AttemptStarted(attempt=attempt, worker=worker))
    if study is not None:
        study_states.note_start(session, study)
    return Claim(job_id, attempt, worker, traceparent, ranks)


def _has_place(session: Session, job_id: str) -> bool:
    """Returns True if the job's key may have one more running job. If there is a limit, locks the rows of both."""
    if limit_of_running(session, job_id) is None:
        return True
    job = session.scalars(
        select(Job).where(Job.id == job_id, Job.status == "queued").with_for_update(key_share=True)
    ).one_or_none()
    if job is None:
        return False
    key = session.get_one(ApiKey, job.key_id, with_for_update={"key_share": True}, populate_existing=True)
    mine = (
        select(func.count())
        .select_from(Job)
        .where(Job.key_id == key.id, Job.status.in_(ACTIVE), Job.study.is_(None))  # trials count, not their study
    )
    return key.max_running_jobs is None or (session.scalar(mine) or 0) < key.max_running_jobs


def fence(session: Session, own_claim: Claim, lease_s: float, ran_s: float | None = None) -> Job:
    """Renews the lease and proves that this attempt still holds the job. Each of its writes starts with this.

    Args:
        ran_s: seconds that the job has run, over all attempts.

    Raises:
        StaleAttempt: another attempt holds the job, or the job has ended. Nothing may be written.
    """
    values = {"own_job": own_claim.job_id, "own_attempt": own_claim.attempt, "renewed_s": lease_s, "so_far_s": ran_s}
    job = session.scalars(RENEW, values).one_or_none()
    if job is None:
        raise StaleAttempt("another attempt holds this job, or it has ended")
    return job


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
