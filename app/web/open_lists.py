"""Reads what all open lists of a process show, in two statements for any number of readers:

    keys    of all readers: a reader whose key or session has ended is told so
    pages   the rows on all pages, their status and how far they are: a part a page

A page is a page of the list of jobs, or one registration whose file is read. Each part has the condition of its own
page (app.grants.service.visible, app.datasets.readings), so its rows are those that its reader may see. Readers of the
same page with the same rights share a part. On SQLite nothing is asked while nobody has written.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, literal, select, union_all
from starlette.concurrency import run_in_threadpool

from app.db.changes import Changes
from app.db.database import Database
from app.db.models import ApiKey, table_of
from app.logs import kind_of
from core.errors import Unauthenticated

logger = logging.getLogger(__name__)
LOOK_S = 1.0
KEEP_ALIVE_S = 15.0
MOST_PARTS = 100  # of one statement; SQLite takes 500
KEEP_ALIVE = ": keep-alive\n\n"
KEYS = table_of(ApiKey)
ALL_KEYS = select(KEYS).where(KEYS.c.id.in_(bindparam("keys", expanding=True)))


@dataclass(frozen=True)
class Page:
    """One page of the list of jobs, or one registration.

    Attributes:
        shared: equal for readers who see the same on it.
        states: selects the id, the status and the number of events of its jobs; of a registration the id, the state
            and the bytes that are read.
    """

    shared: tuple[object, ...]
    states: Select[str, str, int]


class Reader:
    """An open list.

    Args:
        key_id: of the key that reads.
        check: raises Unauthenticated if the key, given as its row, or the reader's session has ended.
    """

    def __init__(self, page: Page, key_id: str, check: Callable[[Row[Any] | None], object]) -> None:
        self.page, self.key_id, self.check = page, key_id, check
        self.state: str | None = None
        self.is_over = False
        self.news = asyncio.Event()

    def is_allowed(self, key: Row[Any] | None) -> bool:
        """Returns True if its key and its session still hold."""
        try:
            self.check(key)
        except Unauthenticated:
            return False
        return True

    def tell(self, state: str | None) -> None:
        """Sets the page's state; None ends the reader."""
        if state is None:
            self.is_over = True
        elif state == self.state:
            return
        self.state = state or self.state
        self.news.set()


class ListHub:
    """The open lists of this process."""

    def __init__(self, db: Database, look_s: float = LOOK_S) -> None:
        self.db, self.look_s = db, look_s
        self._readers: set[Reader] = set()
        self._poller: asyncio.Task[None] | None = None
        self._opened = asyncio.Event()
        self._asked = _Asked([])

    def open(self, reader: Reader) -> None:
        """Adds a reader, who is told the first state at once."""
        self._readers.add(reader)
        if self._poller is None or self._poller.done():
            self._opened = asyncio.Event()  # of this loop
            self._poller = asyncio.create_task(self._poll())
        self._opened.set()

    def close(self, reader: Reader) -> None:
        """Removes a reader."""
        self._readers.discard(reader)

    def look(self, readers: Sequence[Reader]) -> list[str | None]:
        """The state of each reader's page; None for a reader whose key or session has ended."""
        with self.db.quick_read() as connection:
            rows = connection.execute(ALL_KEYS, {"keys": sorted({each.key_id for each in readers})})
            keys = {row.id: row for row in rows}
            allowed = [each.is_allowed(keys.get(each.key_id)) for each in readers]
            pages = {each.page.shared: each.page for each, may in zip(readers, allowed, strict=True) if may}
            if self._asked.numbers.keys() != pages.keys():  # SQLAlchemy prepares an object's execution once
                self._asked = _Asked(list(pages.values()))
            states = self._asked.states(connection)
        return [states[each.page.shared] if may else None for each, may in zip(readers, allowed, strict=True)]

    async def _poll(self) -> None:
        """Looks while there are readers: at all of them every second, at a new one at once."""
        changes, next_look = Changes(self.db), time.monotonic()
        try:
            while self._readers:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._opened.wait(), max(0.0, next_look - time.monotonic()))
                self._opened.clear()
                is_complete = time.monotonic() >= next_look
                if is_complete:
                    next_look = time.monotonic() + self.look_s
                try:
                    is_complete = is_complete and await run_in_threadpool(changes.due)
                    readers = [each for each in self._readers if is_complete or each.state is None]
                    changed = await run_in_threadpool(self.look, readers) if readers else []
                except Exception as error:  # such as a database that is away: no list ends with one look that failed
                    logger.warning("cannot look at open lists: %s", kind_of(error))
                    continue
                for reader, state in zip(readers, changed, strict=True):
                    reader.tell(state)
        finally:
            changes.close()


class _Asked:
    """Statements that select the rows of several pages, each row with its page's number first."""

    def __init__(self, pages: Sequence[Page]) -> None:
        self.numbers = {page.shared: number for number, page in enumerate(pages)}
        parts = []
        for number, page in enumerate(pages):
            rows = page.states.subquery()
            parts.append(select(literal(number).label("page"), *rows.c))
        self._statements = [union_all(*parts[at : at + MOST_PARTS]) for at in range(0, len(parts), MOST_PARTS)]

    def states(self, connection: Connection) -> dict[tuple[object, ...], str]:
        """Each page's state."""
        rows: defaultdict[int, list[tuple[str, str, int]]] = defaultdict(list)
        for statement in self._statements:
            for number, job_id, status, events in connection.execute(statement):
                rows[number].append((job_id, status, events))
        return {shared: state_of(rows[number]) for shared, number in self.numbers.items()}


def state_of(rows: Sequence[tuple[str, str, int]]) -> str:
    """A digest of what a page shows, in any order: neither names nor times of creation change."""
    return hashlib.sha256(repr(sorted(rows)).encode()).hexdigest()[:32]


EMPTY = state_of([])


async def states_of(
    hub: ListHub, reader: Reader, last: str | None, is_there: Callable[[], bool]
) -> AsyncGenerator[str | None, None]:
    """Yields a list's state whenever it differs from the last one told, and None to keep a connection open; ends with
    the session.

    Args:
        last: the state that the reader knows; None: the first state is told at once.
        is_there: for an empty page: False if what it is about is gone, or no longer to be seen. This ends it.
    """
    hub.open(reader)
    try:
        while True:
            try:
                await asyncio.wait_for(reader.news.wait(), KEEP_ALIVE_S)
            except TimeoutError:
                yield None
                continue
            reader.news.clear()
            if reader.is_over or (reader.state == EMPTY and not await run_in_threadpool(is_there)):
                return
            if reader.state is not None and reader.state != last:
                last = reader.state
                yield last
    finally:
        hub.close(reader)


async def changes_of(
    hub: ListHub, reader: Reader, last: str | None, is_there: Callable[[], bool]
) -> AsyncIterator[str]:
    """Yields a message without content for each state of `states_of`."""
    async with aclosing(states_of(hub, reader, last, is_there)) as states:
        async for state in states:
            yield KEEP_ALIVE if state is None else f"id: {state}\ndata: changed\n\n"
