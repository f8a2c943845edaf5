"""A service over a Ray cluster of three raylets on this machine, which a file's tests share, and what they ask it.

A file that declares GPUS has so many on each raylet: Ray counts them, and the ranks compute on the processor
(tests/e2e/declared_gpus).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from scripts.ray_machines import Machines
from tests.e2e.conftest import SERVED, Service, csv_spec, job_of, write_csv

WITHOUT = "Ray is not installed: pip install 'scrimp[ray]'"
DECLARED_GPUS = Path(__file__).resolve().parent / "declared_gpus"
MLP = {"kind": "mlp", "hidden": [16]}
SMALL = {"physical_batch_size": 240, "threads": 1}
STEPS = 120


@pytest.fixture(scope="module")
def machines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    if find_spec("ray") is None:
        assert not os.environ.get("SCRIMP_REQUIRE_RAY"), WITHOUT
        pytest.skip(WITHOUT)
    gpus: int = getattr(request.module, "GPUS", 0)
    folder = tmp_path_factory.mktemp("ray")
    settings = {"SCRIMP_HOME": str(folder / "home")}  # the storage that all share
    if gpus:
        path = filter(None, (str(DECLARED_GPUS), os.environ.get("PYTHONPATH")))
        settings["PYTHONPATH"] = os.pathsep.join(path)
    with closing(Machines(3, folder, settings, gpus)) as made:
        yield made


@pytest.fixture(scope="module")
def service(machines: Machines) -> Iterator[Service]:
    more = {"SCRIMP_RAY_ADDRESS": machines.address, "SCRIMP_CHECKPOINT_S": "1"}
    made = Service(Path(machines.environment["SCRIMP_HOME"]), SERVED | machines.environment | more)
    yield made.start()
    assert made.stop() == 0


@pytest.fixture(scope="module")
def dataset(service: Service, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = write_csv(tmp_path_factory.mktemp("data") / "ray.csv")
    with service.client() as client:
        return client.create_dataset(csv_spec("ray") | {"privacy": {"sensitivity": "public"}}, path).id


def job(dataset: str, processes: int, steps: int = STEPS) -> dict[str, Any]:
    asked = job_of(dataset, model=MLP, seed=5, length={"steps": steps}, privacy={"noise_multiplier": 30.0})
    return asked | {"runtime": SMALL | {"processes": processes}}


def model(ended: dict[str, Any]) -> str:
    assert ended["status"] == "succeeded", ended
    (sha256,) = [each["sha256"] for each in ended["artifacts"] if each["name"] == "model.safetensors"]
    return str(sha256)


def progress(service: Service, job_id: str) -> int:
    return int(service.get(f"/v1/jobs/{job_id}")["progress"]["step"])


def begun(ended: dict[str, Any]) -> str:
    return str(ended["attempts"][0]["started_at"])


def attempts(ended: dict[str, Any]) -> list[str]:
    return [each["status"] for each in ended["attempts"]]
