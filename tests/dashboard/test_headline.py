"""The answer of a job: its last main score with its band, against what is public."""

from __future__ import annotations

from typing import Any

import pytest

from app.dashboard.headline import headline
from app.jobs.schemas import MetricView
from core.contracts.dataset_spec import ClassificationTask, RegressionTask

YES_NO = ClassificationTask(label="y", classes=["no", "yes"])
SHARED = ClassificationTask(label="y", classes=["no", "yes"], shares=(0.84, 0.16))
NUMBER = RegressionTask(label="y", range=(0.0, 1.0))
CASES: list[tuple[list[tuple[str, int, float]], Any, tuple[str, float, str | None]]] = [
    ([("accuracy", 50, 0.9), ("auc", 25, 0.6), ("auc", 50, 0.7)], YES_NO, ("AUC", 0.7, "0.5 by chance")),
    ([("accuracy", 50, 0.9)], YES_NO, ("accuracy", 0.9, "0.5 by chance among 2 classes")),
    ([("accuracy", 50, 0.9)], SHARED, ("accuracy", 0.9, "0.84 for always the largest class")),
    (
        [("largest_share", 25, 0.7), ("accuracy", 50, 0.9), ("largest_share", 50, 0.8)],
        SHARED,
        ("accuracy", 0.9, "0.8 for always the largest class"),
    ),
    ([("r_squared", 50, 0.3), ("rmse", 50, 2.0)], NUMBER, ("R²", 0.3, "0 for the mean")),
    ([("ndcg@10", 30, 0.05)], NUMBER, ("NDCG", 0.05, None)),
]


@pytest.mark.parametrize(("numbers", "task", "expected"), CASES)
def test_the_last_main_score_stands_against_its_baseline(
    numbers: list[tuple[str, int, float]], task: Any, expected: tuple[str, float, str | None]
) -> None:
    metrics = [
        MetricView(name=name, step=step, value=value, std=0.01, on="holdout", released_by="noisy_count")
        for name, step, value in numbers
    ]
    found = headline(metrics, task)
    assert found is not None and (found.name, found.value, found.baseline) == expected
    assert found.band == pytest.approx(0.0196)


def test_a_job_that_released_nothing_has_no_answer() -> None:
    assert headline([], YES_NO) is None
