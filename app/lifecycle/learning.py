"""Warnings about a model that did not learn, or of which the noise hides it: from released scores alone.

    accuracy   within two std of the noise of chance, 1 / classes
    loss       within two std of the noise of its bound, to which each record's loss is clipped

Post-processing of numbers that were released and charged; no other score, and nothing private, is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.contracts.dataset_spec import DatasetSpec
from app.db.models import Dataset, Job, Metric
from app.privacy.mechanism import MechanismConfig
from app.privacy.releases import READABLE

STDS = 2.0


class Released(NamedTuple):
    """A released score: a mean, and the std of the noise on it."""

    name: str
    value: float
    std: float


def warnings(session: Session, job: Job) -> list[str]:
    """The warnings about a job's last released scores."""
    rows = session.scalars(select(Metric).where(Metric.job_id == job.id).order_by(Metric.step))
    last = {each.name: Released(each.name, each.value, each.std) for each in rows}
    task = DatasetSpec.model_validate(session.get_one(Dataset, job.dataset_id).spec).task
    classes = task.outputs if task.is_classification else None
    scores = MechanismConfig.model_validate(job.mechanism).scores if job.mechanism is not None else ()
    return about(last.values(), classes, next((each.sensitivity for each in scores if each.what == "loss"), None))


def about(scores: Iterable[Released], classes: int | None, loss_bound: float | None) -> list[str]:
    """The warnings about these scores.

    Args:
        classes: how many there are; None if the task has none.
        loss_bound: where each record's loss is clipped; None if losses are exact.
    """
    found = []
    for each in scores:
        if each.name == "accuracy" and classes is not None and each.value - STDS * each.std <= 1.0 / classes:
            found.append(_said(each, f"at chance, {1.0 / classes:.3g} for {classes} classes", 1.0))
        if each.name == "loss" and loss_bound is not None and each.value + STDS * each.std >= loss_bound:
            found.append(_said(each, f"at its bound, {loss_bound:g}", loss_bound))
    return found


def _said(score: Released, where: str, width: float) -> str:
    shown = f"{score.name} {score.value:.3g}" + (f" ± {score.std:.2g}" if score.std > 0.0 else "")
    if score.std <= READABLE * width:
        return f"did not learn: {shown} is {where}"
    return f"the noise hides if it learned: {shown} may be {where}; ask for a larger noise_mu of the evaluation"
