"""All queries on jobs and their details."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Row,
    Select,
    Text,
    and_,
    bindparam,
    cast,
    exists,
    literal_column,
    null,
    or_,
    select,
    true,
    tuple_,
    union_all,
)
from sqlalchemy.orm import Session
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from app.db.models import (
    Account,
    Artifact,
    Attempt,
    Job,
    JobEvent,
    JobTag,
    LedgerEntry,
    Metric,
    table_of,
)
from app.db.table_base import Base
from app.jobs.schemas import ArtifactView, AttemptView, JobView, MetricView
from core.errors import NotFound

JobOrder = Literal["newest", "oldest", "name"]
PageKey = tuple[datetime | str, str]  # a time or a name, and an id
LOOKED_AT = 20_000  # rows of an index, a page of a search
LOOKED_UP = 5_000  # of a tag and a status: each job is looked up
AN_ID = re.compile(r"job_[a-z2-7]{21}")
AMOUNTS = ("train", "holdout", "train_released", "holdout_released")
# A job's details: the tables, and the columns that are shown of them.
_SHOWN_OF: dict[str, tuple[type[Base], tuple[str, ...]]] = {
    "attempts": (Attempt, AttemptView.columns()),
    "metrics": (Metric, MetricView.columns()),
    "artifacts": (Artifact, ArtifactView.columns()),
    "settlements": (LedgerEntry, AMOUNTS),
}
PARTS = tuple(_SHOWN_OF)


def _column(table: type[Base], name: str) -> ColumnElement[Any]:
    return table_of(table).c["measured_on" if name == "on" else name]


# Statements of hot paths are built once.
JOB, TAG, ACCOUNTS = table_of(Job).c, table_of(JobTag).c, table_of(Account).c
# The columns of a job that callers see; the mechanism and the salts are not among them.
SHOWN: list[ColumnElement[Any]] = [JOB[each] for each in JobView.columns()]
# The same with the large documents as stored text, which a route sends without reading it.
SHOWN_AS_TEXT: list[ColumnElement[Any]] = [
    cast(each, Text).label(each.name) if each.name in JobView.texts() else each for each in SHOWN
]
# The details' columns besides part, job_id, place and name, each with the null of its type.
DETAIL_COLUMNS: dict[str, ColumnElement[Any]] = {
    name: cast(null(), _column(table, name).type)
    for table, names in _SHOWN_OF.values()
    for name in names
    if name != "name"
}


def listed(tag: str | None) -> ReadOnlyColumnCollection[str, Any]:
    """The columns that a list orders and filters by: of jobs, or of the rows of a tag."""
    return JOB if tag is None else TAG


@dataclass(frozen=True)
class PageOfJobs:
    """A page of jobs. Trials are not listed here, but with their study.

    A search looks at LOOKED_AT rows of an index, in the page's order, and goes on from there with the next page. So
    no page takes longer the more jobs there are; it may be short, or empty, and yet have a next one.

    Attributes:
        among: the condition on rows (`listed`) that may be shown.
        after: where the page before ended: a time or a name, and an id.
        text: a part of the name, in any case, or the beginning of the id.
    """

    among: ColumnElement[bool]
    limit: int
    status: str | None = None
    after: PageKey | None = None
    sort: JobOrder = "newest"
    text: str | None = None
    tag: str | None = None

    def rows(self, session: Session, columns: list[ColumnElement[Any]]) -> tuple[list[Row[Any]], PageKey | None]:
        """Reads the page; and the key that the next one begins after, None if there is none."""
        end = self._end(session)
        rows = list(session.connection().execute(self._select(columns, end).limit(self.limit + 1)).all())
        if len(rows) <= self.limit:
            return rows, end
        last = rows[self.limit - 1]
        return rows[: self.limit], (last.name if self.sort == "name" else last.created_at, last.id)

    def states(self, session: Session) -> Select[str, str, int]:
        """Selects the id, the status and the number of events of each of its jobs: what tells that one changed."""
        return self._select([JOB.id, JOB.status, JOB.events], self._end(session)).limit(self.limit)

    @property
    def _key(self) -> tuple[ColumnElement[Any], ColumnElement[str]]:
        rows = listed(self.tag)
        return (rows.name if self.sort == "name" else rows.created_at), (JOB.id if self.tag is None else TAG.job_id)

    @property
    def _is_id(self) -> bool:
        """True if the text is a whole id, which is looked up."""
        return self.text is not None and AN_ID.fullmatch(self.text) is not None

    def _end(self, session: Session) -> PageKey | None:
        """The last key that this page looks at; None if it looks at all that there are."""
        shows_all = self.text is None and (self.tag is None or self.status is None)
        if shows_all or self._is_id:
            return None
        bound = LOOKED_AT if self.tag is None or self.status is None else LOOKED_UP
        row = session.execute(self._walk(self._key).offset(bound - 1).limit(1)).one_or_none()
        return None if row is None else (row[0], row[1])

    def _walk(self, columns: Sequence[ColumnElement[Any]]) -> Select[Any]:
        """Selects columns of the rows that are looked at, in order. An index has all that this reads."""
        key, falling = tuple_(*self._key), self.sort == "newest"
        query = select(*columns).where(self.among).order_by(*(each.desc() if falling else each for each in self._key))
        if self.tag is not None:
            query = query.where(TAG.tag == self.tag)
        else:
            query = query.where(JOB.parent_id.is_(None))
            query = query if self.status is None else query.where(JOB.status == self.status)
        if self.after is not None:
            query = query.where(key < self.after if falling else key > self.after)
        return query

    def _select(self, columns: list[ColumnElement[Any]], end: PageKey | None) -> Select[Any]:
        query, (first, job_id) = self._walk(columns), self._key
        if self.tag is not None:
            query = query.where(JOB.id == TAG.job_id)
            query = query if self.status is None else query.where(JOB.status == self.status)
        if self.text is not None:
            name = listed(self.tag).name.icontains(self.text, autoescape=True)
            is_like = or_(name, job_id.startswith(self.text, autoescape=True))
            query = query.where(job_id == self.text if self._is_id else is_like)
        if end is not None:
            key = tuple_(first, job_id)
            query = query.where(key >= end if self.sort == "newest" else key <= end)
        return query


def details(session: Session, job_ids: list[str]) -> dict[str, dict[str, list[Any]]]:
    """Reads attempts, metrics, artifacts and settlements of several jobs in one query: rows with the shown columns."""
    by_job: dict[str, dict[str, list[Any]]] = {each: {part: [] for part in PARTS} for each in job_ids}
    if not job_ids:  # a database would read all details to find none
        return by_job
    for row in session.connection().execute(DETAILS, {"jobs": job_ids}).all():
        by_job[row.job_id][row.part].append(row)
    return by_job


def released_metrics(session: Session, job_id: str) -> Sequence[Metric]:
    """Reads all released numbers of a job by step and name, with the histograms that `details` leaves out."""
    return session.scalars(select(Metric).where(Metric.job_id == job_id).order_by(Metric.step, Metric.name)).all()


def last_histogram(session: Session, job_id: str) -> Metric | None:
    """Reads the last released number that has a histogram of scores."""
    query = select(Metric).where(Metric.job_id == job_id, Metric.histogram.is_not(None))
    return session.scalar(query.order_by(Metric.step.desc()).limit(1))


def details_where(
    condition_of: Callable[[ColumnElement[str]], ColumnElement[bool]], *, last_metrics: bool = False
) -> CompoundSelect[Any]:
    """Builds a union of the four tables; a column that a table lacks is null.

    Args:
        condition_of: the condition on the job's id.
        last_metrics: if True, includes only the last value of each metric.
    """
    attempt, metric, artifact, entry = (table_of(each).c for each, _ in _SHOWN_OF.values())
    # A settlement: of the job itself, not what the trials of a study drew before.
    settled = entry.kind.in_(("post", "void"))
    return union_all(
        _rows("attempts", attempt.number, attempt.worker).where(condition_of(attempt.job_id)),
        _rows("metrics", metric.step, metric.name).where(
            condition_of(metric.job_id), *([_is_last()] if last_metrics else [])
        ),
        _rows("artifacts", literal_column("0"), artifact.name).where(condition_of(artifact.job_id)),
        _rows("settlements", entry.seq, entry.kind).where(condition_of(entry.job_id), settled),
    )


def _rows(part: str, place: ColumnElement[Any], name: ColumnElement[Any]) -> Select[Any]:
    """Selects one part of the details: its place and name, its own columns, and nulls for all others."""
    table, names = _SHOWN_OF[part]
    columns = [
        (_column(table, each) if each in names else absent).label(each) for each, absent in DETAIL_COLUMNS.items()
    ]
    columns = [place.label("place"), name.label("name"), *columns]
    return select(literal_column(f"'{part}'").label("part"), table_of(table).c.job_id, *columns)


def _is_last() -> ColumnElement[bool]:
    """The condition for a metric's value at the last step."""
    metric, later = table_of(Metric).c, table_of(Metric).alias("later").c
    same = and_(later.job_id == metric.job_id, later.name == metric.name, later.step > metric.step)
    return ~exists(select(literal_column("1")).where(same))


# The job ids of a page are bound once, not once per part: psycopg prepares no statement with more than 50 values.
ALL_DETAILS = details_where(lambda _job: true()).subquery()
DETAILS = (
    select(ALL_DETAILS)
    .where(ALL_DETAILS.c.job_id.in_(bindparam("jobs", expanding=True)))
    .order_by(ALL_DETAILS.c.place, ALL_DETAILS.c.name)
)


def events_after(session: Session, job_id: str, after: int, limit: int) -> list[JobEvent]:
    """Reads a job's events after a sequence number: at most `limit`, and one more if there is a next page."""
    query = (
        select(JobEvent).where(JobEvent.job_id == job_id, JobEvent.seq > after).order_by(JobEvent.seq).limit(limit + 1)
    )
    return list(session.scalars(query))


def artifact(session: Session, job_id: str, name: str) -> Artifact:
    """Returns an artifact's row; raises NotFound if the job has none of that name."""
    artifact_row = session.get(Artifact, (job_id, name))
    if artifact_row is None:
        raise NotFound("this job has no artifact of that name")
    return artifact_row
