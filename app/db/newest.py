"""Lists in pages, newest first."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Select, tuple_
from sqlalchemy.orm import Session

from app.db.table_base import Base

R = TypeVar("R", bound=Base)


def newest(
    session: Session, query: Select[R], columns: Any, *, after: tuple[datetime, str] | None, limit: int
) -> list[R]:
    """A page of rows in order of time, newest first, and one row more to know if there is a next page.

    Args:
        columns: the rows' class.
        after: the time and the id of the last row of the page before.
    """
    if after is not None:
        query = query.where(tuple_(columns.created_at, columns.id) < after)
    return list(session.scalars(query.order_by(columns.created_at.desc(), columns.id.desc()).limit(limit + 1)))
