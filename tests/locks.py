"""Races that are real: who should wait for a lock is seen to wait for it."""

from __future__ import annotations

import time
from pathlib import Path

from sqlalchemy import text

from app.db.database import Database

WAITING = text("SELECT count(*) FROM pg_locks WHERE NOT granted")


def until_waiting(db: Database, sessions: int = 1, timeout_s: float = 300.0) -> None:
    """Returns once that many sessions of the PostgreSQL server wait for a lock."""
    deadline = time.monotonic() + timeout_s
    while True:
        with db.quick_read() as connection:
            if connection.scalar(WAITING) >= sessions:
                return
        assert time.monotonic() < deadline, "nobody waits: the race is none"
        time.sleep(0.01)


def until_waits_for_file(path: Path, waiting: int = 1, timeout_s: float = 300.0) -> None:
    """Returns once so many wait for a file's lock (flock)."""
    deadline = time.monotonic() + timeout_s
    inode = f":{path.stat().st_ino} "

    def count() -> int:
        return sum("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines())

    while count() < waiting:
        assert time.monotonic() < deadline, "nobody waits: the race is none"
        time.sleep(0.01)
