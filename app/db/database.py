"""The one synchronous database layer: sessions that read and sessions that write, on SQLite and on PostgreSQL.

Services never see the dialect. Both guarantee:
    read    one snapshot: two queries of one session see the same moment. Nothing can be written in it.
    quick_read  a bare connection: one query, which sees one moment by itself. On PostgreSQL no transaction begins and
            ends around it. Nothing may be written in it.
    write   READ COMMITTED at least: what decides a write is in the statement itself (a conditional UPDATE), or was read
            under a row lock (FOR UPDATE, which SQLite leaves out).
On SQLite a write takes the writer's lock at BEGIN (BEGIN IMMEDIATE), so that a transaction that reads first cannot fail
half-way because its snapshot is out of date.
"""

from __future__ import annotations

import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DatabaseError, DisconnectionError
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

from app.db import clock
from app.db.writers import WriterQueue
from app.settings import Settings

WRITES = "scrimp_writes"
IDLE = 0  # libpq's PQTRANS_IDLE: no transaction has begun
PING_AFTER_S = 1.0
WRITERS = 4  # at once in one process; a connection pool has twenty


class TransactionOpen(RuntimeError):
    """What must not keep others waiting was begun in a transaction."""


class _Opened(threading.local):
    """How many transactions this thread has open, on any database."""

    def __init__(self) -> None:
        self.count = [0]


_opened = _Opened()


@contextmanager
def _counted() -> Iterator[None]:
    """Counts a transaction of this thread, even if it ends in another one."""
    count = _opened.count
    count[0] += 1
    try:
        yield
    finally:
        count[0] -= 1


def require_no_transaction() -> None:
    """Refuses what may take long where this thread has a transaction open.

    Raises:
        TransactionOpen: it has one.
    """
    if _opened.count[0]:
        raise TransactionOpen("this may take long, and a transaction is open: other writers would wait for it")


class Database:
    """Sessions on one engine. `read()` and `write()` are one transaction each, committed if nothing was raised."""

    def __init__(self, url: str) -> None:
        self.engine = make_engine(url)
        database = self.engine.url.database
        # Writers of a SQLite file queue fairly. PostgreSQL has row locks, but a waiter for one occupies a connection of
        # the pool. If all jobs hold on one data set, a few waiters take connections and the others queue before, so
        # that reads continue.
        self._turn: Callable[[bool], AbstractContextManager[Any]] = lambda _urgent: nullcontext()
        if self.engine.dialect.name == "postgresql":
            turns = threading.BoundedSemaphore(WRITERS)
            self._turn = lambda urgent: nullcontext() if urgent else turns
        elif database:
            queue = WriterQueue(Path(database))
            self._turn = lambda urgent: queue.place(urgent=urgent)
        self._reader = self._quick_reader = self.engine
        self._writer = self._trip_writer = self.engine.execution_options(**{WRITES: True})
        if self.engine.dialect.name == "postgresql":
            # SQLite's reads see one snapshot; by default PostgreSQL's see a new one at each statement.
            self._reader = self.engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            self._quick_reader = self.engine.execution_options(isolation_level="AUTOCOMMIT")
            # The driver would begin a transaction in a round trip of its own.
            self._trip_writer = self.engine.execution_options(isolation_level="AUTOCOMMIT")
            event.listen(self._trip_writer, "before_cursor_execute", _require_begun)

    @classmethod
    def of(cls, settings: Settings) -> Database:
        """Opens the database of these settings."""
        return cls(settings.effective_database_url)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session that reads one snapshot."""
        with _counted(), Session(self._reader, expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def quick_read(self) -> Iterator[Connection]:
        """A bare connection for one query."""
        with _counted(), self._quick_reader.connect() as connection:
            yield connection

    @contextmanager
    def write(self, *, urgent: bool = False, in_trips: bool = False) -> Iterator[Session]:
        """One transaction that may write.

        Args:
            urgent: for an attempt, whose lease must not wait behind all submissions.
            in_trips: the first statements are those of a `round_trip`, which begins the transaction.
        """
        writer = self._trip_writer if in_trips else self._writer
        with _counted(), self._turn(urgent), Session(writer, expire_on_commit=False) as session, session.begin():
            yield session

    def damage(self) -> str | None:
        """What SQLite finds wrong with its own file, whose pages have no checksums; None: nothing, or another database.
        Reads all of it."""
        if self.engine.dialect.name != "sqlite":
            return None
        try:
            with self.quick_read() as connection:
                first = str(connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar_one())
        except DatabaseError as error:
            return str(error.orig)
        return None if first == "ok" else first

    def close(self) -> None:
        """Closes all connections; what a thread still uses, once it is returned."""
        event.listen(self.engine, "checkin", _close_at_return)
        self.engine.dispose()


def make_engine(url: str) -> Engine:
    """Makes an engine for `url`; SQLite gets WAL, foreign keys, full durability and explicit transactions."""
    if not url.startswith("sqlite"):
        engine = create_engine(url, hide_parameters=True, pool_size=10, max_overflow=10, pool_use_lifo=True)
        event.listen(engine, "checkin", _note_return)
        event.listen(engine, "checkout", partial(_ping_after_a_pause, engine))
        return engine
    engine = create_engine(
        url,
        hide_parameters=True,
        connect_args={"timeout": 30.0, "check_same_thread": False},
        pool_size=10,
        max_overflow=20,
    )
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _require_begun(connection: Connection, *_: object) -> None:
    """Refuses a statement that would be committed by itself."""
    driver: Any = connection.connection.driver_connection
    if driver.info.transaction_status == IDLE:
        raise RuntimeError("the first statements of this transaction must be those of a round trip")


def _note_return(_connection: Any, record: ConnectionPoolEntry) -> None:
    record.info["returned"] = time.monotonic()


def _close_at_return(_connection: Any, record: ConnectionPoolEntry) -> None:
    record.invalidate()


def _ping_after_a_pause(engine: Engine, connection: Any, record: ConnectionPoolEntry, _proxy: Any) -> None:
    """Tests a connection after a pause; a test at each use would cost a round trip."""
    if time.monotonic() - record.info.get("returned", math.inf) < PING_AFTER_S:
        return
    try:
        alive = engine.dialect.do_ping(connection)
    except engine.dialect.loaded_dbapi.Error:
        alive = False
    if not alive:
        raise DisconnectionError


def _prepare_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None  # pysqlite's own BEGIN comes too late and is never IMMEDIATE
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    # FULL: a committed charge survives a power cut. NORMAL would lose the last ones, and with them spending.
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()
    # Looked up at each call, so that tests can set the clock.
    connection.create_function("scrimp_boottime", 0, partial(_clock, "boottime"))
    connection.create_function("scrimp_boot", 0, partial(_clock, "boot"))
    connection.create_function("scrimp_ago", 1, clock.ago)


def _clock(name: Literal["boottime", "boot"]) -> float | str:
    return clock.boottime() if name == "boottime" else clock.boot()


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN DEFERRED")
