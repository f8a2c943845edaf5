"""What the driver makes of a rank's end: on a real Ray, of one raylet in this process's care."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from core.errors import Unavailable

if find_spec("ray") is None:
    assert not os.environ.get("SCRIMP_REQUIRE_RAY")
    pytest.skip("Ray is not installed: pip install 'scrimp[ray]'", allow_module_level=True)

import ray

from worker.attempt.rank_processes import PEER_GONE, exit_status
from worker.cluster.group import Group
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
