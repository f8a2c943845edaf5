"""/v1/datasets/{id}/events: how far a data set's file is read."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Request

from app.datasets import reading_stream
from app.datasets.schemas import (
    ReadingProgress,
)
from app.jobs.event_stream import EventStream
from app.keys.auth import CurrentKey
from app.web.deps import Db
from app.web.headers import is_stream
from app.web.route_operation import Operation
from core import leaves

router = APIRouter(prefix="/v1/datasets", tags=["datasets"])
STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}, "example": reading_stream.EXAMPLE}}}
}


@router.get("/{dataset_id}/events", response_model=ReadingProgress, responses=STREAM)
@Operation(
    "How far its file is read, or a stream of that.", audience="view", leaves=leaves.FOR_OWNER, command="datasets add"
)
def show_reading(
    request: Request,
    dataset_id: str,
    db: Db,
    caller: CurrentKey,
    last_event_id: Annotated[str | None, Header(max_length=64, pattern=r"^[0-9a-f]+$")] = None,
) -> ReadingProgress | EventStream:
    """Tells how far a data set's file is read.

    With `Accept: text/event-stream` it tells so on each change (`reading`), and ends after `ready` or `rejected`;
    Last-Event-ID resumes. The stream ends when the key does, or when the owner withdraws the registration. The number
    of open streams is bounded: beyond it the answer is 429 for the key, 503 for the process.
    """
    dataset, progress = reading_stream.progress(db, caller, dataset_id)
    if not is_stream(request.headers):
        return progress
    hubs = request.app.state
    return EventStream(hubs.hub, caller, reading_stream.follow(hubs.lists, caller, dataset, last_event_id))
