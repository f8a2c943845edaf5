"""Jobs on a Ray cluster of three raylets on this machine, each with a processor and a declared GPU, through the API.

Ray's own connections ask for a token and are encrypted. This machine has two drivers.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import psutil
import pytest

from scripts.ray_machines import Machines
from tests.e2e import conftest, on_ray
from tests.e2e.conftest import Service
from tests.e2e.on_ray import attempts, begun, job, model, progress
from tests.e2e.test_ranks import events
from tests.e2e.test_spine import finished, submit

GPUS = 1
# A hang alone is longer: a driver that Ray does not take in CONNECT_S is started again, and actors have START_S.
until = partial(conftest.until, timeout_s=600.0)
machines, service, dataset = on_ray.machines, on_ray.service, on_ray.dataset


def on(device: str, dataset: str, processes: int, **more: Any) -> dict[str, Any]:
    asked = job(dataset, processes, **more)
    return asked | {"runtime": asked["runtime"] | {"device": device}}


on_gpus = partial(on, "cuda")


@pytest.mark.nightly  # by day tests/lifecycle/test_room.py
def test_a_large_job_has_its_turn_beside_a_steady_load_of_small_ones(
    service: Service, machines: Machines, dataset: str
) -> None:
    """It needs all three GPUs, and two small jobs run whenever they may: each would leave too few for it."""
    before = [submit(service, on_gpus(dataset, 1)) for _ in range(2)]
    until(lambda: all(progress(service, each) > 0 for each in before))
    large = submit(service, on_gpus(dataset, 3))
    behind = [submit(service, on_gpus(dataset, 1, steps=6)) for _ in range(2)]
    three = finished(service, large)
    ended = [finished(service, each) for each in (*before, *behind)]
    assert all(begun(each) >= begun(three) for each in ended[2:]), "none passed it"
    assert model(ended[0]) == model(ended[1]) == model(three), "the same bits on one GPU and on three"
    for each in (three, *ended):
        assert attempts(each) == ["succeeded"] and each["attempts"][0]["device"] == "cuda"
    until(lambda: machines.ask("groups") == "0")


@pytest.mark.slow
def test_whatever_ends_a_job_frees_its_gpus(service: Service, machines: Machines, dataset: str) -> None:
    """Its driver is killed; it is paused; its worker drains; it is cancelled."""
    running = submit(service, on_gpus(dataset, 2, steps=8_000))
    until(lambda: events(service, running, "ready"))
    name = service.get(f"/v1/jobs/{running}")["attempts"][0]["worker"]
    (driver,) = (each for each in service.descendants() if str(each.pid) == name.rpartition(":")[2])
    driver.kill()
    until(lambda: len(events(service, running, "ready")) == 2)
    assert machines.ask("groups") == "1" and not events(service, running, "replay_mismatch")
    with service.client() as client:
        client.pause(running)
        until(lambda: service.get(f"/v1/jobs/{running}")["status"] == "paused")
        until(lambda: machines.ask("groups") == "0")
        client.resume(running)
        until(lambda: len(events(service, running, "ready")) == 3)
        for each in service.descendants():
            with suppress(psutil.Error):  # it has ended meanwhile
                if "worker.celery_app" in each.cmdline():
                    each.terminate()
        until(lambda: len(events(service, running, "ready")) == 4)
        assert machines.ask("groups") == "1"
        client.cancel(running)
    assert finished(service, running)["status"] == "cancelled"
    until(lambda: machines.ask("groups") == "0")
    assert "SIGABRT" not in service.output.read_text(), "a worker that drains has the time that it needs"


@pytest.mark.slow
def test_a_machine_that_dies_costs_no_step_twice(service: Service, machines: Machines, dataset: str) -> None:
    """The lease is given back, and the other machines go on from the checkpoint, to the same bits. On processors, of
    which each machine has one."""
    alone = finished(service, submit(service, on("cpu", dataset, 1, steps=400)))
    running = submit(service, on("cpu", dataset, 3, steps=400))
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
