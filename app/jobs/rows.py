"""A new job's row: turns the plan and its price into the database's JSON columns."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from app import tracing
from app.contracts.stored import SaltedSteps
from app.db.models import Job
from app.ids import new_id, now
from app.jobs import study_quotes
from app.jobs.plans import Plan
from app.jobs.quotes import quote_of
from app.keys.service import Caller
from app.privacy.prices import Price, StudyPrice

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


def new_job(caller: Caller, planned: Plan, priced: Price | StudyPrice, idempotency_key: str, digest: str) -> NewJob:
    """Builds the job of a plan at its price.

    Args:
        digest: the request's digest, stored with the idempotency key.
    """
    job_id = new_id("job")
    mechanism = priced.mechanism if isinstance(priced, Price) else None
    study = None
    if planned.study is not None and isinstance(priced, StudyPrice):
        study = study_quotes.stored(planned.study, priced)
    columns = {
        "id": job_id,
        "dataset_id": planned.facts.id,
        "declaration": planned.facts.declaration,
        "key_id": caller.id,
        "idempotency_key": idempotency_key,
        "request_sha256": digest,
        "name": planned.spec.name,
        "status": "queued",
        "spec": planned.spec.model_dump(mode="json"),
        "mechanism": mechanism.model_dump(mode="json") if mechanism else None,
        "quote": quote_of(planned, priced).model_dump(mode="json"),
        "segments": (SaltedSteps(from_step=0, salt=secrets.token_hex(32), key_id=None),),
        "steps": len(planned.study.slots) if planned.study else planned.steps,
        "steps_started": 0,
        "step": 0,
        "warnings": list(planned.warnings),
        "events": 1,
        "created_at": now(),
        "tags": "",
        "notes": "",
        "traceparent": tracing.traceparent(),
        "study": study.model_dump(mode="json") if study else None,
    }
    return NewJob(job_id, columns)
