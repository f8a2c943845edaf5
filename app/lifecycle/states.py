"""The state machine of jobs: which status may follow which.

queued ──claim──▶ running ──▶ succeeded | failed
  ▲  │               │ ▲
  │  │ cancel        │ └ (blocks, digests, metrics: fenced by the attempt's number)
  │  ▼               ├─ cancel ──▶ cancelling ──▶ cancelled (its process is gone)
  │ cancelled        │
  └──── lease expired, worker stopped ┘
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import exists, insert, literal, select, update
from sqlalchemy.orm import Session

from app.contracts.events import ANNOUNCED, EventType
from app.db.models import Job, JobEvent, Outbox, Webhook, WebhookEvent
from app.errors import NotFound
from app.ids import now

ACTIVE = ("running", "cancelling")
FINISHED = ("succeeded", "cancelled", "failed")
NO_SUCH_JOB = "there is no such job"


def get_job(session: Session, job_id: str, *, lock: bool = False) -> Job:
    """The job; with `lock`, its row is held against claims and settlements until the transaction ends."""
    job = session.get(Job, job_id, with_for_update={"key_share": True} if lock else None, populate_existing=lock)
    if job is None:
        raise NotFound(NO_SUCH_JOB)
    return job


def append_event(session: Session, job_id: str, kind: EventType, data: dict[str, Any] | None = None) -> None:
    """Adds an event to the job's log, in the caller's transaction. Sequence numbers have no gaps."""
    seq = session.execute(
        update(Job).where(Job.id == job_id).values(events=Job.events + 1).returning(Job.events),
        execution_options={"synchronize_session": False},
    ).scalar_one()
    session.add(JobEvent(job_id=job_id, seq=seq, type=kind, data=data or {}, created_at=now()))
    if kind in ANNOUNCED:
        # Where there are webhooks at all; which of them are told, the relay finds out.
        listened = select(literal(job_id), literal(seq)).where(exists(select(Webhook.id).where(Webhook.enabled)))
        session.execute(insert(WebhookEvent).from_select(["job_id", "seq"], listened))


def ring(session: Session, job_id: str) -> None:
    """Asks the relay to ring a worker for this job, in the caller's transaction."""
    session.add(Outbox(topic="ring", job_id=job_id, created_at=now()))


def want_certificate(session: Session, job_id: str) -> None:
    session.add(Outbox(topic="certificate", job_id=job_id, created_at=now()))
