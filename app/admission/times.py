"""When a job would start and how long it would take: from workers, the queue, and the times of jobs the key sees."""

from __future__ import annotations

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from app.admission.request import Request
from app.db.database import Database
from app.db.models import Dataset, Job
from app.grants import service as grants
from app.lifecycle.queue.presence import GpuWorkers
from app.lifecycle.queue.queue_forecast import ahead_of
from core.contracts.base import Deferred
from core.contracts.job_spec import JobSpec
from core.contracts.runtime import Runtime

NO_GPU = (
    "no GPU worker is alive now: a job that asks for a GPU waits until there is one (`waiting_for`: cuda), and can be "
    "cancelled free of charge while it waits"
)
NO_GPUS = (
    "no living worker of a cluster has {ranks} equal GPUs for one job: the job waits until one has (`waiting_for`: "
    "gpus), and can be cancelled free of charge while it waits"
)
NO_PROCESSES = (
    "no worker that runs so many processes for one job is alive now: the job waits until there is one (`waiting_for`: "
    "processes), and can be cancelled free of charge while it waits"
)
LACKS = {"cuda": NO_GPU, "gpus": NO_GPUS, "processes": NO_PROCESSES}


class Start(Deferred):
    """When a job would start that is submitted now, if nobody submits more and jobs take as long as the caller's own
    and visible ones did."""

    claims_before: int  # jobs that workers take first, by turns, weights and the key's own priorities
    at_least: bool = False  # there may be more of them
    in_s: float | None = None  # null: no job that this key may see has ended yet


def start_of(session: Session, request: Request, spec: JobSpec, dataset_id: str) -> Start | None:
    """Forecasts when a job of this plan would start. The time is a function of durations that the caller sees."""
    owner = session.get_one(Dataset, dataset_id).owner_key
    ahead = ahead_of(session, request.caller.id, owner, spec, request.limits.lease_s)
    if ahead is None:
        return None
    duration_s = _typical_duration_s(session, grants.visible(request.caller, Job.dataset_id))
    in_s = 0.0 if ahead.ends == 0 else None if duration_s is None else round(ahead.ends * duration_s, 1)
    return Start(claims_before=ahead.claims, at_least=not ahead.is_whole, in_s=in_s)


def seconds_per_step(session: Session, dataset_id: str, spec: JobSpec) -> float | None:
    """Returns the median time per step of recent jobs of the same data set, model, sampling and search, on the same
    kind of device; None without any."""
    document = spec.model_dump(mode="json")
    like = {name: document.get(name) for name in ("model", "sampling", "blocks", "hpo")}
    kind = Job.device == "cuda" if spec.runtime.device == "cuda" else Job.device.is_distinct_from("cuda")
    recent = session.scalars(
        select(Job)
        .where(Job.dataset_id == dataset_id, Job.status == "succeeded", Job.attempt == 1, Job.study.is_(None), kind)
        .order_by(Job.created_at.desc())
        .limit(20)
    )
    times = [
        (job.finished_at - job.started_at).total_seconds() / job.steps
        for job in recent
        if job.finished_at and job.started_at and {name: job.spec.get(name) for name in like} == like
    ]
    return sorted(times)[len(times) // 2] if times else None


def _typical_duration_s(session: Session, among: ColumnElement[bool]) -> float | None:
    """Returns the median time from start to end of recent jobs that may be shown; None without any."""
    recent = (
        select(Job.started_at, Job.finished_at)
        .where(among, Job.status == "succeeded", Job.study.is_(None), Job.started_at.is_not(None))
        .order_by(Job.created_at.desc())
        .limit(20)
    )
    times = [(ended - began).total_seconds() for began, ended in session.execute(recent) if began and ended]
    return sorted(times)[len(times) // 2] if times else None


def lack_of(db: Database, runtime: Runtime, lease_s: float) -> list[str]:
    """Warns if no living worker has the devices that a job is planned for."""
    lack = GpuWorkers(db, lease_s).lack(runtime, None)
    return [] if lack is None else [LACKS[lack].format(ranks=runtime.ranks)]
