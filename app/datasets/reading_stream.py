"""How far a data set's file is read, as server-sent events, to those who see the registration: its owner and admins.

One look a second serves all readers of a process (app.web.open_lists). An event's `id:` is a digest of the state that
it tells; a reader that sends it back as Last-Event-ID is told of the next change.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from starlette.concurrency import run_in_threadpool

from app.datasets import readings
from app.datasets.schemas import ReadingProgress
from app.db.database import Database
from app.grants import service as grants
from app.keys.service import Caller, still
from app.web.open_lists import KEEP_ALIVE, ListHub, Page, Reader, states_of
from core.errors import Conflict, NotFound

EXAMPLE = (
    'id: 0f3a6c1be0d94c1d7f4d0f3b7a1c2e55\nevent: reading\ndata: {"state":"reading","reading":{"bytes":5368709120,'
    '"bytes_read":1073741824,"problem":null,"read":null,"warnings":null,"ended_at":null}}\n\n'
    ": keep-alive\n\n"
    'id: 9b1d7a0c55e84f6f8a2d3c4b5e6f7081\nevent: ready\ndata: {"state":"ready","reading":{"bytes":5368709120,'
    '"bytes_read":5368709120,"problem":null,"read":{"records":60,"units":60,"dropped":0,"train":48,"holdout":12},'
    '"warnings":[],"ended_at":"2026-03-01T09:00:00Z"}}\n\n'
    "event: end\ndata: {}\n\n"
)
END = "event: end\ndata: {}\n\n"


def progress(db: Database, caller: Caller, dataset: str) -> tuple[str, ReadingProgress]:
    """The id of a data set, by its id or name, and how far its file is read.

    Raises:
        NotFound: there is none, or this key may not see it.
    """
    with db.read() as session:
        try:
            dataset_row = grants.find(session, caller, dataset)[0]
        except Conflict:
            row = readings.require(session, caller, dataset)
        else:
            outcome = readings.outcome(session, caller, dataset_row.id)
            return dataset_row.id, ReadingProgress.of(outcome, caller)
        return row.id, ReadingProgress.of(row, caller)


def page_of_reading(caller: Caller, dataset_id: str) -> Page:
    """One registration, as the caller may see it."""
    return Page(("reading", caller.id, dataset_id), readings.states(caller, dataset_id))


async def follow(hub: ListHub, caller: Caller, dataset: str, last: str | None) -> AsyncIterator[str]:
    """Streams how far a data set's file is read, until it is ready or rejected.

    Also ends, without a message, once the caller's key has ended or the registration is withdrawn. The status of the
    next request then tells the caller why.

    Args:
        last: the `id` of the last event that the reader has seen.

    Yields:
        Server-sent events, named by the state; a comment after 15 s without events.
    """
    dataset_id, outcome = await run_in_threadpool(progress, hub.db, caller, dataset)
    if outcome.state != "reading":
        yield _event(outcome)
        yield END
        return
    reader = Reader(page_of_reading(caller, dataset_id), caller.id, lambda key: still(key, caller.generation))
    last_event = None
    async with aclosing(states_of(hub, reader, last, lambda: False)) as states:
        async for state in states:
            if state is None:
                yield KEEP_ALIVE
                continue
            try:
                _, outcome = await run_in_threadpool(progress, hub.db, caller, dataset_id)
            except NotFound:
                return
            if outcome == last_event:  # read after a later change, which this state announces once more
                continue
            last_event = outcome
            yield f"id: {state}\n{_event(outcome)}"
            if outcome.state != "reading":
                yield END
                return


def _event(outcome: ReadingProgress) -> str:
    return f"event: {outcome.state}\ndata: {outcome.model_dump_json()}\n\n"
