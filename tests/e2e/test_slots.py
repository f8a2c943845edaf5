"""Slots that an owner states after the registration, of a part that is stored in the order of its slots."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from core.contracts.memory import in_memory, record_bytes
from scrimp.errors import InvalidRequest
from tests.e2e.conftest import Service, csv_spec, job_of, seed_of, write_csv
from tests.e2e.test_ranks import events
from tests.e2e.test_spine import finished, submit

NAME, FEATURES, RECORDS, DECLARED = "stated-later", 1000, 60, 140_000
DEFAULT, MORE, FEWER = 147_064, 160_000, 140_001


def document() -> dict[str, Any]:
    spec = csv_spec(NAME, records=DECLARED, cap={"epsilon": 8.0, "delta": 1e-6})
    return spec | {"features": {"kind": "columns", "columns": [f"x{i}" for i in range(FEATURES)]}, "holdout": None}


def parts(service: Service, dataset: str) -> dict[str, str]:
    files = (service.home / "storage" / "datasets" / dataset).rglob("*.arrow")
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.nightly  # by day tests/datasets/test_slots.py, tests/worker/test_slot_order.py
@pytest.mark.parametrize("service", ["sqlite"], indirect=True)
def test_a_sorted_part_keeps_its_slots_and_trains_under_others(service: Service, tmp_path: Path) -> None:
    """Nothing is sorted again: its rows are those of its file, and the bound is that of the stated slots."""
    assert not in_memory(DEFAULT, record_bytes(FEATURES, sparse=False, rating=False)), "it stays on disk, sorted"
    file = write_csv(tmp_path / "data.csv", rows=RECORDS, features=FEATURES, seed=seed_of(NAME))
    with service.client() as client:
        dataset = client.create_dataset(document(), file).id
    stored = parts(service, dataset)
    assert len(stored) == 1
    scored = {"on": "train", "noise_mu": 0.2, "metrics": ["accuracy"]}
    asked = job_of(dataset, privacy={"noise_multiplier": 20.0}, length={"steps": 1}, evaluation=scored)
    for slots in (MORE, FEWER):
        with service.client() as client:
            changed = client.redeclare_dataset(dataset, {"slots": {"train": slots}})
        assert changed.slots is not None and changed.slots.train.units == slots
        ended = finished(service, submit(service, asked))
        assert ended["status"] == "succeeded", ended["failure"]
        assert ended["quote"]["numerics"]["rows_per_step"] == slots
        (ready,) = events(service, ended["id"], "ready")
        assert ready["numerics"]["rows_per_step"] == slots
        assert list(ended["metrics"]) == ["accuracy"] and parts(service, dataset) == stored
    with service.client() as client, pytest.raises(InvalidRequest, match="/slots/train"):
        client.redeclare_dataset(dataset, {"records": 10, "slots": {"train": RECORDS - 1}})
