"""A job's answer in one line: its last main score with its band, against what needs no training.

Only released numbers and the declaration are read: nothing here is computed from private data again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.dashboard.numbers import significant
from app.jobs.schemas import MetricView
from core.contracts.dataset_spec import ClassificationTask, TaskSettings

# What a job is judged by, the first that it released.
MAIN = ("auc", "r_squared", "macro_f1", "ndcg", "accuracy", "hit", "loss")
NAMES = {"auc": "AUC", "r_squared": "R²", "macro_f1": "macro-F1", "ndcg": "NDCG", "hit": "HIT"}
NORMAL_95 = 1.96


@dataclass(frozen=True)
class Headline:
    """The answer.

    Attributes:
        band: ± 95 % of the noise; None where the number is exact.
        baseline: what the score is without training; None where nothing public says.
    """

    name: str
    value: float
    band: float | None
    step: int
    on: str
    baseline: str | None


def headline(metrics: Sequence[MetricView], task: TaskSettings) -> Headline | None:
    """The last release of the main score; None where none was released."""
    name = main_score(metrics)
    if name is None:
        return None
    last = max((each for each in metrics if each.name == name), key=lambda metric: metric.step)
    return Headline(
        name=NAMES.get(name.partition("@")[0], name),
        value=last.value,
        band=NORMAL_95 * last.std if last.std else None,
        step=last.step,
        on=last.on,
        baseline=_baseline(name, (each for each in metrics if each.step == last.step), task),
    )


def main_score(metrics: Sequence[MetricView]) -> str | None:
    """The name of the score by which a job is judged; None where none was released."""
    return next((each.name for main in MAIN for each in metrics if each.name.partition("@")[0] == main), None)


def _baseline(name: str, references: Iterable[MetricView], task: TaskSettings) -> str | None:
    match name:
        case "auc":
            return "0.5 by chance"
        case "r_squared":
            return "0 for the mean"
        case "accuracy" if isinstance(task, ClassificationTask):
            share = next((each.value for each in references if each.name == "largest_share"), None)
            if share is None:
                share = max(task.shares) if task.shares else None
            if share is not None:
                return f"{significant(share, 3)} for always the largest class"
            return f"{significant(1 / len(task.classes), 3)} by chance among {len(task.classes)} classes"
        case _:
            return None
