"""A vision transformer through the real service: priced, tuned privately, asked for predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.conftest import Service
from tests.e2e.test_language import PRIVACY
from tests.e2e.test_spine import finished, submit
from tests.hf.tiny import write

ON_SQLITE = pytest.mark.parametrize("service", ["sqlite"], indirect=True)
IMAGE = {"height": 4, "width": 5, "channels": 1, "layout": "last", "input_scale": 1 / 255}


def job(tuning: str) -> dict[str, Any]:
    return {
        "dataset": "squares",
        "model": {"kind": "hf", "path": "tiny/vit", "tuning": tuning, "image": IMAGE},
        "optimizer": {"kind": "dp_adam", "learning_rate": 0.03},
        "privacy": {"target_epsilon": 3.0},
        "sampling": {"kind": "poisson", "expected_batch_size": 64},
        "length": {"steps": 10},
        "evaluation": {"on": "holdout", "noise_mu": 0.3},
    }


@pytest.mark.nightly  # by day test_language.py tunes, test_probe.py has images, tests/hf/test_images.py both
@ON_SQLITE
def test_images_from_post_to_prediction(service: Service, tmp_path: Path) -> None:
    write(service.models / "tiny" / "vit", "vit")
    drawn = np.random.default_rng(3)
    y = drawn.integers(0, 2, 400)
    x = drawn.integers(0, 100, (400, 4, 5)) + 120 * y[:, None, None]
    np.savez(tmp_path / "x.npz", x=x.astype(np.uint8), y=y)
    declared = {
        "name": "squares",
        "format": "npz",
        "task": {"kind": "classification", "label": "y", "classes": [0, 1]},
        "features": {"kind": "tensor", "array": "x"},
        "privacy": PRIVACY | {"order": 4.0},
        "holdout": {"kind": "split", "fraction": 0.25},
    }
    with service.client() as client:
        client.create_dataset(declared, tmp_path / "x.npz")
    jobs = [submit(service, job(tuning)) for tuning in ("last_block", "lora")]
    for each in jobs:
        ended = finished(service, each)
        assert ended["status"] == "succeeded", ended["failure"]
        assert ended["metrics"]["auc"]["released_by"] == "noisy_count"
        assert ended["spec"]["model"]["patches"] == 5
    with service.client() as client:
        (answer,) = client.predict(jobs[1], [[0.0] * 20])
    assert set(answer["probabilities"]) == {"0", "1"}
