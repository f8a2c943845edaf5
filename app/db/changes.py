"""Tells an idle loop that the database has not changed, without a query.

Ten looks a second at an unchanged database are most of an idle service's work. A commit changes a SQLite file's
`data_version`, which costs some microseconds to read. PostgreSQL has no such number: there each look is a query. One
thread of a process reads it for all loops that rest.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import ExitStack, closing
from functools import cache
from pathlib import Path

from app.db.database import Database

LONGEST_S = 2.0  # what is due by the clock is looked for this often
SELDOM_S = 10.0  # the same where a commit makes things due, and a clock only what has minutes


class Pulse:
    """Reads a file's version as often as its most eager loop would, in a thread that ends with the loops."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._beat, self._runs = threading.Condition(), False
        self._beats = 0
        self._polls = dict[threading.Event, float]()  # by what ends loops: the least time between two looks of theirs

    def after(self, beat: int, stop: threading.Event, poll_s: float, longest_s: float) -> int:
        """Sleeps until a beat after this one, `stop`, or `longest_s`. Returns the last beat."""
        with self._beat:
            self._polls[stop] = min(poll_s, self._polls.get(stop, poll_s))
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._run, name="changes", daemon=True).start()
            self._beat.wait_for(lambda: self._beats != beat or stop.is_set(), longest_s)
            return self._beats

    def _run(self) -> None:
        with ExitStack() as opened:
            connection: sqlite3.Connection | None = None
            version: int | None = None
            while True:
                with self._beat:
                    self._beat.wait(min(self._polls.values()))
                try:
                    if connection is None:
                        connection = opened.enter_context(closing(sqlite3.connect(self._file, isolation_level=None)))
                    latest = _version(connection)
                except sqlite3.Error:  # each loop meets it, and says so
                    latest = None
                with self._beat:
                    ended = [stop for stop in self._polls if stop.is_set()]
                    changed = latest is None or latest != version
                    if ended or changed:
                        version, self._beats = latest, self._beats + changed
                        self._beat.notify_all()
                    for stop in ended:
                        del self._polls[stop]
                    if not self._polls:
                        self._runs = False
                        return


_pulse = cache(Pulse)


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA data_version").fetchone()[0])


class Changes:
    """The changes of a database that one loop has seen. One thread asks at a time; another may close it meanwhile.

    Args:
        longest_s: how long a database that nobody changes is left alone; None: LONGEST_S.
    """

    def __init__(self, db: Database, longest_s: float | None = None) -> None:
        self._longest_s = longest_s
        url = db.engine.url
        self._file = Path(url.database) if url.get_backend_name() == "sqlite" and url.database else None
        self._connection: sqlite3.Connection | None = None
        self._version: int | None = None
        self._again_at = 0.0
        self._beat, self._soonest_at = 0, 0.0
        # A cancelled task leaves its thread behind: closing a connection that is in use ends the process.
        self._in_use, self._closed = threading.Lock(), False

    def due(self) -> bool:
        """True if somebody may have committed since the last True, or if that is `longest_s` ago.

        Ask before the look: what is committed during a look has another version than the one read here.
        """
        if self._file is None:
            return True
        with self._in_use:
            if self._closed:
                return False
            if self._connection is None:
                self._connection = sqlite3.connect(self._file, isolation_level=None, check_same_thread=False)
            version = _version(self._connection)
        if version == self._version and time.monotonic() < self._again_at:
            return False
        longest_s = LONGEST_S if self._longest_s is None else self._longest_s
        self._version, self._again_at = version, time.monotonic() + longest_s
        return True

    def rest(self, stop: threading.Event, poll_s: float) -> bool:
        """Sleeps until `due` may be true again, and at least until `poll_s` after the last rest.

        Returns:
            True if the loop is to end.
        """
        if stop.wait(poll_s if self._file is None else max(0.0, self._soonest_at - time.monotonic())):
            return True
        if self._file is not None:
            longest_s = max(0.0, self._again_at - time.monotonic())
            self._beat = _pulse(self._file).after(self._beat, stop, poll_s, longest_s)
            self._soonest_at = time.monotonic() + poll_s
        return stop.is_set()

    def close(self) -> None:
        """Closes the connection, once nobody uses it. Nothing is due from now on."""
        with self._in_use:
            self._closed = True
            if self._connection is not None:
                self._connection.close()
