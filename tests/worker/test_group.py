"""What the driver makes of a rank's end: on a real Ray, of one raylet in this process's care."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

from app.db.database import Database, TransactionOpen
from app.lifecycle import claims
from app.lifecycle.claims import give_back
from app.lifecycle.queue.room import Need
from app.lifecycle.states import get_job
from app.settings import Settings
from core.contracts.devices import Device
from core.errors import Unavailable
from scripts.ray_machines import HERE
from tests.lifecycle import conftest as lifecycle
from tests.lifecycle.conftest import Submit
from tests.processes import until
from tests.worker.support import Supervisor, spec, start_of
from tests.worker.test_devices import SHAPE

if find_spec("ray") is None:
    assert not os.environ.get("SCRIMP_REQUIRE_RAY")
    pytest.skip("Ray is not installed: pip install 'scrimp[ray]'", allow_module_level=True)

import ray
import ray.cluster_utils

from worker import tasks
from worker.cluster import group as cluster_group
from worker.cluster.group import CARD, Cluster, Group
from worker.cluster.links import LinksError
from worker.cluster.node import CRASHED
from worker.messages import PEER_GONE, exit_status

DIES = "its process dies"
PATIENCE_S = 120.0  # Ray starts a process for a task, or takes room back, also where all of it stands still meanwhile
Drivers = Callable[[], Cluster]
submit = lifecycle.submit


@pytest.fixture(scope="module")
def machines() -> Iterator[str]:
    """The address of a cluster of this process's machine, and one with other GPUs."""
    plain = {
        "include_dashboard": False,
        "include_log_monitor": False,
        "object_store_memory": 80 * 2**20,
        "node_ip_address": HERE,
    }
    here = {"num_cpus": 1, "num_gpus": 2, "labels": {CARD: "one"}}
    alone = {"_system_config": {"memory_monitor_refresh_ms": 0}}  # else what other tests take may end a task
    both = ray.cluster_utils.Cluster(initialize_head=True, head_node_args=plain | here | alone)
    both.add_node(**plain, num_cpus=0, num_gpus=3, labels={CARD: "another"})
    ray.init(address=both.address, log_to_driver=False)
    yield both.address
    ray.shutdown()
    both.shutdown()


@pytest.fixture
def driver(machines: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Drivers]:
    """Drivers in this process, which is connected. Their room is given back with the test: none begins on less."""
    monkeypatch.setattr(cluster_group, "GRANT_S", PATIENCE_S)
    monkeypatch.setattr(cluster_group, "RETURN_S", PATIENCE_S)
    drivers: list[Cluster] = []

    def start() -> Cluster:
        made = Cluster.__new__(Cluster)
        made._node = ray.get_runtime_context().get_node_id()
        made._growth = made._granted = None
        drivers.append(made)
        return made

    look = start()
    yield start
    for each in drivers:
        each.give_up()
    until(lambda: (look.free("cpu"), look.free("cuda")) == (1, 2), PATIENCE_S)


# Says in how many seconds SIGTERM's own handler will be followed by an abort; 0: never.
CONNECTS = """
import signal, sys
from worker.cluster.group import Cluster

signal.signal(signal.SIGTERM, lambda *_: None)
Cluster(sys.argv[1])
signal.raise_signal(signal.SIGTERM)
print(signal.alarm(0))
"""


@pytest.mark.slow
def test_a_driver_has_all_the_time_that_it_needs_to_end_gently(machines: str) -> None:
    """Ray's C++ aborts a process 3 s after SIGTERM, whatever the process makes of the signal."""
    command = [sys.executable, "-W", "ignore", "-c", CONNECTS, machines]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == ["0"]


@pytest.mark.parametrize("told", [False, True], ids=["in vain", "told to stop"])
def test_a_driver_that_ray_does_not_take_gives_up(monkeypatch: pytest.MonkeyPatch, *, told: bool) -> None:
    """Ray tries for twenty minutes, in which the worker would neither appear nor stop."""
    stopping, over = threading.Event(), threading.Event()
    if told:
        stopping.set()
    monkeypatch.setattr(cluster_group, "STOPPING", stopping)
    monkeypatch.setattr(cluster_group, "CONNECT_S", PATIENCE_S if told else 0.0)
    monkeypatch.setattr(ray, "init", lambda **_: over.wait())
    with pytest.raises(TimeoutError):
        Cluster("127.0.0.1:1")
    over.set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (FileNotFoundError("no storage"), "crashed"),  # SCRIMP_STORAGE_ROOT is another one there
        (RuntimeError("a bug"), "crashed"),
        (LinksError("a rank does not come"), PEER_GONE),
        (Unavailable("the bucket does not answer"), "lost"),
        (0, 0),
        (63, 63),
        (CRASHED, "crashed"),
    ],
    ids=str,
)
def test_an_actor_s_own_error_counts_and_an_outage_does_not(machines: str, end: Any, expected: int | str) -> None:
    """A job that always fails on a machine would else be queued again for ever: what is lost has no bound."""
    group = ended([end])
    assert group._ended(group._runs[0]) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([PEER_GONE, PEER_GONE], "lapsed"),  # the network between machines that live
        ([PEER_GONE, LinksError("cut off")], "lapsed"),
        ([PEER_GONE, DIES], "lapsed"),
        ([CRASHED, DIES], "crashed"),
        ([Unavailable("the bucket"), PEER_GONE], "lost"),
        ([Unavailable("the bucket"), DIES], "lapsed"),
        ([CRASHED, Unavailable("the bucket")], "crashed"),
        ([DIES, exit_status("data-damaged")], "data-damaged"),
        ([0, 0], "lapsed"),
    ],
    ids=str,
)
def test_of_several_ends_the_one_that_is_most_the_job_s_own_counts(
    machines: str, ends: list[Any], expected: str
) -> None:
    """What has a bound is never hidden behind what has none."""
    assert ended(ends).why() == expected


@pytest.mark.slow
def test_growth_is_asked_for_once_and_kept_for_nobody(driver: Drivers) -> None:
    ours, other = driver(), driver()
    assert ours.ask(Need("cpu", 1, 1, 4))
    assert ours.most("cpu") == 1 and ours._granted is not None and ours._granted.reserved == {"CPU": 1.0}, (
        "fewer than its threads"
    )
    ours.grow(1)
    asks = ours._growth
    ours.grow(1)
    assert asks is not None and asks is ours._growth and asks.is_alive()
    ours.give_up()
    asks.join(PATIENCE_S)
    assert not asks.is_alive() and until(lambda: other.ask(Need("cpu", 1, 1)), PATIENCE_S)


@pytest.mark.slow
def test_gpus_are_granted_whole_or_not_at_all_and_are_free_at_once_when_given_up(driver: Drivers) -> None:
    ours, other, two, one = driver(), driver(), Need("cuda", 2, 2), Need("cuda", 1, 1)
    assert ours.most("cuda") == 2 and ours.ask(one) and (ours.granted(one), ours.granted(two)) == (1, 0)
    assert not other.ask(two) and other.granted(two) == 0
    assert other.ask(Need("cuda", 1, 2)), "what is free of these GPUs, and not of the other machine's"
    assert other._granted is not None and other._granted.ranks == 1
    other.give_up()
    ours.give_up()
    assert other.ask(two) and other.granted(two) == 2
    assert not ours.ask(one)
    other.give_up()
    assert ours.free("cuda") == 2, "Ray says so before `give_up` returns"
    assert ours.ask(Need("cuda", 1, 8)) and ours._granted is not None and ours._granted.ranks == 2, "what is free"
    ours.give_up()


@pytest.mark.slow
def test_each_rank_has_a_gpu_of_its_own(driver: Drivers) -> None:
    ours, need = driver(), Need("cuda", 2, 2, 3)
    assert ours.ask(need) and ours._granted is not None
    with closing(Group(ours._granted)) as group:
        placed = group.placed(Supervisor(start_of(spec(), SHAPE)).message())
    ours.give_up()
    assert (placed.device, placed.processes, sorted(placed.gpus), placed.threads) == ("cuda", 2, ["0", "1"], 3)


@pytest.mark.slow
def test_a_claim_that_fails_keeps_no_room(
    driver: Drivers, db: Database, settings: Settings, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database goes away between the room and the claim: this driver may not be woken for long."""
    job, ours, this = submit(runtime={"device": "cuda", "processes": 2}), driver(), SimpleNamespace(name="w")
    gpu = Device(kind="cuda", index=0, name="A GPU")
    for name, value in {"get_settings": settings, "_cluster": ours, "_device": gpu, "_presence": this}.items():
        monkeypatch.setattr(tasks, name, lambda value=value: value)
    with db.write(), pytest.raises(TransactionOpen):
        ours.ask(Need("cuda", 2, 2))
    for place in ((claims, "take"), (tasks, "wake")):
        with monkeypatch.context() as patch, pytest.raises(ConnectionError, match="no answer"):
            patch.setattr(*place, away)
            tasks._claimed(db, settings)
        assert ours._granted is None and until(lambda: ours.free("cuda") == 2, PATIENCE_S)
        with db.write() as session:
            row = get_job(session, job, lock=True)
            if row.status == "running":
                give_back(session, row, "lapsed", 3)
    held = tasks._claimed(db, settings)
    assert held is not None and (held.job_id, held.ranks) == (job, 2)
    assert ours._granted is not None and ours._granted.ranks == 2
    ours.give_up()


def away(*_: object) -> None:
    raise ConnectionError("no answer")


def ended(ends: list[Any]) -> Group:
    """A group whose actors ended so."""

    def run(end: Any) -> int:
        if end == DIES:
            os._exit(1)
        if isinstance(end, Exception):
            raise end
        return int(end)

    remote: Any = ray.remote(max_retries=0, num_cpus=0)(run)  # whoever has the processor, it runs
    group = Group.__new__(Group)
    group._runs, group._closed = [remote.remote(end) for end in ends], threading.Event()
    left = ray.wait(group._runs, num_returns=len(ends), timeout=PATIENCE_S)[1]
    assert not left, f"{len(left)} of {len(ends)} tasks have not ended after {PATIENCE_S:.0f} s: {ray.nodes()}"
    return group
