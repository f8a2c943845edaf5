"""Every query on jobs and what belongs to them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    Executable,
    Float,
    String,
    bindparam,
    cast,
    func,
    literal,
    null,
    select,
    tuple_,
    union_all,
)
from sqlalchemy.orm import Session

from app.contracts.dataset_spec import DatasetSpec
from app.contracts.job_spec import JobSpec
from app.db.models import Account, Artifact, Attempt, Certificate, Dataset, Job, JobEvent, Metric
from app.errors import NotFound
from app.jobs.planning import DatasetFacts


def dataset_facts(session: Session, dataset: Dataset) -> DatasetFacts:
    """The public numbers of a data set."""
    account = session.get(Account, dataset.id)
    return DatasetFacts(
        id=dataset.id,
        name=dataset.name,
        spec=DatasetSpec.model_validate(dataset.spec),
        records_train=dataset.shape["records_train"],
        records_holdout=dataset.shape["records_holdout"],
        features=dataset.shape["features"],
        outputs=dataset.shape["outputs"],
        filter=account.filter if account else None,
        order=account.order if account else None,
        cap_delta=account.cap_delta if account else None,
    )


def remaining(session: Session, dataset_id: str) -> dict[str, int] | None:
    """What both accounts still have; None on public data."""
    account = session.get(Account, dataset_id)
    if account is None:
        return None
    return {
        "train": account.train_budget - account.train_spent - account.train_held,
        "holdout": account.holdout_budget - account.holdout_spent - account.holdout_held,
    }


def by_idempotency_key(session: Session, key_id: str, idempotency_key: str) -> Job | None:
    return session.scalar(select(Job).where(Job.key_id == key_id, Job.idempotency_key == idempotency_key))


def page_of_jobs(
    session: Session,
    *,
    among: ColumnElement[bool],
    status: str | None,
    after: tuple[datetime, str] | None,
    limit: int,
) -> list[Job]:
    """Newest first, one more than asked for so that the caller knows whether there is a next page.

    Args:
        among: the jobs that may be shown.
    """
    query = select(Job).where(among).order_by(Job.created_at.desc(), Job.id.desc()).limit(limit + 1)
    if status is not None:
        query = query.where(Job.status == status)
    if after is not None:
        query = query.where(tuple_(Job.created_at, Job.id) < after)
    return list(session.scalars(query))


def details(session: Session, job_ids: list[str]) -> dict[str, dict[str, list[Any]]]:
    """Attempts, metrics and artifacts of several jobs, in one query: rows with the columns that are shown."""
    found: dict[str, dict[str, list[Any]]] = {
        each: {"attempts": [], "metrics": [], "artifacts": []} for each in job_ids
    }
    for row in session.execute(DETAILS, {"jobs": job_ids}):
        found[row.job_id][row.part].append(row)
    return found


def _details() -> Executable:
    """The three tables under each other, under the names of their columns; what one has not is null."""
    no_number, no_text, no_float = cast(null(), BigInteger), cast(null(), String), cast(null(), Float(53))
    jobs: BindParameter[Any] = bindparam("jobs", expanding=True)
    attempts = select(
        literal("attempts").label("part"),
        Attempt.job_id,
        Attempt.number.label("place"),
        Attempt.number,
        Attempt.worker.label("name"),
        Attempt.worker,
        Attempt.status,
        Attempt.started_at,
        Attempt.ended_at,
        no_number.label("step"),
        no_float.label("value"),
        no_float.label("std"),
        no_text.label("on"),
        no_text.label("released_by"),
        no_text.label("sha256"),
        no_number.label("size_bytes"),
    ).where(Attempt.job_id.in_(jobs))
    metrics = select(
        literal("metrics"),
        Metric.job_id,
        Metric.step,
        no_number,
        Metric.name,
        no_text,
        no_text,
        null(),
        null(),
        Metric.step,
        Metric.value,
        Metric.std,
        Metric.on,
        Metric.released_by,
        no_text,
        no_number,
    ).where(Metric.job_id.in_(jobs))
    artifacts = select(
        literal("artifacts"),
        Artifact.job_id,
        literal(0),
        no_number,
        Artifact.name,
        no_text,
        no_text,
        null(),
        null(),
        no_number,
        no_float,
        no_float,
        no_text,
        no_text,
        Artifact.sha256,
        Artifact.size_bytes,
    ).where(Artifact.job_id.in_(jobs))
    return union_all(attempts, metrics, artifacts).order_by("place", "name")


DETAILS = _details()


def events_after(session: Session, job_id: str, after: int, limit: int) -> list[JobEvent]:
    query = (
        select(JobEvent).where(JobEvent.job_id == job_id, JobEvent.seq > after).order_by(JobEvent.seq).limit(limit + 1)
    )
    return list(session.scalars(query))


def artifact(session: Session, job_id: str, name: str) -> Artifact:
    found = session.get(Artifact, (job_id, name))
    if found is None:
        raise NotFound("this job has no such artifact")
    return found


def certificate(session: Session, job_id: str) -> Certificate | None:
    return session.get(Certificate, job_id)


def count_queued(session: Session, key_id: str) -> int:
    query = select(func.count()).select_from(Job).where(Job.key_id == key_id, Job.status == "queued")
    return session.scalar(query) or 0


def seconds_per_step(session: Session, dataset_id: str, spec: JobSpec) -> float | None:
    """The throughput of the last like jobs: same data set, same model, same sampling."""
    like = {"model": spec.model.model_dump(mode="json"), "sampling": spec.sampling.model_dump(mode="json")}
    recent = session.scalars(
        select(Job)
        .where(Job.dataset_id == dataset_id, Job.status == "succeeded", Job.attempt == 1)
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
    """How many of the jobs that may be shown have each status."""
    rows = session.execute(select(Job.status, func.count()).where(among).group_by(Job.status)).all()
    return {row[0]: row[1] for row in rows}
