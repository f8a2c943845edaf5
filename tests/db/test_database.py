"""A database that was closed leaves no connection open, whoever used one meanwhile."""

from __future__ import annotations

from sqlalchemy import text

from app.db.database import Database


def test_what_is_used_while_it_closes_is_closed_when_returned(postgres_url: str) -> None:
    """A thread that still answered, or that asks once more: the pool is no longer there to close its connection."""
    db, used = Database(postgres_url), []
    for _ in range(2):
        with db.read() as session:
            session.execute(text("SELECT 1"))
            used.append(session.connection().connection.driver_connection)
            db.close()
    with db.quick_read() as connection:
        used.append(connection.connection.driver_connection)
    assert [getattr(each, "closed", None) for each in used] == [True] * 3
