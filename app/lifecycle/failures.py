"""What is told of a failed job: to callers what cannot depend on private data, to the operator its cause.

That a job failed at all may depend on private data: so its whole hold is spent (app.lifecycle.settle). Why it failed is
one more thing. Too little memory follows from how many records there are and how long; a broken invariant, a process
that crashed and whatever nobody thought of may follow from a single one. All of these are `internal` to callers. The
cause stands in the worker's log, in the audit log and in /metrics, which are for admins.
"""

from __future__ import annotations

import logging
from typing import Any

from sqlalchemy.orm import Session

from app.audit import record as audit
from app.db.models import Job

logger = logging.getLogger(__name__)

# Why a job on private data may be said to have failed, each with the reason why no record can have caused it.
TOLD = {
    "data-damaged": "a stored file is missing, or its hash is not the one of its registration: the storage's doing",
    "extractor-missing": "a file in the worker's models root: read before any record",
    "model-missing": "a file in the worker's models root: read before any record",
    "storage": "the model's file could not be written: its size is public",
    "time-limit": "a limit that was asked for or set, looked at at whole seconds: the job's times say as much",
    "numerics": "the self-test, on random inputs, before any record is read",
}
INTERNAL = {"code": "internal", "message": "The attempt failed. The operator's logs name the cause."}


def told(job: Job, failure: dict[str, Any]) -> dict[str, Any]:
    """The failure as callers see it: code and sentence."""
    return failure if job.mechanism is None or failure["code"] in TOLD else INTERNAL


def note(session: Session, job: Job, failure: dict[str, Any]) -> None:
    """Tells the operator the cause, in the transaction that ends the job."""
    logger.error("job %s failed: %s", job.id, failure["code"])
    audit.record(session, "job.failed", job.id, outcome="failed", dataset=job.dataset_id, because=failure["code"])
