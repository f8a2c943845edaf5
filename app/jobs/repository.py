"""All queries on jobs and their details."""

from __future__ import annotations

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
    false,
    func,
    literal_column,
    null,
    or_,
    select,
    true,
    tuple_,
    union_all,
)
from sqlalchemy.orm import Session, aliased

from app.db.models import (
    Account,
    Artifact,
    Attempt,
    Job,
    JobEvent,
    LedgerEntry,
    Metric,
    table_of,
)
from app.db.table_base import Base
from app.jobs.schemas import ArtifactView, AttemptView, JobView, MetricView
from core.errors import NotFound

JobOrder = Literal["newest", "oldest", "name"]
FEW = 2_000  # jobs that a search finds
MOST_BOUND = 500  # ids in one statement
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
JOB, ACCOUNTS = table_of(Job).c, table_of(Account).c
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


@dataclass(frozen=True)
class PageOfJobs:
    """A page of jobs. Trials are not listed here, but with their study.

    Attributes:
        among: the condition on jobs that may be shown.
        after: the sort key of the last row of the page before: its time or its name, and its id.
    """

    among: ColumnElement[bool]
    status: str | None
    after: tuple[datetime | str, str] | None
    limit: int
    sort: JobOrder

    def rows(self, session: Session, columns: list[ColumnElement[Any]]) -> list[Row[Any]]:
        """Reads the page, and one row more to show if there is a next one."""
        return list(session.connection().execute(self._select(columns).limit(self.limit + 1)).all())

    @property
    def states(self) -> Select[str, str, int]:
        """Selects the id, the status and the number of events of each of its jobs: what tells that one changed."""
        return self._select([JOB.id, JOB.status, JOB.events]).limit(self.limit)

    def _select(self, columns: list[ColumnElement[Any]]) -> Select[Any]:
        first = JOB.name if self.sort == "name" else JOB.created_at
        falling = self.sort == "newest"
        order = (first.desc(), JOB.id.desc()) if falling else (first, JOB.id)
        query = select(*columns).where(self.among, JOB.parent_id.is_(None)).order_by(*order)
        if self.status is not None:
            query = query.where(JOB.status == self.status)
        if self.after is not None:
            key = tuple_(first, JOB.id)
            query = query.where(key < self.after if falling else key > self.after)
        return query


def named_like(text: str) -> Select[str]:
    """Selects the ids of the jobs whose name holds a text, in any case, or whose id begins with it. An index has all
    columns that it reads."""
    job = aliased(Job)
    is_like = or_(job.name.icontains(text, autoescape=True), job.id.startswith(text, autoescape=True))
    return select(job.id).where(job.parent_id.is_(None), is_like).order_by(job.created_at.desc(), job.id.desc())


def among_found(session: Session, job_ids: Select[str], *, lasting: bool) -> ColumnElement[bool]:
    """The condition that a job is among those that a search finds.

    A page of jobs in an order reads on until it is full. Where the search finds many, each job that is read is looked
    for; where it finds few, they are found first.

    Args:
        lasting: the condition is also of jobs that come later, for a stream.
    """
    ids = session.scalars(job_ids.limit(MOST_BOUND + 1)).all()
    if len(ids) > MOST_BOUND:
        count = session.scalar(select(func.count()).select_from(job_ids.limit(FEW + 1).subquery())) or 0
        if count > FEW:
            (column,) = job_ids.selected_columns
            # The job's time, too: with its whole index a tag's row is one step, by the tag alone it is all its jobs.
            same = (column == Job.id, column.table.c.created_at == Job.created_at)
            return job_ids.order_by(None).where(*same).correlate(Job).exists()
    elif not lasting:
        return Job.id.in_(ids) if ids else false()
    return Job.id.in_(job_ids.order_by(None))


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
