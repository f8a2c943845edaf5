"""/v1/workers: the worker processes, which of them live, and what they run."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter
from sqlalchemy import select

from app.db.clock import now_there
from app.db.models import Job, Worker
from app.db.row_view import Given, RowView, Whole
from app.grants.service import visible
from app.keys.auth import CurrentKey
from app.lifecycle.queue.presence import is_alive, runs_jobs, workers
from app.web.deps import Db, ServiceSettings
from app.web.route_operation import Operation
from core import leaves
from core.contracts.base import Document
from core.contracts.devices import Device
from core.contracts.sandbox import Sandbox

router = APIRouter(prefix="/v1/workers", tags=["workers"])


class WorkerView(Document, RowView):
    """A worker process and what it runs."""

    name: str  # host:pid, as in a job's attempts
    host: str
    pid: int
    started_at: datetime
    seen_at: datetime
    alive: Annotated[bool, Given()]  # seen within `lease_s`
    sandbox: Sandbox | None  # the isolation of its attempts, as it tested it; null: not known
    devices: list[Device] | None  # what it computes on, one attempt at a time; null: not known
    gpus: Annotated[int, Given()]  # the most that one job can have there
    skew_s: float | None  # how far its own clock is ahead of the database's
    runs: Annotated[Literal["jobs", "readings"], Given()]  # readings: it reads data files, and runs no job
    job: Annotated[str | None, Given()]  # its running job, if the calling key may see it


class WorkerList(Document, Whole[WorkerView]):
    """The workers of the last day."""


@router.get("")
@Operation("Workers seen in the last day.", audience="every key", leaves=leaves.FLEET, command="workers")
def list_workers(db: Db, settings: ServiceSettings, caller: CurrentKey) -> WorkerList:
    """Lists workers seen in the last day, the last seen first. A worker that shut down cleanly is left out."""
    with db.read() as session:
        rows = workers(session)
        running = [job for _worker, job in rows if job is not None]
        seen = set(session.scalars(select(Job.id).where(Job.id.in_(running), visible(caller, Job.dataset_id))))
        at = now_there(session)
        return WorkerList(
            items=[
                _view(worker, job if job in seen else None, is_alive(worker, settings.lease_s, at))
                for worker, job in rows
            ]
        )


def _view(worker: Worker, job: str | None, alive: bool) -> WorkerView:
    gpus = max((Device.model_validate(each).most_gpus for each in worker.devices or ()), default=0)
    return WorkerView.of(worker, alive=alive, gpus=gpus, runs="jobs" if runs_jobs(worker) else "readings", job=job)
