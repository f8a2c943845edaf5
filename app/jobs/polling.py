"""Reads a job or its news for polling clients: key, access and the shown columns in one statement, so of one moment.

A round trip to the database costs more than all work on its answer. Who may see the job is decided in app.grants.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Integer,
    Label,
    Select,
    and_,
    bindparam,
    select,
)

from app.db.models import ApiKey, Job, JobEvent, table_of
from app.grants.service import DATA, GIVEN, LOOKED_AT, Access, access_in, given_to
from app.jobs.repository import PARTS, SHOWN_AS_TEXT, details_where
from app.keys.service import CHECKED, Caller

KEY, JOB, EVENTS = table_of(ApiKey), table_of(Job), table_of(JobEvent)


@dataclass(frozen=True)
class Polled:
    """The result of one statement.

    Attributes:
        key: the key's row; None if there is none.
        job: the requested columns of the job; None if there is no such job.
        looked_at: the columns that `access_in` checks.
        rows: the job's details or events.
    """

    key: SimpleNamespace | None
    job: SimpleNamespace | None
    looked_at: SimpleNamespace
    rows: list[SimpleNamespace]

    def access(self, caller: Caller) -> Access | None:
        """Returns the access of this key's caller to the job's data set; None if the caller may not see it."""
        return access_in(caller, self.looked_at)

    @property
    def details(self) -> dict[str, list[Any]]:
        """The same as `repository.details`, but with only the last value of each metric."""
        details: dict[str, list[Any]] = {part: [] for part in PARTS}
        for row in self.rows:
            details[row.part].append(row)
        return details


def job_of(connection: Connection, key_id: str, job_id: str) -> Polled:
    """Reads a job with its details, for a caller with a token of the key."""
    return _ask(connection, WHOLE, SHOWN_JOB, DETAIL, {"key": key_id, "job": job_id})


def news_of(connection: Connection, key_id: str, job_id: str, after: int, limit: int) -> Polled:
    """Reads a job's events after a sequence number, at most `limit`, for a caller with a token of the key."""
    return _ask(connection, NEWS, KNOWN_JOB, EVENT, {"key": key_id, "job": job_id, "after": after, "limit": limit})


class _Part:
    """Columns of one source. Several sources have columns of one name, so each gets its source's name in front."""

    def __init__(self, source: str, columns: Sequence[ColumnElement[Any]]) -> None:
        self.names = [column.name for column in columns]
        self.columns: list[Label[Any]] = [column.label(f"{source}_{column.name}") for column in columns]

    def read(self, values: Iterable[Any]) -> SimpleNamespace:
        """The source's columns, by their own names; takes no more values than there are names."""
        return SimpleNamespace(**dict(zip(self.names, values, strict=False)))


# The job's columns are repeated in each of its details: there are few.
DETAILS = details_where(lambda job: job == bindparam("job"), last_metrics=True).subquery("details")
CALLER, ACCESS = _Part("key", CHECKED), _Part("access", LOOKED_AT)
SHOWN_JOB, DETAIL = _Part("job", SHOWN_AS_TEXT), _Part("detail", list(DETAILS.c))
KNOWN_JOB, EVENT = _Part("job", [JOB.c.id]), _Part("event", list(EVENTS.c))


def _select(job: _Part, row: _Part, source: FromClause, on: ColumnElement[bool]) -> Select[Any]:
    """key ⟕ job ⟕ its data set ⟕ the key's grant ⟕ rows of the job."""
    joined = (
        KEY.outerjoin(JOB, JOB.c.id == bindparam("job"))
        .outerjoin(DATA, DATA.c.id == JOB.c.dataset_id)
        .outerjoin(GIVEN, given_to(KEY.c.id))
        .outerjoin(source, on)
    )
    columns = [column for part in (CALLER, job, ACCESS, row) for column in part.columns]
    return select(*columns).select_from(joined).where(KEY.c.id == bindparam("key"))


def _ask(connection: Connection, statement: Select[Any], job: _Part, row: _Part, sent: dict[str, str | int]) -> Polled:
    answered = connection.execute(statement, sent).all()
    if not answered:
        return Polled(None, None, SimpleNamespace(), [])
    values = iter(answered[0])
    key, job_row, looked_at = (part.read(values) for part in (CALLER, job, ACCESS))
    columns = slice(-len(row.names), None)
    rows = [
        row.read(each[columns]) for each in answered if each[columns.start] is not None
    ]  # its first column is never null
    return Polled(key, job_row if job_row.id is not None else None, looked_at, rows)


WHOLE = _select(SHOWN_JOB, DETAIL, DETAILS, DETAILS.c.job_id == JOB.c.id).order_by(DETAILS.c.place, DETAILS.c.name)
NEWS = (
    _select(KNOWN_JOB, EVENT, EVENTS, and_(EVENTS.c.job_id == JOB.c.id, EVENTS.c.seq > bindparam("after")))
    .order_by(EVENTS.c.seq)
    .limit(bindparam("limit", type_=Integer))
)
