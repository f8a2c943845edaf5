"""Regression with a declared range: models learn it as [−1, 1], answers and scores are in the target's unit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.contracts.dataset_spec import RegressionTask
from core.errors import PrivacyError
from core.parts.stored_records import StoredPart
from core.parts.table_cells import in_unit, standardised
from core.privacy.releases import SCORE, NoisyCount, NoisySum
from tests.worker.support import Supervisor, dense, records, run_thread, spec, start_of, stored_part
from worker.messages import Finished, MetricValue
from worker.metrics.regression_fit import GRID, Fit, fit_cells
from worker.metrics.scores import noisy_fit, public_scores
from worker.models.linear import Linear

ENDS = (100.0, 900.0)
DOLLARS = RegressionTask(label="y", range=ENDS)
KEY = bytes(range(32))


def declared(**changes: Any) -> NoisyCount | NoisySum:
    common = {"what": "r_squared", "account": "holdout", "noise_mu": 0.5, "records": 400, "sensitivity": math.sqrt(2.0)}
    return SCORE.validate_python(common | changes)


def test_a_target_in_its_range_and_back() -> None:
    part = StoredPart(np.zeros((4, 1), dtype=np.float32), np.array([100.0, 500.0, 900.0, 5_000.0]))
    assert standardised(part, DOLLARS).y.tolist() == [-1.0, 0.0, 1.0, 1.0]
    assert in_unit(np.array([-1.0, 0.0, 1.0, 7.0]), DOLLARS).tolist() == [100.0, 500.0, 900.0, 900.0]
    plain = RegressionTask(label="y")
    assert standardised(part, plain) is part and in_unit(part.y, plain) is part.y
    assert plain.model_dump() == {"kind": "regression", "label": "y"}, "stored documents keep their bytes"
    with pytest.raises(ValueError, match="least, most"):
        RegressionTask(label="y", range=(2.0, 1.0))


def attempt(folder: Path, y: np.ndarray[Any, Any], task: dict[str, Any]) -> tuple[str, dict[str, float]]:
    """The published weights' digest, and the scores of an attempt on 300 private records; the hold-out is public."""
    x, _ = dense(400, 6, 1)
    job = spec(evaluation={"on": "holdout"}, length={"steps": 6})
    (folder / "out").mkdir(parents=True)
    parts = {
        "train": stored_part(folder / "train", x[:300], y[:300]),
        "holdout": stored_part(folder / "holdout", x[300:], y[300:]),
    }
    shape = {"records_train": 300, "records_holdout": 100, "features": 6, "outputs": 1, "sparse": False}
    start = start_of(job, shape, holdout_public=True, parts=parts, output_dir=folder / "out") | {"task": task}
    supervisor = Supervisor(start)
    run_thread(supervisor)
    (finished,) = supervisor.of(Finished)
    weights = next(each for each in finished.artifacts if each.path.endswith(".safetensors"))
    return weights.sha256, {each.name: each.value for each in supervisor.of(MetricValue)}


def test_an_attempt_trains_on_the_range_and_scores_in_the_unit(tmp_path: Path) -> None:
    x, _ = dense(400, 6, 1)
    y = 500.0 + 60.0 * x[:, 0].astype(np.float64)
    of_range, scores = attempt(tmp_path / "dollars", y, DOLLARS.model_dump(mode="json"))
    by_hand, others = attempt(tmp_path / "by hand", (y - 500.0) / 400.0, {"kind": "regression", "label": "y"})
    assert of_range == by_hand and scores["loss"] == others["loss"]
    assert scores["rmse"] == pytest.approx(400.0 * math.sqrt(scores["loss"]), rel=1e-3)
    held = y[300:]
    assert scores["r_squared"] == pytest.approx(1.0 - scores["rmse"] ** 2 / held.var(), rel=1e-3)
    assert "r_squared" not in others


@given(output=st.floats(), label=st.floats())
def test_a_record_adds_at_most_the_sensitivity(output: float, label: float) -> None:
    cells = fit_cells(torch.tensor([[output]], dtype=torch.float64), torch.tensor([label], dtype=torch.float64))
    assert bool((cells >= 0).all())
    assert cells[0, :2].sum() == cells[0, 2:].sum() == GRID
    assert float((cells.double() / GRID).norm()) <= math.sqrt(2.0)


def test_noise_on_r_squared_is_as_it_says() -> None:
    x, _ = dense(400, 6, 1)
    y = np.clip(0.3 * x[:, 0].astype(np.float64), -1.0, 1.0)
    model = Linear(6, 1)
    parameters = {"weight": torch.tensor([[0.2, 0.0, 0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)}
    exact = {each.name: each.value for each in public_scores(model, parameters, records(x, y), ends=ENDS)}
    release = declared(noise_mu=2.0)
    many = [noisy_fit(release, KEY, step, 0, model, parameters, records(x, y), ENDS) for step in range(300)]
    for values, stds, name in (
        ([each.value for each in many], [each.std for each in many], "r_squared"),
        ([each.parts[0].value for each in many], [each.parts[0].std for each in many], "rmse"),
    ):
        assert np.mean(values) == pytest.approx(exact[name], abs=5.0 * np.std(values) / math.sqrt(300) + 0.01)
        assert np.std(values) == pytest.approx(np.mean(stds), rel=0.2)
    assert noisy_fit(release, KEY, 3, 0, model, parameters, records(x, y), ENDS) == many[3]


def test_r_squared_of_other_declarations_is_refused() -> None:
    with pytest.raises(ValueError, match="√2"):
        declared(sensitivity=1.0)
    loss = SCORE.validate_python(declared().model_dump() | {"what": "loss"})
    x, y = dense(10, 6, 1)
    with pytest.raises(PrivacyError, match="R²"):
        noisy_fit(loss, KEY, 1, 0, Linear(6, 1), Linear(6, 1).init(), records(x, y), ENDS)


def test_a_fit_without_records_has_numbers() -> None:
    fit = Fit.of([0.0] * 5, 1.0, ENDS)
    assert all(math.isfinite(each) for each in (fit.r_squared, fit.r_squared_std, fit.rmse, fit.rmse_std))
