"""A job's events as server-sent events. One poller per process serves all readers.

A reader first reads the events that it missed from the database, then follows the hub. Every event carries its sequence
number as `id:`. A disconnected reader sends it back as Last-Event-ID and continues on any API process, without loss or
repeats.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from sqlalchemy import bindparam, select
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from app.db.database import Database
from app.db.models import Job, Outbox, table_of
from app.grants.service import check_job
from app.jobs.polling import news_of
from app.jobs.schemas import EventView
from app.keys.service import Caller, still
from app.lifecycle.job_events import Settled
from app.web.open_lists import KEEP_ALIVE, KEEP_ALIVE_S
from core.contracts.event_kinds import FINAL
from core.errors import NotFound, TooManyRequests, Unauthenticated, Unavailable

logger = logging.getLogger(__name__)
POLL_S = 0.2
PAGE = 500
RETRY_S = 10
JOBS = table_of(Job).c
LAST_EVENTS = select(JOBS.id, JOBS.events).where(JOBS.id.in_(bindparam("jobs", expanding=True)))
# Proxies must neither buffer nor store events.
NO_BUFFERING = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class EventHub:
    """Polls all jobs with readers in one query, and wakes the readers of jobs with new events.

    Args:
        places: the most streams open at once.
        places_of_key: the most streams of one key.
    """

    def __init__(self, db: Database, places: int, places_of_key: int) -> None:
        self.db, self.places, self.places_of_key = db, places, places_of_key
        self._open: Counter[str] = Counter()
        self._readers: dict[str, set[asyncio.Event]] = defaultdict(set)
        self._seen: dict[str, int] = {}
        self._poller: asyncio.Task[None] | None = None

    @contextmanager
    def place(self, key_id: str) -> Iterator[None]:
        """Takes a place for one stream of a key.

        Raises:
            TooManyRequests: this key has reached its limit of streams.
            Unavailable: this process has reached its limit of streams.
        """
        if self._open[key_id] >= self.places_of_key:
            raise TooManyRequests(
                f"this key has {self.places_of_key} event streams open, its limit: close one", RETRY_S
            )
        if self._open.total() >= self.places:
            raise Unavailable("this process has no place for another event stream: ask for pages of events instead")
        self._open[key_id] += 1
        try:
            yield
        finally:
            self._open[key_id] -= 1
            if not self._open[key_id]:
                del self._open[key_id]

    def subscribe(self, job_id: str) -> asyncio.Event:
        """Returns a flag that is set whenever the job may have new events."""
        news = asyncio.Event()
        self._readers[job_id].add(news)
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll())
        return news

    def unsubscribe(self, job_id: str, news: asyncio.Event) -> None:
        """Removes a reader's flag."""
        self._readers[job_id].discard(news)
        if not self._readers[job_id]:
            del self._readers[job_id]
            self._seen.pop(job_id, None)

    async def _poll(self) -> None:
        """Polls while there are readers."""
        while self._readers:
            await asyncio.sleep(POLL_S)
            try:
                events = await run_in_threadpool(self._last_events, list(self._readers))
            except SQLAlchemyError as error:  # the database is away for a while
                logger.warning("cannot poll jobs for events: %s", type(error).__name__)
                continue
            for job_id, last in events.items():
                if self._seen.get(job_id) != last:
                    self._seen[job_id] = last
                    for news in self._readers.get(job_id, ()):
                        news.set()

    def _last_events(self, job_ids: list[str]) -> dict[str, int]:
        with self.db.quick_read() as connection:
            rows = connection.execute(LAST_EVENTS, {"jobs": job_ids})
            return {row.id: row.events for row in rows}


class EventStream(StreamingResponse):
    """An answer of server-sent events. It holds a place at the hub from its first byte to its last."""

    media_type = "text/event-stream"

    def __init__(self, hub: EventHub, caller: Caller, events: AsyncIterator[str]) -> None:
        super().__init__(events, headers=NO_BUFFERING)
        self.hub, self.key_id = hub, caller.id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.hub.place(self.key_id):
            await super().__call__(scope, receive, send)


async def follow(hub: EventHub, caller: Caller, job_id: str, after: int) -> AsyncIterator[str]:
    """Streams the job's events after a sequence number as they happen; ends after the last one.

    Also ends, without a message, once the caller's token or access has ended. Both are checked again whenever events
    are read, and at every keep-alive. The status of the next request then tells the caller why.

    Yields:
        Server-sent events; a comment after 15 s without events, so that proxies keep the connection open.
    """
    news = hub.subscribe(job_id)
    try:
        while True:
            news.clear()
            events = await run_in_threadpool(_read, hub.db, caller, job_id, after)
            for event in events:
                yield f"id: {event.seq}\nevent: {event.type}\ndata: {event.model_dump_json()}\n\n"
                after = event.seq
                if event.type == "certificate_issued" or (event.type in FINAL and not _certified(event)):
                    yield f"event: end\ndata: {json.dumps({'after': after})}\n\n"
                    return
            if len(events) == PAGE:
                continue
            if not events and await run_in_threadpool(_is_over, hub.db, job_id, after):
                yield f"event: end\ndata: {json.dumps({'after': after})}\n\n"
                return
            try:
                await asyncio.wait_for(news.wait(), KEEP_ALIVE_S)
            except TimeoutError:
                yield KEEP_ALIVE
    except (Unauthenticated, NotFound):
        return
    finally:
        hub.unsubscribe(job_id, news)


def _certified(event: EventView) -> bool:
    """Returns True if a certificate follows, which is if something was charged."""
    charge = Settled.model_validate(event.data).charge
    return charge is not None and charge.train + charge.holdout > 0


def _is_over(db: Database, job_id: str, after: int) -> bool:
    """Returns True if no event can follow the one with number `after`."""
    with db.read() as session:
        job = session.get_one(Job, job_id)
        due = select(Outbox.id).where(Outbox.job_id == job_id, Outbox.topic == "certificate")
        return job.status in FINAL and job.events <= after and session.scalar(due) is None


def _read(db: Database, caller: Caller, job_id: str, after: int) -> list[EventView]:
    """Reads the next events and checks the caller's access at the same moment.

    Raises:
        Unauthenticated, NotFound: the caller may no longer see the job.
    """
    with db.quick_read() as connection:
        news = news_of(connection, caller.id, job_id, after, PAGE)
    check_job(news.job, news.access(still(news.key, caller.generation)))
    return [EventView.of(event) for event in news.rows]
