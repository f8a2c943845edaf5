"""A linear probe through the real service: texts, a tiny extractor from the models root, private training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Service, csv_spec, job_of
from tests.e2e.test_spine import finished, submit
from tests.worker.extractor import write_extractor


def probe(**changes: Any) -> dict[str, Any]:
    return (
        job_of(
            "texts",
            model={"kind": "linear", "extractor": {"name": "tiny-extractor"}},
            length={"steps": 12},
            privacy={"target_epsilon": 8.0},
        )
        | changes
    )


@pytest.mark.parametrize("service", ["sqlite"], indirect=True)
def test_a_private_probe(service: Service, tmp_path: Path) -> None:
    write_extractor(service.models / "tiny-extractor")
    texts = [f"{'good good good' if i % 2 else 'bad bad bad'} {i},{i % 2}" for i in range(400)]
    (tmp_path / "t.csv").write_text("x,y\n" + "\n".join(texts) + "\n")
    declared = csv_spec("texts", records=400, cap={"epsilon": 20.0, "delta": 1e-5}) | {
        "features": {"kind": "text", "column": "x"}
    }
    with service.client() as client:
        dataset = client.create_dataset(declared, tmp_path / "t.csv").id
    ended = finished(service, submit(service, probe()))
    assert ended["status"] == "succeeded", ended["failure"]
    assert ended["metrics"]["accuracy"]["value"] > 0.8
    folder = service.home / "storage" / "datasets" / dataset / "features"
    kept = {path: path.stat().st_ino for path in folder.iterdir()}
    assert len(kept) == 2, "train and hold-out"
    assert finished(service, submit(service, probe(name="again")))["status"] == "succeeded"
    assert {path: path.stat().st_ino for path in folder.iterdir()} == kept, "made once"
