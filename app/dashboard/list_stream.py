"""/dashboard/events/jobs: tells the open list of jobs that it has changed."""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter, Request, Response
from sqlalchemy import and_

from app.dashboard.job_list import AskedJobs, ListQuery
from app.dashboard.page import PageRoute
from app.dashboard.page_stream import StateId, StreamingViewer, answer, check
from app.dashboard.viewer import HOME
from app.db.database import Database
from app.grants.service import sees_as, visible
from app.jobs import repository
from app.jobs.list_routes import page_asked
from app.keys.service import Caller
from app.web import route_operation
from app.web.deps import Db
from app.web.open_lists import Page, Reader, changes_of
from core.errors import RequestError

router = APIRouter(prefix=f"{HOME}/events", include_in_schema=False, route_class=PageRoute)


@router.get("/jobs")
@route_operation.Page("every key")
def jobs_events(
    request: Request,
    db: Db,
    viewer: StreamingViewer,
    query: AskedJobs,
    last_event_id: StateId = None,
) -> Response:
    """Tells of changes of one page of the list of jobs: its rows, or an event of one of them."""
    if viewer is None:
        return Response(status_code=204)
    caller = viewer.caller
    reader = Reader(page_of(db, caller, query), caller.id, check(request, viewer))
    changes = changes_of(request.app.state.lists, reader, last_event_id, lambda: _is_there(db, caller, query))
    return answer(request, request.app.state.hub, caller, changes)


def page_of(db: Database, caller: Caller, query: ListQuery) -> Page:
    """The page of the list of jobs that a caller asks for.

    Raises:
        NotFound: the filter's data set is not there for this caller.
    """
    with db.read() as session:
        page = page_asked(session, caller, query)
        # This condition again: who loses the data set of the filter loses its jobs.
        is_visible = visible(caller, repository.listed(page.tag).dataset_id)
        states = replace(page, among=and_(is_visible, page.among)).states(session)
    return Page((sees_as(caller), *vars(query).values()), states)


def _is_there(db: Database, caller: Caller, query: ListQuery) -> bool:
    """False if the data set of the filter is gone, or no longer to be seen."""
    try:
        page_of(db, caller, query)
    except RequestError:
        return False
    return True
