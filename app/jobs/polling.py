"""Reads a job or its news for polling clients: key, access and the shown columns in one statement, so of one moment.

A round trip to the database costs more than all work on its answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from sqlalchemy import ColumnElement, Connection, FromClause, Integer, and_, bindparam, select

from app.db.models import ApiKey, Job, JobEvent, table_of
from app.grants.service import DATA, GIVEN, LOOKED_AT, Access, access_of
from app.jobs.repository import PARTS, SHOWN, details_where
from app.keys.service import CHECKED, Caller

KEY, JOB, EVENTS = table_of(ApiKey), table_of(Job), table_of(JobEvent)
# The job's columns are repeated in each of these rows: there are few rows.
DETAILS = details_where(lambda job: job == bindparam("job"), last_metrics=True).subquery("details")


@dataclass(frozen=True)
class Polled:
    """The result of one statement.

    Attributes:
        key: the key's row; None if there is none.
        job: the requested columns of the job; None if there is no such job.
        looked_at: the columns that `access_of` checks.
        rows: the job's details or events.
    """

    key: SimpleNamespace | None
    job: SimpleNamespace | None
    looked_at: SimpleNamespace
    rows: list[SimpleNamespace]

    def access(self, caller: Caller) -> Access | None:
        """Returns the access of this key's caller to the job's data set; None if the caller may not see it."""
        data = self.looked_at
        return access_of(caller, data, data if data.access is not None else None)

    @property
    def details(self) -> dict[str, list[Any]]:
        """The same as `repository.details`, but with only the last value of each metric."""
        found: dict[str, list[Any]] = {part: [] for part in PARTS}
        for row in self.rows:
            found[row.part].append(row)
        return found


def job_of(connection: Connection, key_id: str, job_id: str) -> Polled:
    """Reads a job with its details, for a caller with a token of the key."""
    return WHOLE.ask(connection, key=key_id, job=job_id)


def news_of(connection: Connection, key_id: str, job_id: str, after: int, limit: int) -> Polled:
    """Reads a job's events after a sequence number, at most `limit`, for a caller with a token of the key."""
    return NEWS.ask(connection, key=key_id, job=job_id, after=after, limit=limit)


class _Statement:
    """key ⟕ job ⟕ its data set ⟕ the key's grant ⟕ rows of the job.

    Args:
        shown: the job's columns; the first one is its id.
        rest: the source of the rows; its first column is never null.
        on: the condition that joins them.
        order: their order.
        bounded: if True, at most `limit` of them are read.
    """

    def __init__(
        self,
        shown: Sequence[ColumnElement[Any]],
        rest: FromClause,
        on: ColumnElement[bool],
        order: Sequence[ColumnElement[Any]],
        *,
        bounded: bool = False,
    ) -> None:
        parts = [CHECKED, shown, LOOKED_AT, list(rest.c)]
        self.names = [[column.name for column in part] for part in parts]
        self.rest = sum(len(names) for names in self.names[:-1])
        # Several parts have columns with the same name: labels number them by position.
        named = [column.label(f"p{place}") for place, column in enumerate(each for part in parts for each in part)]
        joined = (
            KEY.outerjoin(JOB, JOB.c.id == bindparam("job"))
            .outerjoin(DATA, DATA.c.id == JOB.c.dataset_id)
            .outerjoin(GIVEN, and_(GIVEN.c.dataset_id == DATA.c.id, GIVEN.c.key_id == KEY.c.id))
            .outerjoin(rest, on)
        )
        chosen = select(*named).select_from(joined).where(KEY.c.id == bindparam("key")).order_by(*order)
        self.statement = chosen.limit(bindparam("limit", type_=Integer)) if bounded else chosen

    def ask(self, connection: Connection, **values: Any) -> Polled:
        found = connection.execute(self.statement, values).all()
        if not found:
            return Polled(None, None, SimpleNamespace(), [])
        shown = iter(found[0])
        key, job, looked_at = (_named(names, [next(shown) for _ in names]) for names in self.names[:-1])
        rows = [_named(self.names[-1], row[self.rest :]) for row in found if row[self.rest] is not None]
        return Polled(key, job if job.id is not None else None, looked_at, rows)


def _named(names: Sequence[str], values: Sequence[Any]) -> SimpleNamespace:
    return SimpleNamespace(**dict(zip(names, values, strict=True)))


WHOLE = _Statement(SHOWN, DETAILS, DETAILS.c.job_id == JOB.c.id, [DETAILS.c.place, DETAILS.c.name])
AFTER = and_(EVENTS.c.job_id == JOB.c.id, EVENTS.c.seq > bindparam("after"))
NEWS = _Statement([JOB.c.id], EVENTS, AFTER, [EVENTS.c.seq], bounded=True)
