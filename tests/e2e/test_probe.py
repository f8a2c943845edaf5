"""Linear probes through the real service: an extractor from the models root, private training, a prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from core.contracts.extractor import ImageInput
from tests.e2e.conftest import Service, csv_spec, job_of
from tests.e2e.test_spine import finished, submit
from tests.worker.extractor import write_extractor, write_image_extractor
from worker.extractors.efficientnet import EfficientNet

IMAGE = {"height": 8, "width": 6, "channels": 1, "input_scale": 1 / 255}


def probe(dataset: str, extractor: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return (
        job_of(
            dataset,
            model={"kind": "linear", "extractor": extractor},
            length={"steps": 12},
            privacy={"target_epsilon": 8.0},
        )
        | changes
    )


ON_SQLITE = pytest.mark.parametrize("service", ["sqlite"], indirect=True)


@pytest.mark.nightly  # by day one of images; transformers in an attempt, in test_language.py
@ON_SQLITE
def test_a_private_probe_of_texts(service: Service, tmp_path: Path) -> None:
    write_extractor(service.models / "words")
    texts = [f"{'good good good' if i % 2 else 'bad bad bad'} {i},{i % 2}" for i in range(400)]
    (tmp_path / "t.csv").write_text("x,y\n" + "\n".join(texts) + "\n")
    declared = csv_spec("texts", records=400, cap={"epsilon": 20.0, "delta": 1e-5}) | {
        "features": {"kind": "text", "column": "x"}
    }
    with service.client() as client:
        dataset = client.create_dataset(declared, tmp_path / "t.csv").id
    ended = finished(service, first := submit(service, probe("texts", {"name": "words"})))
    assert ended["status"] == "succeeded", ended["failure"]
    assert ended["metrics"]["accuracy"]["value"] > 0.8
    folder = service.home / "storage" / "datasets" / dataset / "features"
    kept = {path: path.stat().st_ino for path in folder.glob("*.arrow")}
    assert len(kept) == 2, "train and hold-out"
    model = {"kind": "linear", "extractor": {"name": "words"}, "center": {"noise_mu": 0.5}}
    ended = finished(service, centred := submit(service, probe("texts", {}, name="again", model=model)))
    assert ended["status"] == "succeeded", ended["failure"]
    assert [line["what"] for line in ended["quote"]["lines"]] == ["training", "mean", "evaluation"]
    with service.client() as client:
        for job in (first, centred):
            answers = client.predict(job, ["bad bad bad", "good good good"])
            assert [each["class"] for each in answers] == [0, 1], "less the features' mean, where there is one"
    found = {path: path.stat().st_ino for path in folder.glob("*.arrow")}
    assert found == kept, "made once; of a prediction nothing is kept"


@ON_SQLITE
def test_a_private_probe_of_images(service: Service, tmp_path: Path) -> None:
    """Too few images to learn from: what is predicted is what the released model says of their features."""
    eyes_sha256 = write_image_extractor(service.models / "eyes")
    x = np.random.default_rng(0).integers(0, 256, (40, 48)).astype(np.float32)
    np.savez(tmp_path / "i.npz", x=x, y=np.arange(40) % 2)
    declared = csv_spec("seen", records=40, cap={"epsilon": 20.0, "delta": 1e-5}) | {
        "format": "npz",
        "features": {"kind": "tensor", "array": "x"},
    }
    with service.client() as client:
        client.create_dataset(declared, tmp_path / "i.npz")
    job = submit(service, probe("seen", {"name": "eyes", "image": IMAGE}, evaluation=None))
    ended = finished(service, job)
    assert ended["status"] == "succeeded", ended["failure"]
    with service.client() as client:
        answers = client.predict(job, x[:4].tolist())
        weights = safetensors.torch.load(client._http.get(f"/v1/jobs/{job}/artifacts/model.safetensors").content)
    eyes = EfficientNet(service.models / "eyes", eyes_sha256, ImageInput.model_validate(IMAGE))
    features = torch.stack([eyes(each) for each in x[:4]]).double()
    wanted = torch.softmax(features @ weights["weight"].double().T, dim=1)
    got = [[each["probabilities"][name] for name in ("0", "1")] for each in answers]
    torch.testing.assert_close(torch.tensor(got, dtype=torch.float64), wanted, rtol=1e-5, atol=1e-12)
    assert [each["class"] for each in answers] == wanted.argmax(dim=1).tolist()
