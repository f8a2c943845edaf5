"""/dashboard/events: tells an open page that it has changed, by server-sent events. The page then fetches its parts.

A message names no content: `id:` and the word "changed". An answer 204 tells the browser to ask no more: its session
has ended, or there is no place for one more stream. The page then polls.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.security import HTTPAuthorizationCredentials
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from app.dashboard.page import Id, PageRoute
from app.dashboard.viewer import HOME, SignInNeeded, Viewer, current_viewer, is_signed_in
from app.datasets import readings
from app.datasets.reading_stream import page_of_reading
from app.db.database import Database
from app.db.models import ApiKey
from app.grants.service import require_job
from app.jobs.event_stream import EventHub, EventStream, follow
from app.keys.auth import bearer
from app.keys.service import Caller, KeyLike, still
from app.keys.sessions import SESSION_COOKIE, signed_in
from app.web import route_operation
from app.web.deps import Db, ServiceSettings
from app.web.headers import is_stream
from app.web.open_lists import Reader, changes_of
from core.errors import TooManyRequests, Unauthenticated, Unavailable

router = APIRouter(prefix=f"{HOME}/events", include_in_schema=False, route_class=PageRoute)
StateId = Annotated[str | None, Header(alias="Last-Event-ID", max_length=64, pattern=r"^[0-9a-f]+$")]


def streaming_viewer(
    request: Request,
    db: Db,
    settings: ServiceSettings,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)],
) -> Viewer | None:
    """The viewer; None for an event stream without a session, which must not be led to the login.

    Raises:
        RequestError: as `current_viewer`, for other requests.
    """
    try:
        return current_viewer(request, db, settings, credentials)
    except SignInNeeded:
        if is_stream(request.headers):
            return None
        raise


StreamingViewer = Annotated[Viewer | None, Depends(streaming_viewer)]


@router.get("/jobs/{job_id}")
@route_operation.Page("view")
def job_events(
    request: Request,
    job_id: Id,
    db: Db,
    viewer: StreamingViewer,
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
    last_event_id: Annotated[str | None, Header(max_length=18, pattern=r"^\d+$")] = None,
) -> Response:
    """Tells of a job's new events, after the last one that the page has shown."""
    if viewer is None:
        return Response(status_code=204)
    with db.read() as session:
        require_job(session, viewer.caller, job_id)
    hub: EventHub = request.app.state.hub
    seen = max(after, int(last_event_id or 0))
    events = _told(follow(hub, viewer.caller, job_id, seen), _alive(request, viewer, db))
    return answer(request, hub, viewer.caller, events)


@router.get("/readings/{dataset_id}")
@route_operation.Page("every key")
def reading_events(
    request: Request,
    dataset_id: Id,
    db: Db,
    viewer: StreamingViewer,
    last_event_id: StateId = None,
) -> Response:
    """Tells how far the file of a data set is read: of its bytes, and of its end."""
    if viewer is None:
        return Response(status_code=204)
    caller = viewer.caller
    with db.read() as session:
        row = readings.find(session, caller, dataset_id)
    if row is None:  # it is ready, or not there: the page asks once, and knows
        return Response(status_code=204)
    reader = Reader(page_of_reading(caller, row.id), caller.id, check(request, viewer))
    events = changes_of(request.app.state.lists, reader, last_event_id, lambda: False)
    return answer(request, request.app.state.hub, caller, events)


class ChangeStream(EventStream):
    """An event stream that without a place answers 204."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except (TooManyRequests, Unavailable):  # raised before the first byte
            await Response(status_code=204)(scope, receive, send)


def answer(request: Request, hub: EventHub, caller: Caller, messages: AsyncIterator[str]) -> Response:
    if not is_stream(request.headers):
        return Response(status_code=204)
    return ChangeStream(hub, caller, messages)


def _alive(request: Request, viewer: Viewer, db: Database) -> Callable[[], bool]:
    """Tells if the session or the key still holds: a stream outlives neither a sign-out nor a revoked key."""
    return (lambda: is_signed_in(request)) if viewer.csrf is not None else (lambda: _holds(db, viewer.caller))


def _holds(db: Database, caller: Caller) -> bool:
    with db.read() as session:
        try:
            still(session.get(ApiKey, caller.id), caller.generation)
        except Unauthenticated:
            return False
    return True


async def _told(events: AsyncIterator[str], alive: Callable[[], bool]) -> AsyncIterator[str]:
    """A job's events, without their content; ends with the session."""
    async for event in events:
        if not await run_in_threadpool(alive):
            return
        if event.startswith("id: "):
            yield f"{event.partition(chr(10))[0]}\ndata: changed\n\n"
        else:
            yield event


def check(request: Request, viewer: Viewer) -> Callable[[KeyLike | None], object]:
    """Tells by the key's row if the viewer's session, or the key itself, still holds."""
    if viewer.csrf is None:
        return lambda key: still(key, viewer.caller.generation)
    cookie, settings = request.cookies.get(SESSION_COOKIE, ""), request.app.state.settings
    return lambda key: signed_in(cookie, settings).caller(key)
