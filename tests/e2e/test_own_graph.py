"""A user's own model from a torch module to a certificate: exported, priced, trained, delivered, loaded."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import scrimp
from scrimp.errors import InvalidRequest
from tests.e2e.conftest import Service
from tests.e2e.test_spine import finished
from tests.graphs.architectures import Block

N, SIDE = 400, 6


class Small(nn.Module):
    """A residual network for images of bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.block = Block(4, 4, 1)
        self.scale = nn.Parameter(torch.ones(4, 1, 1))
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head((self.scale * self.block(self.stem(x / 255.0))).mean(dim=(2, 3)))
        return found


def job(path: str) -> dict[str, Any]:
    return {
        "dataset": "squares",
        "model": {"kind": "graph", "path": path},
        "optimizer": {"kind": "dp_adam", "learning_rate": 0.02},
        "privacy": {"target_epsilon": 3.0},
        "sampling": {"kind": "poisson", "expected_batch_size": 64},
        "length": {"steps": 20},
        "evaluation": {"on": "holdout", "noise_mu": 0.3},
    }


@pytest.mark.parametrize("service", ["sqlite"], indirect=True)
def test_a_module_from_file_to_certificate(service: Service, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, example = Small(), torch.zeros(1, 1, SIDE, SIDE)
    folder = service.models / "own"
    folder.mkdir(parents=True)
    scrimp.export_graph(module, example, folder / "small.pt2")
    mixing = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 2), nn.Softmax(dim=0))
    scrimp.export_graph(mixing, example, folder / "mixing.pt2")
    scrimp.export_graph(nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 3)), example, folder / "three.pt2")
    (folder / "pickled.pt2").write_bytes(with_a_pickle((folder / "small.pt2").read_bytes()))
    drawn = np.random.default_rng(3)
    y = drawn.integers(0, 2, N)
    x = drawn.integers(0, 100, (N, SIDE, SIDE)) + 120 * y[:, None, None]
    np.savez(tmp_path / "x.npz", x=x.astype(np.uint8), y=y)
    declared = {
        "name": "squares",
        "format": "npz",
        "task": {"kind": "classification", "label": "y", "classes": [0, 1]},
        "features": {"kind": "tensor", "array": "x"},
        "privacy": {"sensitivity": "private", "records": N, "cap": {"epsilon": 20.0, "delta": 1e-4}},
        "holdout": {"kind": "split", "fraction": 0.25},
    }
    with service.client() as client:
        client.create_dataset(declared, tmp_path / "x.npz")
        refused = {
            "own/mixing.pt2": "softmax.int: it mixes records",
            "own/three.pt2": "gives 3 numbers for a record; this data set needs 2",
            "own/pickled.pt2": "is a pickle, which is never opened here",
            "own/absent.pt2": "no such file",
        }
        for path, why in refused.items():
            with pytest.raises(InvalidRequest, match=why):
                client.submit(job(path))
        dataset = client.dataset("squares").id
    entries = service.get(f"/v1/datasets/{dataset}/ledger/entries")["items"]
    assert [each["kind"] for each in entries] == ["open"]  # bad input costs nothing
    with service.client() as client:
        handle = client.jobs.submit(job("own/small.pt2"))
        ended = finished(service, handle.id)
        assert ended["status"] == "succeeded", ended["failure"]
        assert ended["spec"]["model"]["parameters"] == sum(each.numel() for each in module.parameters())
        files = handle.fetch(tmp_path / "files")
        assert {"graph.json", "model.safetensors", "model.json"} <= {each.name for each in files}
        certificate = handle.certificate().certificate
        assert certificate["epsilon"]["value"] <= 3.0 + 1e-9
        images = [x[at].ravel().astype(float).tolist() for at in range(5)]
        said = client.predict(ended["id"], images)
        graph = client.upload_graph(folder / "small.pt2")
        (folder / "small.pt2").unlink()
        uploaded = job("own/small.pt2") | {"model": {"kind": "graph", "upload": graph.sha256}}
        again = finished(service, client.jobs.submit(uploaded).id)
        assert again["status"] == "succeeded", again["failure"]
        assert again["spec"]["model"]["sha256"] == ended["spec"]["model"]["sha256"] == graph.sha256
        assert len(client.predict(again["id"], images)) == len(images)
    answers = scrimp.load_model(tmp_path / "files").predict(images)
    module.load_state_dict(load_file(tmp_path / "files" / "model.safetensors"))
    with torch.no_grad():
        wanted = module(torch.from_numpy(x[:5].astype(np.float32))[:, None]).softmax(dim=1)[:, 1]
    for answer, other, share in zip(answers, said, wanted, strict=True):
        assert answer["probabilities"]["1"] == pytest.approx(float(share), abs=1e-4)
        assert other["probabilities"]["1"] == pytest.approx(float(share), abs=1e-4)


def with_a_pickle(content: bytes) -> bytes:
    """The file as `torch.export.save` would have written it, with the pickle of its example."""
    made = io.BytesIO(content)
    torch.save(torch.zeros(1), pickled := io.BytesIO())
    with zipfile.ZipFile(made, "a") as archive:
        archive.writestr(zipfile.ZipInfo("graph/data/sample_inputs/model.pt"), pickled.getvalue())
    return made.getvalue()
