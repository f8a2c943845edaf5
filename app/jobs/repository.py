"""All queries on jobs and their details."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    CompoundSelect,
    Float,
    Integer,
    Row,
    String,
    and_,
    bindparam,
    cast,
    exists,
    func,
    literal_column,
    null,
    select,
    true,
    tuple_,
    union_all,
)
from sqlalchemy.orm import Session

from app.contracts.dataset_spec import DatasetSpec
from app.contracts.job_spec import JobSpec
from app.db.models import Account, Artifact, Attempt, Certificate, Dataset, Job, JobEvent, Metric, UtcDateTime, table_of
from app.errors import NotFound
from app.jobs.planning import DatasetFacts
from app.ledger.accounts import remaining_of
from app.privacy.prices import Units

# Statements of hot paths are built once.
JOB, ACCOUNTS = table_of(Job).c, table_of(Account).c
ACCOUNT = select(ACCOUNTS.filter, ACCOUNTS.filter_order, ACCOUNTS.cap_delta).where(
    ACCOUNTS.dataset_id == bindparam("dataset")
)
ONCE = select(JOB.id, JOB.request_sha256).where(
    JOB.key_id == bindparam("key"), JOB.idempotency_key == bindparam("once")
)
# A running study counts as queued while one of its trials is queued.
RUNS = table_of(Job).alias("runs").c
QUEUED = select(func.count()).select_from(
    union_all(
        select(JOB.id).where(JOB.key_id == bindparam("key"), JOB.status == "queued", JOB.parent_id.is_(None)),
        select(JOB.id).where(
            JOB.key_id == bindparam("key"),
            JOB.status == "running",
            JOB.study.is_not(None),
            exists(select(literal_column("1")).where(RUNS.parent_id == JOB.id, RUNS.status == "queued")),
        ),
    )
    .limit(bindparam("limit", type_=Integer))
    .subquery()
)
# The columns of a job that callers see; the mechanism and the salts are not among them.
SHOWN = [
    JOB.id,
    JOB.name,
    JOB.dataset_id,
    JOB.status,
    JOB.spec,
    JOB.quote,
    JOB.steps,
    JOB.steps_started,
    JOB.step,
    JOB.failure,
    JOB.warnings,
    JOB.created_at,
    JOB.started_at,
    JOB.finished_at,
    JOB.parent_id,
    JOB.study,
    JOB.device,
]


def dataset_facts(session: Session, dataset: Dataset) -> DatasetFacts:
    """Reads the public facts of a data set."""
    account = session.execute(ACCOUNT, {"dataset": dataset.id}).one_or_none()
    return DatasetFacts(
        id=dataset.id,
        name=dataset.name,
        spec=DatasetSpec.model_validate(dataset.spec),
        records_train=dataset.shape["records_train"],
        records_holdout=dataset.shape["records_holdout"],
        features=dataset.shape["features"],
        outputs=dataset.shape["outputs"],
        filter=account.filter if account else None,
        order=account.filter_order if account else None,
        cap_delta=account.cap_delta if account else None,
    )


def remaining(session: Session, dataset_id: str) -> Units | None:
    """Returns the units left on both accounts; None on public data."""
    account = session.get(Account, dataset_id)
    if account is None:
        return None
    return Units.model_validate(remaining_of(account))


def by_idempotency_key(session: Session, key_id: str, idempotency_key: str) -> Row[Any, Any] | None:
    """Finds the job that used an Idempotency-Key: its id and its request's digest."""
    return session.execute(ONCE, {"key": key_id, "once": idempotency_key}).one_or_none()


def page_of_jobs(
    session: Session,
    *,
    among: ColumnElement[bool],
    status: str | None,
    after: tuple[datetime, str] | None,
    limit: int,
) -> list[Row[Any]]:
    """Reads a page of jobs, newest first, and one row more to show if there is a next page. Trials are not listed
    here, but with their study.

    Args:
        among: the condition on jobs that may be shown.
    """
    query = (
        select(*SHOWN)
        .where(among, Job.parent_id.is_(None))
        .order_by(Job.created_at.desc(), Job.id.desc())
        .limit(limit + 1)
    )
    if status is not None:
        query = query.where(Job.status == status)
    if after is not None:
        query = query.where(tuple_(Job.created_at, Job.id) < after)
    return list(session.execute(query))


def details(session: Session, job_ids: list[str]) -> dict[str, dict[str, list[Any]]]:
    """Reads attempts, metrics and artifacts of several jobs in one query: rows with the shown columns."""
    found: dict[str, dict[str, list[Any]]] = {
        each: {"attempts": [], "metrics": [], "artifacts": []} for each in job_ids
    }
    for row in session.execute(DETAILS, {"jobs": job_ids}):
        found[row.job_id][row.part].append(row)
    return found


def details_where(
    of: Callable[[ColumnElement[str]], ColumnElement[bool]], *, last_metrics: bool = False
) -> CompoundSelect[Any]:
    """Builds a union of the three tables; a column that a table lacks is null.

    Args:
        of: the condition on the job's id.
        last_metrics: if True, includes only the last value of each metric.
    """
    no_time = cast(null(), UtcDateTime())
    no_number, no_text, no_float = cast(null(), BigInteger), cast(null(), String), cast(null(), Float(53))
    attempt, metric, artifact = (table_of(each).c for each in (Attempt, Metric, Artifact))
    attempts = select(
        literal_column("'attempts'").label("part"),
        attempt.job_id,
        attempt.number.label("place"),
        attempt.number,
        attempt.worker.label("name"),
        attempt.worker,
        attempt.status,
        attempt.device,
        attempt.started_at,
        attempt.ended_at,
        no_number.label("step"),
        no_float.label("value"),
        no_float.label("std"),
        no_text.label("on"),
        no_text.label("released_by"),
        no_text.label("sha256"),
        no_number.label("size_bytes"),
        no_time.label("damaged_at"),
    ).where(of(attempt.job_id))
    metrics = select(
        literal_column("'metrics'"),
        metric.job_id,
        metric.step,
        no_number,
        metric.name,
        *[no_text] * 3,
        *[null()] * 2,
        metric.step,
        metric.value,
        metric.std,
        metric.measured_on,
        metric.released_by,
        no_text,
        no_number,
        no_time,
    ).where(of(metric.job_id))
    artifacts = select(
        literal_column("'artifacts'"),
        artifact.job_id,
        literal_column("0"),
        no_number,
        artifact.name,
        *[no_text] * 3,
        *[null()] * 2,
        no_number,
        no_float,
        no_float,
        no_text,
        no_text,
        artifact.sha256,
        artifact.size_bytes,
        artifact.damaged_at,
    ).where(of(artifact.job_id))
    return union_all(attempts, metrics.where(_is_last()) if last_metrics else metrics, artifacts)


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
    found = session.get(Artifact, (job_id, name))
    if found is None:
        raise NotFound("this job has no artifact of that name")
    return found


def certificate(session: Session, job_id: str) -> Certificate | None:
    """Returns a job's certificate; None if none is issued."""
    return session.get(Certificate, job_id)


def count_queued(session: Session, key_id: str, at_most: int) -> int:
    """Counts a key's queued jobs, up to `at_most`."""
    return session.scalar(QUEUED, {"key": key_id, "limit": at_most}) or 0


def seconds_per_step(session: Session, dataset_id: str, spec: JobSpec) -> float | None:
    """Returns the median time per step of recent similar jobs: same data set, model and sampling; None without any."""
    like = {"model": spec.model.model_dump(mode="json"), "sampling": spec.sampling.model_dump(mode="json")}
    recent = session.scalars(
        select(Job)
        .where(Job.dataset_id == dataset_id, Job.status == "succeeded", Job.attempt == 1, Job.study.is_(None))
        .order_by(Job.created_at.desc())
        .limit(20)
    )
    times = [
        (job.finished_at - job.started_at).total_seconds() / job.steps
        for job in recent
        if job.finished_at and job.started_at and {name: job.spec[name] for name in like} == like
    ]
    return sorted(times)[len(times) // 2] if times else None


def count_by_status(session: Session, among: ColumnElement[bool]) -> dict[str, int]:
    """Counts the jobs that may be shown, by status."""
    rows = session.execute(
        select(Job.status, func.count()).where(among, Job.parent_id.is_(None)).group_by(Job.status)
    ).all()
    return {row[0]: row[1] for row in rows}
