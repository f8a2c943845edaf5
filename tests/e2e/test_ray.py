"""By night, jobs on a Ray cluster of three raylets on this machine, through the API: the bits of one process.

Ray's own connections ask for a token and are encrypted.
"""

from __future__ import annotations

from typing import Any

import pytest

from scripts.ray_machines import Machines
from tests.e2e import on_ray
from tests.e2e.conftest import Service, until
from tests.e2e.on_ray import attempts, begun, job, model, progress
from tests.e2e.test_ranks import events
from tests.e2e.test_spine import finished, submit

NO_ROOM = "no room for 3 ranks"
machines, service, dataset = on_ray.machines, on_ray.service, on_ray.dataset


@pytest.fixture(scope="module")
def alone(service: Service, dataset: str) -> dict[str, Any]:
    """The job on one process without Ray."""
    address = service.environment.pop("SCRIMP_RAY_ADDRESS")
    service.kill_and_start()
    ended = finished(service, submit(service, job(dataset, 1)))
    service.environment["SCRIMP_RAY_ADDRESS"] = address
    service.kill_and_start()
    return ended


@pytest.mark.nightly  # by day three machines and then two, in test_ray_gpus.py
def test_a_job_has_the_same_bits_on_one_two_and_three_machines_and_without_ray(
    service: Service, machines: Machines, dataset: str, alone: dict[str, Any]
) -> None:
    for size in (1, 2, 3):
        ended = finished(service, submit(service, job(dataset, size)))
        assert model(ended) == model(alone) and attempts(ended) == ["succeeded"], size
        assert ended["metrics"] == alone["metrics"]
    until(lambda: machines.ask("groups") == "0")


@pytest.mark.nightly  # by day on GPUs, in test_ray_gpus.py
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


@pytest.mark.nightly  # by day tests/lifecycle/test_room.py
def test_a_job_too_large_for_the_cluster_waits_and_says_so_and_another_passes(service: Service, dataset: str) -> None:
    large = submit(service, job(dataset, 6))
    small = finished(service, submit(service, job(dataset, 2, steps=6)))
    assert small["status"] == "succeeded"
    waiting = service.get(f"/v1/jobs/{large}")
    assert (waiting["status"], waiting["waiting_for"]) == ("queued", "processes")
    with service.client() as client:
        client.cancel(large)
    assert finished(service, large)["status"] == "cancelled"


@pytest.mark.nightly  # by day tests/lifecycle/test_room.py
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


@pytest.mark.nightly  # by day on GPUs, in test_ray_gpus.py
def test_a_cancel_frees_the_machines(service: Service, machines: Machines, dataset: str) -> None:
    running = submit(service, job(dataset, 3, steps=20_000))
    until(lambda: events(service, running, "ready"))  # all ranks have computed the same by then
    assert machines.ask("groups") == "1"
    with service.client() as client:
        client.cancel(running)
    assert finished(service, running)["status"] == "cancelled"
    until(lambda: machines.ask("groups") == "0")
