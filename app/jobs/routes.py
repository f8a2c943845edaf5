"""/v1/quotes and /v1/jobs: thin routes over app.admission and app.jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from email.utils import format_datetime
from functools import partial
from typing import Annotated, Any, Literal, TypeVar, cast

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import FileResponse
from sqlalchemy import ColumnElement, Row, and_
from sqlalchemy.orm import Session

from app.admission import forecast as forecasts
from app.admission import hold as holds
from app.admission import sweep as sweeps
from app.admission.forecast import Forecast
from app.admission.quote import Quote
from app.admission.request import Limits
from app.admission.service import Admission
from app.admission.sweep import SweepView
from app.approvals.service import require_egress
from app.audit import record as audit
from app.db.engine import Database
from app.db.models import Job
from app.grants.service import check_job, require, require_job, visible
from app.hpo.stored import StoredStudy
from app.jobs import artifacts, labels, repository, steering
from app.jobs.certified import require_certificate
from app.jobs.polling import Polled, job_of
from app.jobs.rendering import job_json, page_json
from app.jobs.repository import SHOWN_AS_TEXT
from app.jobs.schemas import (
    CertificateDocument,
    EventList,
    EventView,
    JobList,
    JobView,
    MetricList,
    MetricView,
)
from app.jobs.stream import EventStream, follow
from app.jobs.trials import TrialList, trials
from app.keys.auth import CurrentKey, admitted, identified, require_some_key, token_in
from app.keys.service import Caller, id_in
from app.lifecycle.queue.presence import GpuWorkers
from app.pricing.service import PricingService
from app.storage import objects
from app.web import examples
from app.web.answers import as_json
from app.web.deps import Db, Gpus, RecordedHeads, ServiceSettings, database_of, get_pricing, gpus_of
from app.web.examples import EVENT_STREAM
from app.web.headers import is_head
from app.web.operations import LOCATION, NOTHING, Operation
from app.web.pagination import After, Limit, decode_cursor, decode_moment, encode_cursor
from app.web.threads import in_thread
from core import leaves
from core.contracts.base import NO_NUL
from core.contracts.job_spec import JobSpec
from core.contracts.sweep import Sweep
from core.errors import NotFound
from core.ids import rfc3339

router = APIRouter(prefix="/v1", tags=["jobs"])
forecast_router = APIRouter(prefix="/v1/datasets/{dataset_id}/ledger", tags=["ledger"])  # it prices, like a quote
Pricing = Annotated[PricingService, Depends(get_pricing)]
Status = Literal["queued", "running", "pausing", "paused", "cancelling", "cancelled", "succeeded", "failed"]
Searched = Annotated[
    str | None,
    Query(max_length=200, pattern=NO_NUL, description="A part of the job's name, or the beginning of its id."),
]
OfTag = Annotated[str | None, Query(max_length=40, pattern=NO_NUL, description="Only jobs with this tag.")]
Order = Annotated[repository.JobOrder, Query(description="By the time of submission, or by name.")]
Sequence = Annotated[int, Query(ge=0, le=2**53, description="The sequence number seen last.")]
IdempotencyKey = Annotated[
    str,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="A fresh random string for each job; the same string again returns the same job.",
    ),
]
Responses = dict[int | str, dict[str, Any]]
# Of routes that look the key up themselves: a dependency would cost a tenth of the request, or another thread.
KEYED: dict[str, list[dict[str, list[str]]]] = {"security": [{"HTTPBearer": []}]}
PROBLEM = {"$ref": "#/components/schemas/Problem"}
STREAM: Responses = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}, "example": EVENT_STREAM}}}}
FILE: Responses = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}},
    206: {"description": "The part of the file that the Range header asked for."},
    416: {"description": "The file has no such range.", "content": {"application/problem+json": {"schema": PROBLEM}}},
}


T = TypeVar("T")


async def _priced(request: Request, work: Callable[[], T]) -> T:
    """Runs work that may wait for prices in its own threads, so that waiting keys do not block other requests."""
    return await to_thread.run_sync(work, limiter=cast(CapacityLimiter, request.app.state.pricing_threads))


async def get_admission(db: Db, pricing: Pricing, settings: ServiceSettings, heads: RecordedHeads) -> Admission:
    return Admission(db, pricing, heads, Limits.of(settings))


Admissions = Annotated[Admission, Depends(get_admission)]


@router.post("/quotes", operation_id="quote_job", response_model=Quote)
@Operation(
    "The price.",
    name="quote_job",
    audience="train",
    leaves=leaves.PLANNED,
    command="quote",
    audit=NOTHING,
    problems=("not-found", "forbidden", "content-deleted", "limit-exceeded", "not-ready"),
    requests=examples.JOB_SPECS,
    answer=examples.QUOTE,
)
async def quote(request: Request, spec: JobSpec, admission: Admissions, caller: CurrentKey) -> Response:
    """Quotes a job's cost, line by line, and tells if it fits now. Charges and reserves nothing."""
    return await quote_at(request, spec, admission, caller, None)


async def quote_at(
    request: Request, spec: JobSpec, admission: Admission, caller: Caller, records: int | None
) -> Response:
    """As `quote`, for a hypothetical number of training records."""
    return await _priced(request, lambda: as_json(forecasts.quote(admission, caller, spec, records)))


@router.post("/quotes/sweep", operation_id="sweep_quotes", response_model=SweepView)
@Operation(
    "The final trial of every combination.",
    name="sweep_quotes",
    audience="train",
    leaves=leaves.WHAT_FITS,
    command="quote",
    audit=NOTHING,
    problems=("not-found", "forbidden", "limit-exceeded", "not-ready"),
    requests={"three totals, with cheaper and more expensive pilots": examples.SWEEP},
    answer=examples.SWEPT,
)
async def sweep(request: Request, asked: Sweep, admission: Admissions, caller: CurrentKey) -> Response:
    """Quotes a study's final trial under other totals, levels and numbers of trials. Charges and reserves nothing."""
    return await _priced(request, lambda: as_json(sweeps.sweep(admission, caller, asked)))


@forecast_router.post("/forecast", operation_id="forecast_ledger", response_model=Forecast)
@Operation(
    "How many jobs of this spec fit.",
    name="forecast_ledger",
    audience="train",
    leaves=leaves.WHAT_FITS,
    command="ledger forecast",
    audit=NOTHING,
    problems=("forbidden", "content-deleted", "limit-exceeded", "not-ready"),
    requests=examples.JOB_SPECS,
    answer=examples.FORECAST,
)
async def forecast(
    request: Request, dataset_id: str, spec: JobSpec, admission: Admissions, caller: CurrentKey
) -> Response:
    """Tells how many jobs of this spec still fit the budget, exactly. Charges and reserves nothing."""
    return await _priced(request, lambda: as_json(forecasts.forecast(admission, caller, spec, dataset_id)))


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
        held, gpus = holds.submit(admission, caller, spec, idempotency_key), gpus_of(request)
        headers = {"Location": f"/v1/jobs/{held.id}"}
        if held.job is not None:
            return as_json(JobView.of_job(held.job, {part: [] for part in repository.PARTS}, gpus), 201, headers)
        return as_json(_view(admission.db, caller, held.id, gpus), 201, headers | {"Idempotent-Replayed": "true"})

    return await _priced(request, answer)


@router.get("/jobs", response_model=JobList, openapi_extra=KEYED, dependencies=[Depends(require_some_key)])
@Operation(
    "A page of jobs.",
    audience="every key",
    leaves=leaves.ELSEWHERE,
    command="jobs list",
    problems=("not-found",),
    answer={"items": [examples.JOB_VIEW], "next": None},
)
async def list_jobs(
    request: Request,
    dataset: Annotated[str | None, Query(max_length=100)] = None,
    status: Status | None = None,
    after: After = None,
    limit: Limit = 50,
    q: Searched = None,
    tag: OfTag = None,
    sort: Order = "newest",
) -> Response:
    """Lists jobs on the data sets that this key may see, newest first; `dataset` is an id or a name.

    `q` finds a part of a job's name, or the beginning of its id.
    """

    def found() -> bytes:
        caller, db, gpus = identified(request, token_in(request.headers)), database_of(request), gpus_of(request)
        query = JobsQuery(dataset, q, tag, status, after, limit, sort)
        page = _page(db, caller, query, SHOWN_AS_TEXT)
        return page_json((job_json(job, page.details[job.id], gpus) for job in page.jobs), page.next)

    return Response(await in_thread(found), media_type="application/json")


@dataclass(frozen=True)
class JobsQuery:
    """Which jobs a page is of, and in which order.

    Attributes:
        after: the cursor of the page before.
    """

    dataset: str | None = None
    q: str | None = None
    tag: str | None = None
    status: Status | None = None
    after: str | None = None
    limit: int = 50
    sort: Order = "newest"


def page_of_jobs(db: Database, caller: Caller, gpus: GpuWorkers, query: JobsQuery) -> JobList:
    """Returns one page of the jobs that a caller may see; the dashboard shows the same page."""
    page = _page(db, caller, query)
    return JobList(items=[JobView.of_job(job, page.details[job.id], gpus) for job in page.jobs], next=page.next)


@dataclass(frozen=True)
class _Page:
    """The rows of a page, their details by id, and the cursor of the next page."""

    jobs: list[Row[Any]]
    details: dict[str, dict[str, list[Any]]]
    next: str | None


def _page(
    db: Database, caller: Caller, query: JobsQuery, columns: list[ColumnElement[Any]] = repository.SHOWN
) -> _Page:
    limit, sort = query.limit, query.sort
    key = key_of_page(query.after, sort)
    with db.read() as session:
        among = jobs_among(session, caller, query)
        jobs = repository.page_of_jobs(
            session, among=among, status=query.status, after=key, limit=limit, sort=sort, columns=columns
        )
        more, jobs = len(jobs) > limit, jobs[:limit]
        details = repository.details(session, [job.id for job in jobs])
    last = None
    if more:
        last = encode_cursor(jobs[-1].name if sort == "name" else rfc3339(jobs[-1].created_at), jobs[-1].id)
    return _Page(jobs, details, last)


def key_of_page(after: str | None, sort: Order) -> tuple[datetime | str, str] | None:
    """The sort key in a cursor: where the page before ended; None for the first page.

    Raises:
        InvalidRequest: it is no cursor of ours.
    """
    if after is None:
        return None
    first, job_id = decode_cursor(after, str, str)
    return (first if sort == "name" else decode_moment(first), job_id)


def jobs_among(session: Session, caller: Caller, query: JobsQuery) -> ColumnElement[bool]:
    """The condition on jobs that a caller may see, on one data set, by a text and by a tag.

    Raises:
        NotFound: no such data set, or the caller may not see it.
    """
    among = visible(caller, Job.dataset_id)
    if query.dataset is not None:
        among = Job.dataset_id == require(session, caller, query.dataset, "view").id
    if query.tag:
        among = and_(among, labels.tagged(query.tag))
    return and_(among, repository.named_like(query.q)) if query.q else among


@router.get("/jobs/{job_id}", response_model=JobView, openapi_extra=KEYED)
@Operation("The job.", audience="view", leaves=leaves.ELSEWHERE, command="jobs show", answer=examples.JOB_VIEW)
async def show_job(job_id: str, request: Request) -> Response:
    """Shows a job: its status, progress, quote, attempts, last metrics and artifacts."""

    def found() -> bytes:
        token = token_in(request.headers)
        if token is None:
            caller = identified(request, None)
            polled = _polled(request, caller.id, job_id)
        else:
            polled = _polled(request, id_in(token), job_id)
            caller = admitted(request, polled.key, token)
        return job_json(check_job(polled.job, polled.access(caller)), polled.details, gpus_of(request))

    return Response(await in_thread(found), media_type="application/json")


def _polled(request: Request, key_id: str, job_id: str) -> Polled:
    with database_of(request).quick_read() as connection:
        return job_of(connection, key_id, job_id)


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


@router.get("/jobs/{job_id}/events", response_model=EventList, responses=STREAM)
@Operation(
    "A page of events, or a stream of them.",
    audience="view",
    leaves=leaves.ELSEWHERE,
    command="jobs events",
    answer={"items": examples.EVENTS, "next": None},
)
def list_events(
    request: Request,
    job_id: str,
    db: Db,
    caller: CurrentKey,
    after: Sequence = 0,
    limit: Limit = 200,
    last_event_id: Annotated[str | None, Header(max_length=18, pattern=r"^\d+$")] = None,
) -> EventList | EventStream:
    """Lists the job's events, oldest first.

    `after` is the last sequence number seen, as in `next`.

    With `Accept: text/event-stream` the events arrive as they happen; Last-Event-ID resumes. The stream ends when the
    key ends or may no longer see the job. The number of open streams is bounded: beyond it the answer is 429 for the
    key, 503 for the process.
    """
    with db.read() as session:
        require_job(session, caller, job_id)
        if "text/event-stream" in request.headers.get("accept", ""):
            hub, seen = request.app.state.hub, max(after, int(last_event_id or 0))
            return EventStream(hub, caller, follow(hub, caller, job_id, seen))
        page = repository.events_after(session, job_id, after, limit)
        more, page = len(page) > limit, page[:limit]
        return EventList(items=[EventView.of(event) for event in page], next=str(page[-1].seq) if more else None)


@router.get("/jobs/{job_id}/metrics")
@Operation(
    "Every released number.",
    audience="view",
    leaves=leaves.ELSEWHERE,
    command="jobs metrics",
    answer={"items": [examples.METRIC], "next": None},
)
def list_metrics(job_id: str, db: Db, caller: CurrentKey) -> MetricList:
    """Lists every released number, with its noise's std and its kind of release."""
    with db.read() as session:
        require_job(session, caller, job_id)
        return MetricList(items=[MetricView.whole(each) for each in repository.released_metrics(session, job_id)])


@router.get("/jobs/{job_id}/trials")
@Operation(
    "The study's trials so far.", audience="view", leaves=leaves.ELSEWHERE, command="trials", answer=examples.TRIALS
)
def list_trials(job_id: str, db: Db, caller: CurrentKey) -> TrialList:
    """Lists a study's trials, with their points and noisy scores, and the choice of the final trial."""
    with db.read() as session:
        return trials(session, require_job(session, caller, job_id))


@router.get("/jobs/{job_id}/artifacts/{name}", response_class=FileResponse, responses=FILE)
@Operation(
    "The file.",
    audience="train",
    leaves=leaves.WEIGHTS,
    command="jobs fetch",
    audit="artifact.downloaded",
    problems=("forbidden", "artifact-damaged", "storage-full"),
    headers={
        "Digest-SHA256": "SHA-256 of the file, in hex.",
        "ETag": "SHA-256 of the file, in hex.",
        "Content-Disposition": "The file's name.",
    },
)
def download_artifact(
    request: Request, job_id: str, name: str, db: Db, settings: ServiceSettings, caller: CurrentKey
) -> FileResponse:
    """Sends an artifact's file, such as `model.safetensors` or `README.md`. For keys that may train on the data set.

    Where the owner has named persons, two of them must have agreed to an egress of the job.

    The file is hashed while it is sent. If the disk has changed it, the download breaks off before its end, and later
    requests answer 409.
    """
    with db.read() as session:
        job = require_job(session, caller, job_id, "train")
        artifact = repository.artifact(session, job_id, name)
        _check_handed_out(session, job)
        require_egress(session, job)
    path = artifacts.local(db, objects.of(settings), artifact)
    if "range" in request.headers or artifact.damaged_at is not None:
        artifacts.check(db, artifact, path)
    if not is_head(request.scope):
        with db.write() as session:
            audit.record(session, "artifact.downloaded", job_id, name=name)
    # Not the file's own time, nor headers made from it: it reveals the end of training to a fraction of a second.
    headers = {
        "Digest-SHA256": artifact.sha256,
        "ETag": f'"{artifact.sha256}"',
        "Last-Modified": format_datetime(job.finished_at or job.created_at, usegmt=True),
    }
    mark = partial(artifacts.mark, db, artifact, damaged=True)
    return artifacts.CheckedFile(path, artifact.sha256, mark, name=name, headers=headers)


@router.get("/jobs/{job_id}/certificate")
@Operation(
    "The certificate.",
    audience="view",
    leaves=leaves.CERTIFIED,
    command="certificates show",
    audit="certificate.downloaded",
    problems=("wrong-state", "certificate-pending", "storage-full"),
)
def show_certificate(request: Request, job_id: str, db: Db, caller: CurrentKey) -> CertificateDocument:
    """Shows the signed privacy certificate; it is issued soon after the job has finished."""
    with db.read() as session:
        found = require_certificate(session, require_job(session, caller, job_id))
    if not is_head(request.scope):
        with db.write() as session:
            audit.record(session, "certificate.downloaded", job_id)
    return CertificateDocument.model_validate(found.body)


def _check_handed_out(session: Session, run: Job) -> None:
    """Refuses a trial's model unless the study keeps all models: the study delivers the best one.

    Raises:
        NotFound: as for a missing artifact.
    """
    if run.parent_id is not None:
        study = session.get_one(Job, run.parent_id)
        if not StoredStudy.read(study.study).keep_weights:
            raise NotFound("this trial's model is not delivered: its study delivers the best one when it has ended")


def _view(db: Db, caller: Caller, job_id: str, gpus: GpuWorkers) -> JobView:
    with db.read() as session:
        job = require_job(session, caller, job_id)
        return JobView.of_job(job, repository.details(session, [job_id])[job_id], gpus)
