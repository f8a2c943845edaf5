"""Macro-F1 and what comes with it, beside scikit-learn's metrics: exact, one cell a record, the noise that it says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy import stats
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score, recall_score

from core.contracts.metrics import confusion_parts
from core.errors import PrivacyError
from core.privacy.releases import NoisyCount
from tests.worker.support import dense, records
from worker.metrics.confusion import confusion_cell, confusion_scores
from worker.metrics.scores import _private_sums, noisy_score, public_scores
from worker.models.linear import Linear

K = 4
KEY = bytes(range(32))
MODEL = Linear(6, K)


def declared(noise_mu: float = 0.5, **changes: Any) -> NoisyCount:
    named: dict[str, Any] = {"what": "macro_f1", "account": "holdout", "records": 600, "classes": K}
    return NoisyCount(**named | {"noise_mu": noise_mu} | changes)


def fitted() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return {"weight": torch.randn(K, 6, dtype=torch.float64, generator=generator)}


def data(n: int = 600) -> tuple[Any, np.ndarray, np.ndarray]:
    """Records, their classes (the last is rare), and the model's answers."""
    x, y = dense(n, 6, K)
    y[(y == K - 1) & (np.arange(n) % 5 > 0)] = 0
    outputs = MODEL.forward(fitted(), records(x, y))
    return records(x, y), y, outputs.argmax(dim=0).numpy()


def test_exact_scores_are_scikit_learn_s() -> None:
    batch, y, answers = data()
    found = {each.name: each for each in public_scores(MODEL, fitted(), batch, confused=True)}
    assert set(found) == {"loss", "macro_f1", *confusion_parts(K)} and all(each.std == 0.0 for each in found.values())
    assert found["macro_f1"].value == pytest.approx(f1_score(y, answers, average="macro"))
    assert found["balanced_accuracy"].value == pytest.approx(balanced_accuracy_score(y, answers))
    assert found["accuracy"].value == pytest.approx(accuracy_score(y, answers))
    assert found["largest_share"].value == np.bincount(y).max() / len(y)
    recalls = [found[f"recall:{each}"].value for each in range(K)]
    assert recalls == pytest.approx(recall_score(y, answers, average=None).tolist())


def test_a_class_without_records_or_answers_counts_as_not_learned() -> None:
    y, answers = np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1])
    cells = np.zeros((3, 3))
    np.add.at(cells, (y, answers), 1.0)
    found = confusion_scores(cells, 0.0)
    wanted = f1_score(y, answers, labels=[0, 1, 2], average="macro", zero_division=0.0)
    assert found["macro_f1"].value == pytest.approx(wanted) and found["recall:2"].value == 0.0


@pytest.mark.parametrize("removed", range(0, 80, 9))
def test_one_record_is_in_one_cell(removed: int) -> None:
    x, y = dense(80, 6, K)
    kept = np.arange(80) != removed
    whole, fewer = (
        np.array(_private_sums(declared(), MODEL, fitted(), records(x[at], y[at]))) for at in (slice(None), kept)
    )
    moved = (whole - fewer).reshape(K, K)
    assert np.linalg.norm(moved) == 1.0 and moved.sum() == 1.0 and moved[y[removed]].sum() == 1.0


def test_outputs_that_are_not_finite_are_wrong() -> None:
    nan, inf = math.nan, math.inf
    outputs = torch.tensor([[0.0, nan, 1.0], [5.0, 1.0, -inf], [1.0, 9.0, inf]], dtype=torch.float64)
    assert confusion_cell(outputs, torch.tensor([1, 2, 2])).tolist() == [3 + 1, 6 + 0, 6 + 0]


def test_the_noise_is_what_was_charged_and_what_it_says() -> None:
    """Each number's error over its ± is about a standard normal: also rejects a ± of half or twice the size."""
    batch, y, answers = data()
    exact = {each.name: each.value for each in public_scores(MODEL, fitted(), batch, confused=True)}
    runs = [noisy_score(declared(), KEY, step, 0, MODEL, fitted(), batch) for step in range(400)]
    assert runs[0] == noisy_score(declared(), KEY, 0, 0, MODEL, fitted(), batch) and runs[0] != runs[1]
    assert {each.name for each in runs[0].parts} == declared().parts and runs[0].noise_std == 2.0
    for name in ("macro_f1", "balanced_accuracy", "accuracy", "largest_share", "recall:0"):
        shown = [each for run in runs for each in (run, *run.parts) if each.name == name]
        z = np.array([(each.value - exact[name]) / each.std for each in shown])
        assert stats.kstest(z, "norm").pvalue > 1e-3, name
        assert all(stats.kstest(z * scale, "norm").pvalue < 1e-3 for scale in (0.5, 2.0)), name
    assert max(run.std for run in runs) <= declared().planned[0].std * 1.1
    assert len(y) == len(answers)


def test_what_the_mechanism_does_not_declare_is_refused() -> None:
    batch, *_ = data(40)
    with pytest.raises(PrivacyError, match="classes"):
        noisy_score(declared(classes=3), KEY, 1, 0, MODEL, fitted(), batch)
    for wrong in ({"classes": None}, {"sensitivity": 2.0}, {"groups": {"rare": (1,)}}, {"what": "accuracy"}):
        with pytest.raises(ValidationError):
            declared(**wrong)
