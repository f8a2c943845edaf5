"""/dashboard: the list of jobs, and its filters."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from sqlalchemy.orm import Session

from app.dashboard.names import dataset_names
from app.dashboard.page import PageRoute, address, render
from app.dashboard.viewer import (
    HOME,
    CurrentViewer,
)
from app.db.database import Database
from app.grants.service import require
from app.jobs.counts import jobs_by_status
from app.jobs.labels import LONGEST_TAG
from app.jobs.list_routes import JobsQuery, Status, page_asked, page_of_jobs
from app.jobs.repository import JOB, JobOrder
from app.jobs.schemas import JobList
from app.keys.service import Caller
from app.lifecycle.queue.presence import GpuWorkers
from app.web.deps import Db, Gpus
from app.web.pagination import After
from app.web.route_operation import Page
from core.contracts.base import NO_NUL

router = APIRouter(prefix=HOME, include_in_schema=False, route_class=PageRoute)
ROWS = 25
MOST_COUNTED = 200  # of the jobs that a search finds
ACTIVE = ("queued", "running", "pausing", "cancelling")


class ListQuery(JobsQuery, frozen=True):
    """The page of the list of jobs, as its address has it."""

    def url(self, path: str, **changes: Any) -> str:
        """The address of this list with other filters; a filter that is None is left out."""
        members = {"q": self.q, "tag": self.tag, "status": self.status, "dataset": self.dataset}
        return address(path, members | {"sort": self.sort if self.sort != "newest" else None} | changes)


def asked_jobs(
    status: Status | Literal[""] | None = None,
    dataset: Annotated[str | None, Query(max_length=100)] = None,
    after: After = None,
    q: Annotated[str | None, Query(max_length=200, pattern=NO_NUL)] = None,
    tag: Annotated[str | None, Query(max_length=LONGEST_TAG, pattern=NO_NUL)] = None,
    sort: JobOrder | Literal[""] = "newest",
) -> ListQuery:
    """The page that an address asks for; an empty filter is none."""
    words, label = (q or "").strip() or None, (tag or "").strip().lower() or None
    page = {"status": status or None, "dataset": dataset or None, "after": after or None, "sort": sort or "newest"}
    return ListQuery.model_validate(page | {"q": words, "tag": label, "limit": ROWS})


AskedJobs = Annotated[ListQuery, Depends(asked_jobs)]


@router.get("")
@Page("every key")
def jobs_page(request: Request, db: Db, viewer: CurrentViewer, gpus: Gpus, query: AskedJobs) -> Response:
    """Shows the list of jobs."""
    return render(request, "jobs.html", viewer=viewer, **_jobs(db, viewer.caller, gpus, query))


@router.get("/live/jobs")
@Page("every key")
def live_jobs(request: Request, db: Db, viewer: CurrentViewer, gpus: Gpus, query: AskedJobs) -> Response:
    """The changing part of the list of jobs."""
    return render(request, "_jobs.html", viewer=viewer, **_jobs(db, viewer.caller, gpus, query))


def _jobs(db: Database, caller: Caller, gpus: GpuWorkers, query: ListQuery) -> dict[str, Any]:
    """One page of jobs, and the data that its filters need."""
    page = page_of_jobs(db, caller, gpus, query)
    with db.read() as session:
        counts, is_partial = _counts(db, session, caller, query, page)
        return {
            "asked": query,
            "page": page,
            "counts": counts,
            "matching": counts.get(query.status, 0) if query.status else sum(counts.values()),
            "is_partial": is_partial,
            "is_empty": not counts and not jobs_by_status(db, session, caller),
            "names": dataset_names(session, caller),
            "may_submit": caller.role != "viewer",
            "is_active": any(job.status in ACTIVE for job in page.items),
        }


def _counts(
    db: Database, session: Session, caller: Caller, query: JobsQuery, page: JobList
) -> tuple[dict[str, int], bool]:
    """The jobs of a list by status; and if these are only the newest ones that a search finds.

    Args:
        page: what the query found.
    """
    if query.q or query.tag:
        if query.status is query.after is page.next is None:  # the page has all of them
            return dict(Counter(job.status for job in page.items)), False
        changes = {"status": None, "after": None, "sort": "newest", "limit": MOST_COUNTED}
        newest = page_asked(session, caller, query.model_copy(update=changes))
        rows, end = newest.rows(session, [JOB.status, JOB.created_at, JOB.id])
        return dict(Counter(job.status for job in rows)), end is not None
    dataset = None if query.dataset is None else require(session, caller, query.dataset, "view").id
    return jobs_by_status(db, session, caller, dataset), False
