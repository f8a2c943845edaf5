"""What the driver makes of a rank's end: on a real Ray, of one raylet in this process's care."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from core.errors import Unavailable
from tests.processes import until

if find_spec("ray") is None:
    assert not os.environ.get("SCRIMP_REQUIRE_RAY")
    pytest.skip("Ray is not installed: pip install 'scrimp[ray]'", allow_module_level=True)

import ray

from worker.attempt.rank_processes import PEER_GONE, exit_status
from worker.cluster.group import Cluster, Group
from worker.cluster.links import LinksError
from worker.cluster.node import CRASHED

DIES = "its process dies"


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(address="local", num_cpus=1, include_dashboard=False, object_store_memory=80 * 2**20, log_to_driver=False)
    yield
    ray.shutdown()


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
def test_an_actor_s_own_error_counts_and_an_outage_does_not(cluster: None, end: Any, expected: int | str) -> None:
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
    cluster: None, ends: list[Any], expected: str
) -> None:
    """What has a bound is never hidden behind what has none."""
    assert ended(ends).why() == expected


@pytest.mark.slow
def test_room_is_what_is_free_now_and_growth_is_asked_for_once_and_kept_for_nobody(cluster: None) -> None:
    ours = Cluster.__new__(Cluster)
    ours._growth = None
    assert until(ours.free) == ours.most() == 1
    with ours.room(1, {"CPU": 1.0}, lambda: True) as room:
        assert room is not None
        until(lambda: ours.free() == 0)
        assert ours.share(1, 4) == 1, "fewer than its threads"
        ours.grow(1)
        asks = ours._growth
        ours.grow(1)
        assert asks is not None and asks is ours._growth and asks.is_alive()
    asks.join(300)
    assert not asks.is_alive() and until(ours.free) == 1


def ended(ends: list[Any]) -> Group:
    """A group whose actors ended so."""

    def run(end: Any) -> int:
        if end == DIES:
            os._exit(1)
        if isinstance(end, Exception):
            raise end
        return int(end)

    remote: Any = ray.remote(max_retries=0)(run)
    group = Group.__new__(Group)
    group._runs, group._closed = [remote.remote(end) for end in ends], threading.Event()
    ray.wait(group._runs, num_returns=len(ends), timeout=300)
    return group
