"""GET /v1/jobs: pages of jobs, which the dashboard shows too."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from sqlalchemy import ColumnElement, Row, and_
from sqlalchemy.orm import Session

from app.db.database import Database
from app.db.models import Job
from app.grants.service import require, visible
from app.jobs import labels, repository
from app.jobs.rendering import job_json, page_json
from app.jobs.repository import SHOWN_AS_TEXT
from app.jobs.schemas import (
    JobList,
    JobView,
)
from app.keys.auth import identified, require_some_key, token_in
from app.keys.service import Caller
from app.lifecycle.queue.presence import GpuWorkers
from app.web import examples
from app.web.deps import database_of, gpus_of
from app.web.pagination import After, Limit, decode_cursor, decode_moment, encode_cursor
from app.web.route_operation import Operation
from app.web.route_threads import in_thread
from core import leaves
from core.contracts.base import NO_NUL, Deferred
from core.ids import rfc3339

router = APIRouter(prefix="/v1", tags=["jobs"])
Status = Literal["queued", "running", "pausing", "paused", "cancelling", "cancelled", "succeeded", "failed"]
Searched = Annotated[
    str | None,
    Query(max_length=200, pattern=NO_NUL, description="A part of the job's name, or the beginning of its id."),
]
OfTag = Annotated[str | None, Query(max_length=40, pattern=NO_NUL, description="Only jobs with this tag.")]
Order = Annotated[repository.JobOrder, Query(description="By the time of submission, or by name.")]
# Of routes that look the key up themselves: a dependency would cost a tenth of the request, or another thread.
KEYED: dict[str, list[dict[str, list[str]]]] = {"security": [{"HTTPBearer": []}]}


class JobsQuery(Deferred, frozen=True):
    """Which jobs a page is of, and in which order.

    Attributes:
        after: the cursor of the page before.
    """

    dataset: Annotated[str | None, Query(max_length=100)] = None
    status: Status | None = None
    after: After = None
    limit: Limit = 50
    q: Searched = None
    tag: OfTag = None
    sort: Order = "newest"


@router.get("/jobs", response_model=JobList, openapi_extra=KEYED, dependencies=[Depends(require_some_key)])
@Operation(
    "A page of jobs.",
    audience="every key",
    leaves=leaves.ELSEWHERE,
    command="jobs list",
    problems=("not-found",),
    answer={"items": [examples.JOB_VIEW], "next": None},
)
async def list_jobs(request: Request, query: Annotated[JobsQuery, Query()]) -> Response:
    """Lists jobs on the data sets that this key may see, newest first; `dataset` is an id or a name.

    `q` finds a part of a job's name, or the beginning of its id.
    """

    def found() -> bytes:
        caller, db, gpus = identified(request, token_in(request.headers)), database_of(request), gpus_of(request)
        page = _page(db, caller, query, SHOWN_AS_TEXT)
        return page_json((job_json(job, page.details[job.id], gpus) for job in page.jobs), page.next)

    return Response(await in_thread(found), media_type="application/json")


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
        jobs = repository.PageOfJobs(among, query.status, key, limit, sort).rows(session, columns)
        has_more, jobs = len(jobs) > limit, jobs[:limit]
        details = repository.details(session, [job.id for job in jobs])
    last = None
    if has_more:
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


def jobs_among(session: Session, caller: Caller, query: JobsQuery, *, lasting: bool = False) -> ColumnElement[bool]:
    """The condition on jobs that a caller may see, on one data set, by a text and by a tag.

    Args:
        lasting: see `among_found`.

    Raises:
        NotFound: no such data set, or the caller may not see it.
    """
    among = visible(caller, Job.dataset_id)
    if query.dataset is not None:
        among = Job.dataset_id == require(session, caller, query.dataset, "view").id
    if query.tag:
        among = and_(among, repository.among_found(session, labels.tagged(query.tag), lasting=lasting))
    if query.q:
        among = and_(among, repository.among_found(session, repository.named_like(query.q), lasting=lasting))
    return among
