"""How much work is done, whatever else the machine does: statements, rows that PostgreSQL read, steps of SQLite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event, text
from sqlalchemy.orm import Session

from app.db.database import Database


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


@contextmanager
def transactions(db: Database) -> Iterator[list[Counter[tuple[str, str]]]]:
    """The statements of each transaction within the block, with their values; without those that begin or nest it."""
    seen = list[Counter[tuple[str, str]]]()

    def begin(_connection: Any) -> None:
        seen.append(Counter())

    def note(_connection: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        if not statement.startswith(("BEGIN", "RELEASE", "SAVEPOINT")):
            seen[-1][statement, repr(values)] += 1

    event.listen(db.engine, "begin", begin)
    event.listen(db.engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(db.engine, "begin", begin)
        event.remove(db.engine, "before_cursor_execute", note)
