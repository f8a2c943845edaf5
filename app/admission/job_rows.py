"""A priced job as rows: itself with its first event, its message and its audit entry, in one statement.

The statement locks the key's row too: from here to the commit the key's other submissions wait.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from app import tracing
from app.audit import record as audit
from app.db.models import AuditEntry, Job, JobEvent, Outbox, table_of
from app.db.statement_batch import Together, row_of, values_of
from app.db.trip import Reply, Trip
from app.keys.service import LOCKED
from app.lifecycle.job_events import Queued
from app.lifecycle.states import ANNOUNCE, event_row
from app.lifecycle.study_states import begin
from core.contracts.stored_documents import SaltedSteps
from core.ids import new_id, now
from core.privacy.prices import Charge

JOBS, EVENTS, OUTBOX, AUDIT = table_of(Job), table_of(JobEvent), table_of(Outbox), table_of(AuditEntry)


@dataclass(frozen=True, kw_only=True)
class NewJob:
    """A job's row before it is written: the columns that a submission sets. They count the first event already."""

    id: str = field(default_factory=lambda: new_id("job"))
    dataset_id: str
    declaration: int
    key_id: str
    idempotency_key: str
    request_sha256: str
    name: str
    status: str = "queued"
    spec: dict[str, Any]
    mechanism: dict[str, Any] | None
    quote: dict[str, Any]
    segments: tuple[SaltedSteps, ...] = field(
        default_factory=lambda: (SaltedSteps(from_step=0, salt=secrets.token_hex(32), key_id=None),)
    )
    steps: int
    steps_started: int = 0
    step: int = 0
    warnings: list[str]
    events: int = 1
    created_at: datetime = field(default_factory=now)
    tags: str = ""
    notes: str = ""
    traceparent: str | None = field(default_factory=tracing.traceparent)
    study: dict[str, Any] | None

    def job(self) -> Job:
        """Returns the row as an object outside any session."""
        return Job(**vars(self))


UNSTARTED = {"attempt": 0, "ran_s": 0.0}
# The job's event is its first, and a webhook's one belongs to it. A study wakes no worker itself.
STUDY_PARTS = [
    row_of(JOBS, *(each.name for each in fields(NewJob)), *UNSTARTED),
    row_of(EVENTS, "job_id", "seq", "type", "data", "created_at"),
    ANNOUNCE,
    row_of(AUDIT, "at", "action", "actor", "target", "address", "user_agent", "outcome", "details"),
]
WRITE_STUDY = Together(LOCKED, *STUDY_PARTS)
WRITE_JOB = Together(LOCKED, *STUDY_PARTS, row_of(OUTBOX, "topic", "job_id", "created_at"))


def write(trip: Trip, job: NewJob, charge: Charge) -> Reply:
    """Writes the job with everything except its hold and a study's first trials.

    Returns:
        The caller's key, whose row is locked now: its other admissions wait for this transaction's end. None if there
        is none.
    """
    values = (
        {"key": job.key_id, "job": job.id, "event": 1}
        | values_of(JOBS, vars(job) | UNSTARTED)
        | values_of(EVENTS, event_row(job.id, 1, "queued", Queued(charge=charge)))
        | values_of(AUDIT, audit.row_of_entry("job.submitted", job.id, dataset=job.dataset_id))
    )
    if job.study is not None:
        return trip.send(WRITE_STUDY, values)
    return trip.send(WRITE_JOB, values | values_of(OUTBOX, {"topic": "notify", "job_id": job.id, "created_at": now()}))


def begin_study(session: Session, job: NewJob) -> None:
    """Writes a study's first trials."""
    if job.study is not None:
        begin(session, session.get_one(Job, job.id))
        session.flush()
