"""Tells an idle loop that the database has not changed, without a query.

Ten looks a second at an unchanged database are most of an idle service's work. A commit changes a SQLite file's
`data_version`, which costs some microseconds to read. PostgreSQL has no such number: there each look is a query.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

from app.db.database import Database

LONGEST_S = 2.0  # what is due by the clock is looked for this often
SELDOM_S = 10.0  # the same where a commit makes things due, and a clock only what has minutes


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
            version = self._connection.execute("PRAGMA data_version").fetchone()[0]
        if version == self._version and time.monotonic() < self._again_at:
            return False
        longest_s = LONGEST_S if self._longest_s is None else self._longest_s
        self._version, self._again_at = version, time.monotonic() + longest_s
        return True

    def close(self) -> None:
        """Closes the connection, once nobody uses it. Nothing is due from now on."""
        with self._in_use:
            self._closed = True
            if self._connection is not None:
                self._connection.close()
