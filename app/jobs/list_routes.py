"""GET /v1/jobs: pages of jobs, which the dashboard shows too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from sqlalchemy import ColumnElement, Row
from sqlalchemy.orm import Session

from app.db.database import Database
from app.grants.service import require, visible
from app.jobs import repository
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

    `q` finds a part of a job's name, or the beginning of its id. A search looks at 20,000 jobs a page: with fewer
    items than `limit`, or none, it goes on as long as `next` is not null.
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
    with db.read() as session:
        jobs, end = page_asked(session, caller, query).rows(session, columns)
        details = repository.details(session, [job.id for job in jobs])
    if end is None:
        return _Page(jobs, details, None)
    first, job_id = end
    return _Page(jobs, details, encode_cursor(first if isinstance(first, str) else rfc3339(first), job_id))


def page_asked(session: Session, caller: Caller, query: JobsQuery) -> repository.PageOfJobs:
    """The page that a query asks for, of jobs that the caller may see.

    Raises:
        NotFound: no such data set, or the caller may not see it.
        InvalidRequest: the cursor is none of ours.
    """
    tag = query.tag.strip().lower() if query.tag else None
    rows = repository.listed(tag)
    # No plain column: SQLite would sort all jobs that the caller sees, in place of an index's order.
    among = visible(caller, rows.dataset_id.concat(""))
    if query.dataset is not None:
        among = rows.dataset_id == require(session, caller, query.dataset, "view").id
    key = _key(query.after, query.sort)
    return repository.PageOfJobs(among, query.limit, query.status, key, query.sort, query.q or None, tag)


def _key(cursor: str | None, sort: Order) -> repository.PageKey | None:
    """The key in a cursor: where the page before ended; None for the first page."""
    if cursor is None:
        return None
    first, job_id = decode_cursor(cursor, str, str)
    return (first if sort == "name" else decode_moment(first), job_id)
