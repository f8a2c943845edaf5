"""/dashboard/compare: two or more jobs side by side: curves, the settings that differ, scores over ε."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from sqlalchemy.orm import Session

from app.dashboard.overlay import Compared, overlays, tradeoff
from app.dashboard.page import PageRoute, render
from app.dashboard.viewer import HOME, CurrentViewer
from app.db.models import Dataset
from app.grants.service import require_job
from app.jobs import repository as jobs
from app.jobs.schemas import JobView, MetricView
from app.keys.service import Caller
from app.lifecycle.queue.presence import GpuWorkers
from app.web.deps import Db, Gpus
from app.web.route_operation import Page
from core.contracts.job_spec import JobSpec

PAGE = f"{HOME}/compare"
router = APIRouter(prefix=PAGE, include_in_schema=False, route_class=PageRoute)
MOST = 8  # as many as there are colours
Ids = Annotated[list[Annotated[str, Path(pattern=r"^[A-Za-z0-9_]{1,100}$")]], Query(max_length=200)]
# The page shows these in its heading of each job.
APART = ("dataset", "name")


@dataclass(frozen=True)
class Difference:
    """A setting that is not the same in all jobs; empty where a job has none."""

    setting: str
    values: list[str]


@router.get("")
@Page("every key")
def compare_page(
    request: Request,
    db: Db,
    gpus: Gpus,
    viewer: CurrentViewer,
    job: Ids = [],  # noqa: B006 - FastAPI copies it
) -> Response:
    """Compares jobs that the viewer may see."""
    job_ids = list(dict.fromkeys(job))
    with db.read() as session:
        compared = [_compared(session, viewer.caller, gpus, at, each) for at, each in enumerate(job_ids[:MOST])]
    drawn = overlays(compared)
    return render(
        request,
        "compare.html",
        viewer=viewer,
        jobs=compared,
        left_out=max(0, len(job_ids) - MOST),
        overlays=drawn,
        tradeoffs=[(each.name, chart) for each in drawn if (chart := tradeoff(each)) is not None],
        differences=differences(compared),
    )


def _compared(session: Session, caller: Caller, gpus: GpuWorkers, number: int, job_id: str) -> Compared:
    """One job, as far as the viewer may see it.

    Raises:
        NotFound: no such job, or the viewer may not see it.
    """
    job = require_job(session, caller, job_id)
    details = jobs.details(session, [job_id])[job_id]
    dataset = session.get_one(Dataset, job.dataset_id)
    metrics = [MetricView.of(each) for each in details["metrics"]]
    return Compared(number, JobView.of_job(job, details, gpus), dataset.name, metrics)


def differences(compared: list[Compared]) -> list[Difference]:
    """The settings that are not the same in all jobs, in the order of a JobSpec."""
    flat = [dict(_settings(each.job.spec)) for each in compared]
    order = [each.replace("_", " ") for each in JobSpec.model_fields]
    names = dict.fromkeys(name for each in flat for name in each)
    names = dict.fromkeys(sorted(names, key=lambda name: order.index(name.partition(":")[0])))
    rows = [Difference(name, [each.get(name, "") for each in flat]) for name in names]
    return [row for row in rows if len(set(row.values)) > 1]


def _settings(node: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Every setting by the names that lead to it; none where it is null."""
    if isinstance(node, dict):
        for name, value in node.items():
            if path or name not in APART:
                yield from _settings(value, (*path, str(name)))
    elif node is not None:
        text = node if isinstance(node, str) else json.dumps(node, ensure_ascii=False)
        yield ": ".join(path).replace("_", " "), text
