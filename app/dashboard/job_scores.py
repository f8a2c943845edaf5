"""The scores on a job's page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy.orm import Session

from app.dashboard.curve import Curve, curves
from app.dashboard.headline import Headline, headline, main_score
from app.db.models import Dataset, Job, Metric
from app.jobs import repository as jobs
from app.jobs.schemas import MetricView
from core.contracts.dataset_spec import ClassificationTask, DatasetSpec, Task

if TYPE_CHECKING:
    from app.dashboard.two_classes import TwoClasses


@dataclass(frozen=True)
class Scores:
    """A job's released scores.

    Attributes:
        headline: the last main score; None where none was released.
    """

    metrics: list[MetricView]
    curves: list[Curve]
    two_classes: TwoClasses | None
    headline: Headline | None


def scores_of(session: Session, job: Job, dataset: Dataset, released: Sequence[Metric]) -> Scores:
    """Gathers a job's scores."""
    metrics, task = [MetricView.of(metric) for metric in released], DatasetSpec.model_validate(dataset.spec).task
    # A chart ends at T. A study's `steps` counts its trials; its scores are the final trial's.
    last = max((each.step for each in metrics), default=1) if job.study is not None else job.steps
    main = main_score(metrics)
    drawn = sorted(curves(metrics, last), key=lambda curve: curve.name != main)  # the page folds all but the first
    return Scores(metrics, drawn, _two_classes(session, job, task), headline(metrics, task))


def _two_classes(session: Session, job: Job, task: Task) -> TwoClasses | None:
    """Draws the job's last histogram of scores, if it released one."""
    last = jobs.last_histogram(session, job.id)
    if last is None or last.histogram is None or not isinstance(task, ClassificationTask):
        return None
    from app.dashboard.two_classes import two_classes  # noqa: PLC0415  # loads numpy

    return two_classes(last.histogram, last.step, last.on, task.classes)
