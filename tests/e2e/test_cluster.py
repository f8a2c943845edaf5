"""Several APIs, relays and workers over one database and broker: shared work, lost messages, a worker that is stopped.

Each test adds to the cluster what it needs; processes are slow to start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.conftest import environment_of, job_of, until

CHEAP: dict[str, Any] = {"privacy": {"target_epsilon": 0.3}, "evaluation": {"noise_mu": 0.05}}
JOBS = 6  # a job takes seconds, most of them to load torch


@pytest.fixture(scope="module", params=[pytest.param("sqlite", marks=pytest.mark.nightly), "postgres"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp("cluster") / "home"
    made = Cluster(home, environment_of(str(request.param), request)).start(apis=2, workers=2)
    yield made
    made.stop()


def test_work_is_shared_and_done_once_though_messages_are_lost_and_doubled(cluster: Cluster) -> None:
    cluster.start_lossy_relay(seed=1)
    cluster.start_lossy_relay(seed=2)
    assert [worker["alive"] for worker in cluster.get("/v1/workers", api=1)["items"]] == [True, True]
    dataset = cluster.register("shared")

    def submit(number: int) -> tuple[str, str]:
        """Every third job goes through one API alone, the others through both at once with one Idempotency-Key."""
        spec = job_of(dataset, name=f"job {number}", **CHEAP)
        made = []
        for api in (0, 1) if number % 3 else (0, 0):
            with cluster.client(api) as client:
                headers = {"Idempotency-Key": f"key {number}"}
                made.append(client._http.post("/v1/jobs", json=spec, headers=headers).json()["id"])
        return made[0], made[1]

    with ThreadPoolExecutor(8) as pool:
        twice = [*pool.map(submit, range(JOBS)), *pool.map(submit, reversed(range(JOBS)))]
    jobs = [first for first, _ in twice[:JOBS]]
    assert len(set(jobs)) == JOBS
    assert {each for pair in twice for each in pair} == set(jobs)
    ended = cluster.finished(jobs, 300)
    shares = cluster.assert_once(dataset, ended)
    # Both workers had a share, and what one API admitted the other knows.
    assert set(shares) == {worker["name"] for worker in cluster.get("/v1/workers")["items"]}
    assert {job["id"] for job in cluster.get("/v1/jobs", api=1)["items"]} >= set(jobs)
    assert cluster.stop("lossy") == [0, 0]
    fates = Counter(cluster.words("lossy").split())
    assert fates["0"] > 0 < fates["2"], fates


def test_a_worker_that_is_stopped_gives_its_job_to_another(cluster: Cluster) -> None:
    dataset = cluster.register("stopped")
    cluster.start(relays=1)
    with cluster.client() as client:
        job = client.submit(job_of(dataset, length={"steps": 4000}, **CHEAP)).id
    until(lambda: cluster.get(f"/v1/jobs/{job}")["progress"]["step"] > 0)
    running = cluster.get(f"/v1/jobs/{job}")["attempts"][0]["worker"]
    stopped = next(each for each in cluster.processes["worker"] if running.endswith(f":{each.pid}"))
    stopped.terminate()
    assert stopped.wait(60) == 0
    ended = cluster.finished([job])[0]
    # Exactly one more attempt, by the other worker: the one that stops does not take back what it gave back.
    assert [attempt["status"] for attempt in ended["attempts"]] == ["lost", "succeeded"], ended["attempts"]
    assert ended["attempts"][1]["worker"] != running
    assert "replay_mismatch" not in {event["type"] for event in cluster.get(f"/v1/jobs/{job}/events")["items"]}
    cluster.assert_charged(dataset, [ended])
    assert [worker["name"] for worker in cluster.get("/v1/workers")["items"]] == [ended["attempts"][1]["worker"]]
    assert not [each for each in psutil.process_iter(["cmdline"]) if str(cluster.home) in str(each.info["cmdline"])]
