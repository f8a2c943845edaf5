"""The state machine of jobs.

queued ──claim──▶ running ──▶ succeeded | failed
  ▲  │               │ ▲
  │  │ cancel        │ └ (blocks, digests, metrics: fenced by the attempt's number)
  │  ▼               ├─ cancel ──▶ cancelling ──▶ cancelled (its process is gone)
  │ cancelled        ├─ pause ──▶ pausing ──▶ paused ──resume──▶ queued   (app.lifecycle.pausing)
  └──── lease expired, worker stopped ┘
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    SQLColumnExpression,
    String,
    bindparam,
    exists,
    insert,
    literal_column,
    not_,
    select,
    update,
)
from sqlalchemy.orm import Session

from app.db.clock import ClockName, in_seconds, none_or_passed
from app.db.models import Job, JobEvent, Outbox, Webhook, WebhookEvent, table_of
from app.db.statement_batch import Values
from app.lifecycle.job_events import Nothing
from core.contracts.base import Document
from core.contracts.devices import Kind
from core.contracts.event_kinds import ANNOUNCED, EventType
from core.contracts.runtime import MOST_PROCESSES
from core.errors import NotFound
from core.ids import now, whole_second

STOPPING = ("pausing", "cancelling")  # a person asked: its process ends at the next whole second
ACTIVE = ("running", *STOPPING)
IDLE = ("queued", "paused")  # on no worker
FINISHED = ("succeeded", "cancelled", "failed")


def among(column: SQLColumnExpression[Any], *words: str) -> ColumnElement[bool]:
    """Whether a column has one of a few words of our own, in a text that never changes: so PostgreSQL knows them when
    it plans the statement once for all values."""
    return column.bool_op("IN")(literal_column(f"({', '.join(repr(each) for each in words)})"))


def lanes(kind: Kind, limit: int) -> tuple[str, ...]:
    """The lanes (`Job.lane`) that so many ranks on a kind of device can serve.

    >>> lanes("cpu", 3)
    ('cpu:1', 'cpu:2', 'cpu:3')
    """
    return tuple(f"{kind}:{ranks}" for ranks in range(1, min(limit, MOST_PROCESSES) + 1))


def in_work(job: type[Job]) -> tuple[ColumnElement[bool], ...]:
    """The condition of the index of running jobs, in its words (see `in_queue`). Trials count, not their study."""
    return (~job.status.bool_op("NOT IN")(literal_column(f"{ACTIVE!r}")), job.study.is_(None))


def due_for(seconds: ColumnElement[float] | float) -> ColumnElement[bool]:
    """The condition that a queued job may be claimed since so many seconds."""
    return none_or_passed(Job.lease_until, seconds, Job.lease_clock)


# True for a queued job that may be claimed now; a job that was taken back waits a little.
IS_DUE = due_for(0.0)
NEEDS_GPU = among(Job.lane, *lanes("cuda", MOST_PROCESSES))  # of jobs that have not ended
IN_ORDER = (Job.priority.desc(), Job.created_at, Job.id)  # of one key's jobs
WAITS: ColumnElement[str] = literal_column("'queued'")
NOTHING = Nothing()
NO_SUCH_JOB = "there is no such job"
COUNT_EVENT = (
    update(Job)
    .where(Job.id == bindparam("own_job"))
    .values(events=Job.events + 1)
    .returning(Job.events)
    .execution_options(synchronize_session=False)
)
INSERT_EVENT, INSERT_DUE = insert(table_of(JobEvent)), insert(table_of(Outbox))
# Only if there are webhooks at all; the relay decides which ones to call. A study's trials are not announced.
ANNOUNCE = insert(table_of(WebhookEvent)).from_select(
    ["job_id", "seq"],
    select(bindparam("job", type_=String), bindparam("event", type_=BigInteger)).where(
        exists(select(table_of(Webhook).c.id).where(table_of(Webhook).c.enabled)),
        ~exists(
            select(table_of(Job).c.id).where(
                table_of(Job).c.id == bindparam("job", type_=String), table_of(Job).c.parent_id.is_not(None)
            )
        ),
    ),
)


def in_queue(job: type[Job]) -> tuple[ColumnElement[bool], ...]:
    """The condition of the queue's index, in its words: SQLite would take an index of the status for an equation."""
    return (not_(job.status.bool_op("<>")(WAITS)), job.study.is_(None))


def get_job(session: Session, job_id: str, *, lock: bool = False) -> Job:
    """Returns the job; with `lock`, holds its row against claims and settlements until the transaction ends.

    Raises:
        NotFound: there is no such job.
    """
    job = session.get(Job, job_id, with_for_update={"key_share": True} if lock else None, populate_existing=lock)
    if job is None:
        raise NotFound(NO_SUCH_JOB)
    return job


def append_event(session: Session, job_id: str, kind: EventType, document: Document = NOTHING) -> None:
    """Adds an event to the job's log, in the caller's transaction. Sequence numbers have no gaps.

    Args:
        document: what the event says: a document of app.lifecycle.job_events.
    """
    seq = session.execute(COUNT_EVENT, {"own_job": job_id}).scalar_one()
    write_event(session, job_id, seq, kind, document)


def write_event(session: Session, job_id: str, seq: int, kind: EventType, document: Document) -> None:
    """Writes an event that the job's row counts already, in the caller's transaction."""
    session.execute(INSERT_EVENT, event_row(job_id, seq, kind, document))
    if kind in ANNOUNCED:
        session.execute(ANNOUNCE, {"job": job_id, "event": seq})


def event_row(job_id: str, seq: int, kind: EventType, document: Document) -> Values:
    """An event's row, for a statement that writes it."""
    data = document.model_dump(mode="json")
    return {"job_id": job_id, "seq": seq, "type": kind, "data": data, "created_at": whole_second()}


def notify(session: Session, job_id: str) -> None:
    """Asks the relay to wake a worker for this job, in the caller's transaction."""
    session.execute(INSERT_DUE, {"topic": "notify", "job_id": job_id, "created_at": now()})


def enqueue(session: Session, job: Job, wait_s: float = 0.0) -> None:
    """Queues a job that no worker has any more, in the caller's transaction.

    Args:
        wait_s: how long until it may be claimed; the sweeper then wakes a worker for it.
    """
    job.status, job.worker, job.notified_at = "queued", None, None
    job.lease_until, job.lease_clock = in_seconds(wait_s), ClockName()
    if not wait_s:
        notify(session, job.id)


def discard(session: Session, job_id: str) -> None:
    """Asks the relay to delete the job's files."""
    session.add(Outbox(topic="discard", job_id=job_id, created_at=now()))


def want_certificate(session: Session, job_id: str) -> None:
    """Asks the relay to issue the job's certificate, in the caller's transaction."""
    session.add(Outbox(topic="certificate", job_id=job_id, created_at=now()))
