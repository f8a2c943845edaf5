"""Jobs on a Ray cluster of three raylets on this machine, through the API: the bits of one process, whatever dies.

Ray's own connections ask for a token and are encrypted.
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
from tests.e2e.conftest import SERVED, Service, csv_spec, job_of, until, write_csv
from tests.e2e.test_ranks import events
from tests.e2e.test_spine import finished, submit

WITHOUT = "Ray is not installed: pip install 'scrimp[ray]'"
MLP = {"kind": "mlp", "hidden": [16]}
SMALL = {"physical_batch_size": 240, "threads": 1}
STEPS = 120
NO_ROOM = "no room for 3 ranks"


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    if find_spec("ray") is None:
        assert not os.environ.get("SCRIMP_REQUIRE_RAY"), WITHOUT
        pytest.skip(WITHOUT)
    folder = tmp_path_factory.mktemp("ray")
    with closing(Machines(3, folder, {"SCRIMP_HOME": str(folder / "home")})) as made:  # the storage that all share
        yield made


@pytest.fixture(scope="module")
def service(machines: Machines) -> Iterator[Service]:
    made = Service(
        Path(machines.environment["SCRIMP_HOME"]),
        SERVED | machines.environment | {"SCRIMP_RAY_ADDRESS": machines.address, "SCRIMP_CHECKPOINT_S": "1"},
    )
    yield made.start()
    assert made.stop() == 0


@pytest.fixture(scope="module")
def dataset(service: Service, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = write_csv(tmp_path_factory.mktemp("data") / "ray.csv")
    with service.client() as client:
        return client.create_dataset(csv_spec("ray") | {"privacy": {"sensitivity": "public"}}, path).id


@pytest.fixture(scope="module")
def alone(service: Service, dataset: str) -> dict[str, Any]:
    """The job on one process without Ray."""
    address = service.environment.pop("SCRIMP_RAY_ADDRESS")
    service.kill_and_start()
    ended = finished(service, submit(service, job(dataset, 1)))
    service.environment["SCRIMP_RAY_ADDRESS"] = address
    service.kill_and_start()
    return ended


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


@pytest.mark.slow
def test_a_job_has_the_same_bits_on_one_two_and_three_machines_and_without_ray(
    service: Service, machines: Machines, dataset: str, alone: dict[str, Any]
) -> None:
    for size in (1, 2, 3):
        ended = finished(service, submit(service, job(dataset, size)))
        assert model(ended) == model(alone) and attempts(ended) == ["succeeded"], size
        assert ended["metrics"] == alone["metrics"]
    until(lambda: machines.ask("groups") == "0")


@pytest.mark.slow
def test_a_machine_that_dies_costs_no_step_twice(
    service: Service, machines: Machines, dataset: str, alone: dict[str, Any]
) -> None:
    """The lease is given back, and fewer machines go on from the checkpoint, to the same bits."""
    running = submit(service, job(dataset, 3))
    until(lambda: progress(service, running) > 5)
    assert machines.ask("kill 2") == "killed"
    ended = finished(service, running)
    assert model(ended) == model(alone) and ended["metrics"] == alone["metrics"]
    # Until Ray has noticed, the next attempt may wait for room in vain: that is no crash either.
    assert (
        set(attempts(ended)[:-1]) == {"lost"}
        and attempts(ended)[-1] == "succeeded"
        and not events(service, running, "replay_mismatch")
    )
    assert machines.ask("start") == "started"


@pytest.mark.slow
def test_a_driver_that_dies_takes_its_ranks_along(
    service: Service, machines: Machines, dataset: str, alone: dict[str, Any]
) -> None:
    running = submit(service, job(dataset, 2))
    until(lambda: progress(service, running) > 5)
    driver = service.running("worker.celery_app")
    assert driver is not None
    driver.kill()
    ended = finished(service, running)
    assert model(ended) == model(alone) and not events(service, running, "replay_mismatch")
    assert attempts(ended)[-1] == "succeeded" and len(attempts(ended)) == 2
    until(lambda: machines.ask("groups") == "0")


@pytest.mark.slow
def test_a_job_too_large_for_the_cluster_waits_and_says_so_and_another_passes(service: Service, dataset: str) -> None:
    large = submit(service, job(dataset, 6))
    small = finished(service, submit(service, job(dataset, 2, steps=6)))
    assert small["status"] == "succeeded"
    waiting = service.get(f"/v1/jobs/{large}")
    assert (waiting["status"], waiting["waiting_for"]) == ("queued", "processes")
    with service.client() as client:
        client.cancel(large)
    assert finished(service, large)["status"] == "cancelled"


@pytest.mark.slow
def test_a_job_whose_turn_it_is_waits_in_the_queue_while_machines_are_in_use(
    service: Service, machines: Machines, dataset: str, alone: dict[str, Any]
) -> None:
    """No other is claimed before it, and it is no attempt until there is room for all of it."""
    assert machines.ask("take") == "taken"
    large = submit(service, job(dataset, 3))
    small = submit(service, job(dataset, 1, steps=6))
    log = service.home / "logs" / "worker.log"
    before = log.read_text().count(NO_ROOM)
    until(lambda: log.read_text().count(NO_ROOM) >= before + 2)  # it was woken and looked, again and again
    assert [service.get(f"/v1/jobs/{each}")["attempts"] for each in (large, small)] == [[], []]
    assert machines.ask("release") == "released"
    ended, later = finished(service, large), finished(service, small)
    assert model(ended) == model(alone) and attempts(ended) == attempts(later) == ["succeeded"]
    assert begun(ended) < begun(later)


@pytest.mark.slow
def test_a_cancel_frees_the_machines(service: Service, machines: Machines, dataset: str) -> None:
    running = submit(service, job(dataset, 3, steps=20_000))
    until(lambda: events(service, running, "ready"))  # all ranks have computed the same by then
    assert machines.ask("groups") == "1"
    with service.client() as client:
        client.cancel(running)
    assert finished(service, running)["status"] == "cancelled"
    until(lambda: machines.ask("groups") == "0")
