"""/v1/jobs: admits, labels, pauses, resumes and cancels jobs; thin routes over app.admission and app.jobs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Request, Response

from app.admission import hold as holds
from app.grants.service import require_job
from app.jobs import labels, repository, steering
from app.jobs.quote_routes import Admissions, priced
from app.jobs.schemas import (
    JobView,
)
from app.keys.auth import CurrentKey
from app.keys.service import Caller
from app.lifecycle.queue.presence import GpuWorkers
from app.web import examples
from app.web.deps import Db, Gpus, RecordedHeads, gpus_of
from app.web.responses import as_json
from app.web.route_operation import LOCATION, Operation
from core import leaves
from core.contracts.job_spec import JobSpec

router = APIRouter(prefix="/v1", tags=["jobs"])
IdempotencyKey = Annotated[
    str,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="A fresh random string for each job; the same string again returns the same job.",
    ),
]


@router.post("/jobs", status_code=201, operation_id="submit_job", response_model=JobView)
@Operation(
    "The admitted job; or the job that this Idempotency-Key made before.",
    name="submit_job",
    audience="train",
    leaves=leaves.ELSEWHERE,
    command="jobs submit",
    audit="job.submitted",
    problems=(
        "not-found",
        "forbidden",
        "budget-exceeded",
        "policy-exceeded",
        "idempotency-key-reused",
        "head-pending",
        "too-many-jobs",
        "ledger-behind",
        "content-deleted",
        "limit-exceeded",
        "not-ready",
    ),
    headers={**LOCATION, "Idempotent-Replayed": "?`true` if an earlier request made the job."},
    requests=examples.JOB_SPECS,
    answer=examples.SUBMIT_JOB_ANSWER,
)
async def submit(
    request: Request, spec: JobSpec, admission: Admissions, caller: CurrentKey, idempotency_key: IdempotencyKey
) -> Response:
    """Admits a job if its whole cost fits. The same Idempotency-Key with the same spec returns the same job."""

    def answer() -> Response:
        submitted, gpus = holds.submit(admission, caller, spec, idempotency_key), gpus_of(request)
        headers = {"Location": f"/v1/jobs/{submitted.id}"}
        if submitted.job is not None:
            return as_json(JobView.of_job(submitted.job, {part: [] for part in repository.PARTS}, gpus), 201, headers)
        return as_json(_view(admission.db, caller, submitted.id, gpus), 201, headers | {"Idempotent-Replayed": "true"})

    return await priced(request, answer)


@router.patch("/jobs/{job_id}")
@Operation(
    "The job, with its tags and notes.",
    audience="own",
    leaves=leaves.ELSEWHERE,
    command="jobs label",
    audit="job.labelled",
    problems=("forbidden",),
    requests={"two tags and a note": {"tags": ["baseline", "paper"], "notes": "The learning rate may be too large."}},
    answer={**examples.JOB_VIEW, "tags": ["baseline", "paper"], "notes": "The learning rate may be too large."},
)
def label_job(job_id: str, body: labels.JobLabels, db: Db, caller: CurrentKey, gpus: Gpus) -> JobView:
    """Changes a job's tags and notes; for who may cancel it. They are no part of its certificate."""
    with db.write() as session:
        labels.edit(session, caller, job_id, body)
    return _view(db, caller, job_id, gpus)


@router.post("/jobs/{job_id}/cancel", status_code=202)
@Operation(
    "The job, cancelled or about to be.",
    audience="own",
    leaves=leaves.ELSEWHERE,
    command="jobs cancel",
    audit="job.cancelled",
    problems=("forbidden", "wrong-state"),
)
def cancel_job(job_id: str, db: Db, heads: RecordedHeads, caller: CurrentKey, gpus: Gpus) -> JobView:
    """Stops a job. Started steps stay charged; the rest of the hold is released."""
    steering.cancel(db, caller, job_id, heads)
    return _view(db, caller, job_id, gpus)


@router.post("/jobs/{job_id}/pause", status_code=202)
@Operation(
    "The job, paused or about to be.",
    audience="own",
    leaves=leaves.ELSEWHERE,
    command="jobs pause",
    audit="job.paused",
    problems=("forbidden", "wrong-state"),
)
def pause_job(job_id: str, db: Db, caller: CurrentKey, gpus: Gpus) -> JobView:
    """Pauses a job: it leaves its worker within a second and keeps its hold. It goes on when it is resumed."""
    steering.pause(db, caller, job_id)
    return _view(db, caller, job_id, gpus)


@router.post("/jobs/{job_id}/resume", status_code=202)
@Operation(
    "The job, queued or running.",
    audience="own",
    leaves=leaves.ELSEWHERE,
    command="jobs resume",
    audit="job.resumed",
    problems=("forbidden", "wrong-state"),
)
def resume_job(job_id: str, db: Db, caller: CurrentKey, gpus: Gpus) -> JobView:
    """Lets a paused job go on from its checkpoint. Later steps are repeated bit for bit, free of charge."""
    steering.resume(db, caller, job_id)
    return _view(db, caller, job_id, gpus)


def _view(db: Db, caller: Caller, job_id: str, gpus: GpuWorkers) -> JobView:
    with db.read() as session:
        job = require_job(session, caller, job_id)
        return JobView.of_job(job, repository.details(session, [job_id])[job_id], gpus)
