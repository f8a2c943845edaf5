"""Reports a failed job: callers learn only what cannot depend on private data, the operator learns the cause.

The failure itself may depend on private data, so the whole hold is spent (app.lifecycle.settle). Its cause may reveal
more. Too little memory depends on the number and length of records. A broken invariant, a crashed process or an
unforeseen error may depend on a single record. Callers see all of these as `internal`. The cause is in the worker's
log, in the audit log and in /metrics, which are for admins.
"""

from __future__ import annotations

import logging

from sqlalchemy.orm import Session

from app.audit import record as audit
from app.db.models import Job
from core.contracts.stored_documents import Failure

logger = logging.getLogger(__name__)

# The causes that callers of a job on private data may learn, each with the reason why no record can cause it.
TOLD = {
    "data-damaged": "a stored file is missing, or its hash differs from its registration: the storage is the cause",
    "extractor-missing": "a file in the worker's models root: read before any record",
    "extractor-former": "a file in the worker's models root: read before any record",
    "model-missing": "a file in the worker's models root: read before any record",
    "model-unfit": "the check of the model's layers on random records, before any record is read",
    "model-too-large": "a processor's memory, for the model and random records, before any record is read",
    "data-too-large": "a processor's memory, for as many records as are declared, before any record is read",
    "storage": "a file of the job could not be written: its size is public, or follows from released, paid numbers",
    "time-limit": "a requested or configured limit, checked at whole seconds: the job's times show it already",
    "superseded": "the job's stored numerics are of an earlier release: read before any record",
    "numerics": "the self-test, on random inputs, before any record is read",
}
# What a caller can do about each: docs/errors.md is written from it.
ADVICE = {
    "data-damaged": "Tell the operator: a file is missing or damaged.",
    "extractor-missing": "Tell the operator, who adds it to the models root; or name another.",
    "extractor-former": "Tell the operator, who adds it to the models root anew; or name another.",
    "model-missing": "Tell the operator, who adds it to the models root; or name another.",
    "model-unfit": "Train another model: the message names the part that has no exact per-record gradients.",
    "model-too-large": "Train a smaller model, or have the operator raise `SCRIMP_ATTEMPT_MEMORY_BYTES`.",
    "data-too-large": "Have the operator raise `SCRIMP_ATTEMPT_MEMORY_BYTES`: the declared records do not fit.",
    "storage": "Tell the operator: the storage is full or away.",
    "time-limit": "Ask for fewer steps or a larger `runtime.max_duration_s`; the key and the service have limits too.",
    "superseded": "Submit the job again.",
    "numerics": "Ask for a processor (`runtime.device`). If it was one, tell the operator.",
    "internal": "Tell the operator the job's id. Until the logs have named the cause, the same job may fail again, at "
    "the same cost.",
    "trial-failed": "Look at the trial that failed: it has a code of its own.",
}
INTERNAL = Failure(
    code="internal",
    message="The attempt failed. Tell the operator the job's id: the logs name the cause. Until it is known, the same "
    "job may fail again, at the same cost.",
)


def told(job: Job, failure: Failure) -> Failure:
    """Returns the failure as callers see it: code and message."""
    return failure if job.mechanism is None or failure.code in TOLD else INTERNAL


def note(session: Session, job: Job, failure: Failure) -> None:
    """Reports the cause to the operator, in the transaction that ends the job."""
    logger.error("job %s failed: %s", job.id, failure.code)
    audit.record(session, "job.failed", job.id, outcome="failed", dataset=job.dataset_id, because=failure.code)
