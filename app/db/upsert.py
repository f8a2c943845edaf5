"""INSERT … ON CONFLICT: both databases have it, each in a class of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Table
from sqlalchemy.orm import Session

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite


def insert_into(session: Session, table: Table) -> postgresql.Insert | sqlite.Insert:
    """The session's dialect's own INSERT, which knows ON CONFLICT."""
    return insert_of(session.get_bind().dialect.name, table)


def insert_of(dialect: str, table: Table) -> postgresql.Insert | sqlite.Insert:
    """A dialect's own INSERT, which knows ON CONFLICT; the other dialect is not loaded."""
    if dialect == "postgresql":
        from sqlalchemy.dialects.postgresql import insert as of_postgres  # noqa: PLC0415

        return of_postgres(table)
    from sqlalchemy.dialects.sqlite import insert as of_sqlite  # noqa: PLC0415

    return of_sqlite(table)
