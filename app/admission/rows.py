"""A priced job as rows: itself with its first event, its message and its audit entry, in one statement.

The statement locks the key's row too: from here to the commit the key's other submissions wait.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from app import tracing
from app.admission.division import stored
from app.admission.price import Priced
from app.admission.request import Request
from app.audit import record as audit
from app.contracts.stored import SaltedSteps
from app.db.models import AuditEntry, Job, JobEvent, Outbox, table_of
from app.db.together import Together, row_of, values_of
from app.db.trip import Reply, Trip
from app.ids import new_id, now
from app.keys.service import LOCKED
from app.lifecycle.events import Queued
from app.lifecycle.states import ANNOUNCE, event_row
from app.lifecycle.studies import begin
from app.privacy.prices import Charge, Price, StudyPrice

JOBS, EVENTS, OUTBOX, AUDIT = table_of(Job), table_of(JobEvent), table_of(Outbox), table_of(AuditEntry)
# The columns that a submission sets.
COLUMNS = (
    "id",
    "dataset_id",
    "declaration",
    "key_id",
    "idempotency_key",
    "request_sha256",
    "name",
    "status",
    "spec",
    "mechanism",
    "quote",
    "segments",
    "steps",
    "steps_started",
    "step",
    "warnings",
    "events",
    "created_at",
    "tags",
    "notes",
    "traceparent",
    "study",
)
UNSTARTED = {"attempt": 0, "ran_s": 0.0}
# The job's event is its first, and a webhook's one belongs to it. A study wakes no worker itself.
STUDY_PARTS = [
    row_of(JOBS, *COLUMNS, *UNSTARTED),
    row_of(EVENTS, "job_id", "seq", "type", "data", "created_at"),
    ANNOUNCE,
    row_of(AUDIT, "at", "action", "actor", "target", "address", "user_agent", "outcome", "details"),
]
WRITE_STUDY = Together(LOCKED, *STUDY_PARTS)
WRITE_JOB = Together(LOCKED, *STUDY_PARTS, row_of(OUTBOX, "topic", "job_id", "created_at"))


@dataclass(frozen=True)
class NewJob:
    """A job's row before it is written.

    Attributes:
        columns: the row's values, by COLUMNS. They count the first event already.
    """

    id: str
    columns: dict[str, Any]

    def job(self) -> Job:
        """Returns the row as an object outside any session."""
        return Job(**self.columns)


def new_job(request: Request, priced: Priced, idempotency_key: str) -> NewJob:
    """Builds the job's row: its price and what runs, as JSON."""
    job_id = new_id("job")
    checked, price = priced.checked, priced.price
    mechanism = price.mechanism if isinstance(price, Price) else None
    study = None
    if priced.study is not None and isinstance(price, StudyPrice):
        study = stored(priced.study, price)
    columns = {
        "id": job_id,
        "dataset_id": checked.facts.id,
        "declaration": checked.facts.declaration,
        "key_id": request.caller.id,
        "idempotency_key": idempotency_key,
        "request_sha256": request.digest,
        "name": checked.spec.name,
        "status": "queued",
        "spec": checked.spec.model_dump(mode="json"),
        "mechanism": mechanism.model_dump(mode="json") if mechanism else None,
        "quote": priced.quote.model_dump(mode="json"),
        "segments": (SaltedSteps(from_step=0, salt=secrets.token_hex(32), key_id=None),),
        "steps": len(priced.study.slots) if priced.study else checked.steps,
        "steps_started": 0,
        "step": 0,
        "warnings": list(checked.warnings),
        "events": 1,
        "created_at": now(),
        "tags": "",
        "notes": "",
        "traceparent": tracing.traceparent(),
        "study": study.model_dump(mode="json") if study else None,
    }
    return NewJob(job_id, columns)


def write(trip: Trip, job: NewJob, charge: Charge) -> Reply:
    """Writes the job with everything except its hold and a study's first trials.

    Returns:
        The caller's key, whose row is locked now: its other admissions wait for this transaction's end. None if there
        is none.
    """
    values = (
        {"key": job.columns["key_id"], "job": job.id, "event": 1}
        | values_of(JOBS, job.columns | UNSTARTED)
        | values_of(EVENTS, event_row(job.id, 1, "queued", Queued(charge=charge)))
        | values_of(AUDIT, audit.row_of_entry("job.submitted", job.id, dataset=job.columns["dataset_id"]))
    )
    if job.columns["study"] is not None:
        return trip.send(WRITE_STUDY, values)
    return trip.send(WRITE_JOB, values | values_of(OUTBOX, {"topic": "notify", "job_id": job.id, "created_at": now()}))


def begin_study(session: Session, job: NewJob) -> None:
    """Writes a study's first trials."""
    if job.columns["study"] is not None:
        begin(session, session.get_one(Job, job.id))
        session.flush()
