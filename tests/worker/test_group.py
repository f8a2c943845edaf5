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

from worker.cluster.group import CRASHED, Group
from worker.cluster.links import LinksError


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(address="local", num_cpus=1, include_dashboard=False, object_store_memory=80 * 2**20, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (FileNotFoundError("no storage"), CRASHED),  # SCRIMP_STORAGE_ROOT is another one there
        (RuntimeError("a bug"), CRASHED),
        (LinksError("a rank does not come"), "lost"),
        (Unavailable("the bucket does not answer"), "lost"),
        (0, 0),
        (63, 63),
    ],
    ids=str,
)
def test_an_actor_s_own_error_counts_and_an_outage_does_not(cluster: None, end: Any, expected: int | str) -> None:
    """A job that always fails on a machine would else be queued again for ever: what is lost has no bound."""

    def run() -> int:
        if isinstance(end, Exception):
            raise end
        return int(end)

    remote: Any = ray.remote(run)
    group = Group.__new__(Group)
    group._runs, group._closed = [remote.remote()], threading.Event()
    ray.wait(group._runs, timeout=300)
    assert group._ended(group._runs[0]) == expected
