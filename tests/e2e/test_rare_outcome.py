"""A rare outcome through the real service: its probabilities are risks, in answers, in files and in the scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import scrimp
from tests.by_night import SQLITE_BY_DAY
from tests.e2e.conftest import Service, seed_of
from tests.e2e.test_spine import finished

RISKS = {"a": 0.03, "b": 0.06, "c": 0.12, "d": 0.2}
RECORDS = 4000
STAYS: dict[str, Any] = {
    "name": "rare-stays",
    "format": "csv",
    "task": {"kind": "classification", "label": "back", "classes": ["no", "yes"]},
    "features": {
        "kind": "table",
        "columns": [
            {"kind": "category", "name": "ward", "values": list(RISKS)},
            {"kind": "number", "name": "age", "range": [0, 100], "bins": 4},
        ],
    },
    "privacy": {
        "sensitivity": "private",
        "unit": "example",
        "records": RECORDS,
        "cap": {"epsilon": 16.0, "delta": 1e-5},
    },
    "holdout": {"kind": "split", "fraction": 0.25},
}


def write_stays(path: Path) -> Path:
    draw = np.random.default_rng(seed_of("stays"))
    wards, ages = draw.choice(list(RISKS), RECORDS), draw.integers(0, 100, RECORDS)
    back = draw.random(RECORDS) < np.array([RISKS[ward] for ward in wards])
    rows = zip(wards, ages, np.where(back, "yes", "no"), strict=True)
    path.write_text("ward,age,back\n" + "".join(f"{ward},{age},{yes}\n" for ward, age, yes in rows))
    return path


@pytest.mark.parametrize("service", SQLITE_BY_DAY, indirect=True)
def test_a_rare_outcome_s_probabilities_are_its_risks(service: Service, tmp_path: Path) -> None:
    records = [{"ward": ward, "age": age} for ward in RISKS for age in (12, 37, 62, 87)]
    with service.client() as client:
        dataset = client.create_dataset(STAYS, write_stays(tmp_path / "stays.csv")).id
        job = client.train(dataset, epsilon=8.0)
        document = finished(service, job.id)
        assert document["status"] == "succeeded", document
        job.fetch(tmp_path / "model")
        answers = job.predict(records)
        (histogram,) = [each.histogram for each in client.metrics(job.id) if each.histogram is not None]
    risks = np.array([each["probabilities"]["yes"] for each in answers])
    loaded = scrimp.load_model(tmp_path / "model").predict(records)
    assert [each["probabilities"]["yes"] for each in loaded] == pytest.approx(risks.tolist(), rel=1e-5)
    assert [each["class"] for each in loaded] == [each["class"] for each in answers] == ["no"] * len(records)
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    assert histogram.clip_ratios == pytest.approx(tensors["clip_ratios"].tolist(), rel=1e-6)
    mean, share = (document["metrics"][name]["value"] for name in ("mean_prediction", "positive_share"))
    slope = tensors["weight"][1] - tensors["weight"][0]
    softmax = 1.0 / (1.0 + np.exp(-np.add.outer(slope[: len(RISKS)], slope[len(RISKS) :])))
    # The noise of one training moves the level by a third; clipping left a quarter of it.
    for said in (mean, float(risks.mean())):
        assert 0.4 * share < said < 2.5 * share and said > 1.6 * float(softmax.mean())
