"""One job on two processes, through the API: a rank is killed, one process goes on, and the model is that of one."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load

from tests.e2e.conftest import SERVED, Service, csv_spec, job_of, until, write_csv
from tests.e2e.test_spine import finished, submit

STEPS = 60
MLP = {"kind": "mlp", "hidden": [16]}


@pytest.fixture
def two_processes(tmp_path: Path) -> Any:
    (tmp_path / "service").mkdir()
    made = Service(tmp_path / "service" / "home", SERVED | {"SCRIMP_WORKER_PROCESSES": "2"})
    yield made.start()
    assert made.stop() == 0


def weights(service: Service, job: dict[str, Any]) -> dict[str, Any]:
    with service.client() as client:
        return load(client._http.get(f"/v1/jobs/{job['id']}/artifacts/model.safetensors").content)


def events(service: Service, job: str, kind: str) -> list[dict[str, Any]]:
    found = service.get(f"/v1/jobs/{job}/events?limit=200")["items"]
    return [each["data"] for each in found if each["type"] == kind]


@pytest.mark.nightly  # by day tests/worker/test_rank_processes.py, without a service
def test_a_job_on_two_processes_that_loses_one(two_processes: Service, tmp_path: Path) -> None:
    service = two_processes
    spec = csv_spec("shared") | {"privacy": {"sensitivity": "public"}}
    with service.client() as client:
        dataset = client.create_dataset(spec, write_csv(tmp_path / "shared.csv")).id
    asked = job_of(dataset, model=MLP, seed=5, length={"steps": STEPS}, privacy={"noise_multiplier": 30.0})
    small = {"physical_batch_size": 240, "threads": 2}
    job = submit(service, asked | {"runtime": small | {"processes": 2, "shard": "optimizer"}})
    until(lambda: service.get(f"/v1/jobs/{job}")["progress"]["step"] > 5)
    (ready,) = events(service, job, "ready")
    first, second = ready["processes"]
    service.environment["SCRIMP_WORKER_PROCESSES"] = "1"
    os.kill(second, signal.SIGKILL)
    until(lambda: events(service, job, "attempt_lost"))
    service.kill_and_start()
    lost = finished(service, job)
    assert lost["status"] == "succeeded", lost
    assert not Path(f"/proc/{first}").exists() and not Path(f"/proc/{second}").exists()
    assert len(events(service, job, "ready")[-1]["processes"]) == 1 and not events(service, job, "replay_mismatch")

    assert [each["numerics"]["threads"] for each in events(service, job, "ready")] == [2, 2]
    alone = finished(service, submit(service, asked | {"runtime": small}))
    wanted, found = weights(service, alone), weights(service, lost)
    assert wanted.keys() == found.keys() and all((wanted[name] == found[name]).all() for name in wanted)
    assert lost["metrics"] == alone["metrics"]
