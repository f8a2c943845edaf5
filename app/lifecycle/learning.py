"""Warnings about a model that did not learn, or of which the noise hides it: from released scores alone.

    two classes  accuracy within two std of the larger class's share, and AUC within two std of 0.5: of the noise and of
                 the draw of records, both from the released histogram of scores
    more classes accuracy within two std of the noise of the largest class's share, from one histogram (`macro_f1`)
    accuracy     alone: within two std of the noise of chance, 1 / classes
    loss         within two std of the noise of its bound, to which each record's loss is clipped

Post-processing of numbers that were released and charged; no other score, and nothing private, is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.models import Dataset, Job, Metric
from core.contracts.dataset_spec import ClassificationTask, DatasetSpec
from core.privacy.mechanism import MechanismConfig
from core.privacy.quoted import Quoted
from core.privacy.releases import LEARN, MORE, STDS, is_as_good, with_std


class Released(NamedTuple):
    """A released score: a mean, and the std of the noise on it."""

    name: str
    value: float
    std: float


def warnings(session: Session, job: Job) -> list[str]:
    """The warnings about a job's last released scores."""
    rows = session.scalars(select(Metric).where(Metric.job_id == job.id).order_by(Metric.step)).all()
    if not rows:
        return []
    last = {each.name: Released(each.name, each.value, each.std) for each in rows}
    task = DatasetSpec.model_validate(session.get_one(Dataset, job.dataset_id).spec).task
    scores = MechanismConfig.model_validate(job.mechanism).scores if job.mechanism is not None else ()
    loss_bound = next((each.sensitivity for each in scores if each.what == "loss"), None)
    histogram = next((each.histogram for each in reversed(rows) if each.histogram is not None), None)
    if histogram is not None and isinstance(task, ClassificationTask):
        from core.privacy.larger_class import against_larger_class  # noqa: PLC0415

        other_scores = (each for each in last.values() if each.name != "accuracy")
        return [*about(other_scores, None, loss_bound), *against_larger_class(histogram, task.classes)]
    return about(last.values(), task.outputs if task.is_classification else None, loss_bound)


def still_true(session: Session, job: Job) -> list[str]:
    """A job's warnings of before its scores were there: what was said of their noise is known now, and smaller."""
    has_scores = session.scalar(select(Metric.step).where(Metric.job_id == job.id).limit(1)) is not None
    replaced = Quoted.of(job.quote).planned_noise if has_scores else ()
    return [each for each in job.warnings if each not in replaced]


def about(scores: Iterable[Released], classes: int | None, loss_bound: float | None) -> list[str]:
    """The warnings about these scores.

    Args:
        classes: how many there are; None if the task has none.
        loss_bound: where each record's loss is clipped; None if losses are exact.
    """
    lines, by_name = [], {each.name: each for each in scores}
    share, accuracy = by_name.get("largest_share"), by_name.get("accuracy")
    if share is not None and accuracy is not None:  # of one histogram of true and predicted classes
        std = math.hypot(share.std, accuracy.std)
        gain = accuracy.value - share.value
        if gain <= STDS * std:
            comparison = f"no more than that of always answering the largest class, {with_std(share.value, share.std)}"
            lines.append(_said(accuracy, comparison, is_as_good(gain, std)))
        classes = None
    for score in by_name.values():
        if score.name == "accuracy" and classes is not None and score.value - STDS * score.std <= 1.0 / classes:
            comparison = f"at chance, {1.0 / classes:.3g} for {classes} classes"
            lines.append(_said(score, comparison, is_as_good(score.value - 1.0 / classes, score.std)))
        if score.name == "loss" and loss_bound is not None and score.value + STDS * score.std >= loss_bound:
            gain = (loss_bound - score.value) / loss_bound
            lines.append(_said(score, f"at its bound, {loss_bound:g}", is_as_good(gain, score.std / loss_bound)))
    return lines


def _said(score: Released, comparison: str, is_shown: bool) -> str:
    number = f"{score.name} {with_std(score.value, score.std)}"
    if is_shown:
        return f"did not learn: {number} is {comparison}; {LEARN}"
    return f"the noise hides if it learned: {number} may be {comparison}; {MORE}"
