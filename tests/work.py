"""How much work statements are, whatever else the machine does: rows that PostgreSQL read, or steps of SQLite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session


def of_session(session: Session, table: str) -> Callable[[], int]:
    """Counts from now on: the rows of a table that this transaction read, or hundreds of steps of SQLite's machine."""
    if session.get_bind().dialect.name == "postgresql":
        query = text(
            "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables "
            "WHERE relname = :table"
        )

        def read() -> int:
            return int(session.execute(query, {"table": table}).scalar_one())

        before = read()
        return lambda: read() - before
    done = [0]

    def count() -> int:
        done[0] += 1
        return 0

    driver: Any = session.connection().connection.driver_connection
    driver.set_progress_handler(count, 100)

    def stop() -> int:
        driver.set_progress_handler(None, 0)
        return done[0]

    return stop
