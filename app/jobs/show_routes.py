"""GET /v1/jobs/{id}: one job, its events, its released numbers and its trials."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response

from app.grants.service import check_job, require_job
from app.jobs import repository
from app.jobs.event_stream import EventStream, follow
from app.jobs.list_routes import KEYED
from app.jobs.polling import Polled, job_of
from app.jobs.rendering import job_json
from app.jobs.schemas import (
    EventList,
    EventView,
    JobView,
    MetricList,
    MetricView,
)
from app.jobs.trials import TrialList, trials
from app.keys.auth import CurrentKey, admitted, identified, token_in
from app.keys.service import id_in
from app.web import examples
from app.web.deps import Db, database_of, gpus_of
from app.web.examples import EVENT_STREAM
from app.web.pagination import Limit
from app.web.route_operation import Operation
from app.web.route_threads import in_thread
from core import leaves

router = APIRouter(prefix="/v1", tags=["jobs"])
Sequence = Annotated[int, Query(ge=0, le=2**53, description="The sequence number seen last.")]
STREAM: dict[int | str, Any] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}, "example": EVENT_STREAM}}}
}


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
        has_more, page = len(page) > limit, page[:limit]
        return EventList(items=[EventView.of(event) for event in page], next=str(page[-1].seq) if has_more else None)


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
