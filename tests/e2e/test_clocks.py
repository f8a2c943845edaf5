"""Workers whose clocks are wrong, as processes: with libfaketime, where it is.

Elsewhere tests/lifecycle/test_clocks.py shows the same with a clock that is injected; there on SQLite too, where one
machine has one clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.conftest import environment_of, job_of, until

FAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)
# A clock that is wrong, not one that runs otherwise: the time since the machine's start stays what it is.
CHEAP: dict[str, Any] = {"privacy": {"target_epsilon": 0.3}, "evaluation": {"noise_mu": 0.05}, "length": {"steps": 500}}
WRONG = {"LD_PRELOAD": str(FAKETIME), "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp("clocks") / "home"
    made = Cluster(home, environment_of("postgres", request)).start(apis=1, relays=1)
    yield made
    made.stop()


@pytest.mark.slow
@pytest.mark.skipif(FAKETIME is None, reason="libfaketime is not here (apt install faketime)")
def test_workers_whose_clocks_are_wrong_run_each_job_once(cluster: Cluster) -> None:
    """Against a lease of 4 s: a job was taken back in every sweep, until it failed."""
    for skew in ("-20s", "+20s"):
        cluster._run("worker", *cluster._command("worker"), FAKETIME=skew, **WRONG)
    until(lambda: len(cluster.get("/v1/workers")["items"]) == 2)
    dataset = cluster.register("clocks")
    with cluster.client() as client:
        jobs = [client.submit(job_of(dataset, name=f"job {number}", **CHEAP)).id for number in range(4)]
    cluster.assert_once(dataset, cluster.finished(jobs))
