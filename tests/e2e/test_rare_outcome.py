"""A rare outcome through the real service: its probabilities are risks, in answers, in files and in the scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import scrimp
from tests.by_night import SQLITE_BY_DAY
from tests.e2e import stays
from tests.e2e.conftest import Service, seed_of
from tests.e2e.test_spine import finished

RISKS = {"a": 0.03, "b": 0.06, "c": 0.12, "d": 0.2}
RECORDS = 4000
STAYS = stays.declaration("rare-stays", RISKS, RECORDS, 16.0, bins=4)
STAYS |= {"holdout": {"kind": "split", "fraction": 0.25}}


@pytest.mark.parametrize("service", SQLITE_BY_DAY, indirect=True)
def test_a_rare_outcome_s_probabilities_are_its_risks(service: Service, tmp_path: Path) -> None:
    records = [{"ward": ward, "age": age} for ward in RISKS for age in (12, 37, 62, 87)]
    with service.client() as client:
        dataset = client.create_dataset(STAYS, stays.write(tmp_path / "stays.csv", RISKS, RECORDS, seed_of("stays"))).id
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
