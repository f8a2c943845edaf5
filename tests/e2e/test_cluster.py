"""Several APIs, relays and workers over one database and broker: work is shared, messages are lost, a worker stops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.conftest import job_of, until

CHEAP: dict[str, Any] = {"privacy": {"target_epsilon": 0.3}, "evaluation": {"noise_mu": 0.05}}
JOBS = 4  # a job takes seconds, most of them to load torch


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.nightly), "postgres"])
def two(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of two APIs and two workers: the shared one, or one over SQLite."""
    if request.param == "postgres":
        shared: Cluster = request.getfixturevalue("cluster")
        yield shared.at_least(apis=2, workers=2)
        return
    made = Cluster(tmp_path / "home", {}).start(apis=2, relays=1, workers=2)
    yield made
    made.stop()


@pytest.mark.nightly  # by day tests/lifecycle/test_relay.py loses and doubles messages, test_claim_race.py shares
def test_work_is_shared_and_done_once_though_messages_are_lost_and_doubled(two: Cluster) -> None:
    cluster = two
    cluster.stop("relay")
    cluster.start_lossy_relay(seed=1)
    cluster.start_lossy_relay(seed=2)
    assert len(cluster.workers()) == 2
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
    ended = cluster.finished(jobs)
    shares = cluster.assert_once(dataset, ended)
    # Both workers had a share, and what one API admitted the other knows.
    assert set(shares) == set(cluster.workers())
    assert {job["id"] for job in cluster.get("/v1/jobs", api=1)["items"]} >= set(jobs)
    assert cluster.stop("lossy") == [0, 0]
    fates = Counter(cluster.words("lossy").split())
    assert fates["0"] > 0 < fates["2"], fates
    cluster.start(relays=1)


@pytest.mark.nightly  # a worker that is killed, by day: test_studies.py
def test_a_worker_that_is_stopped_gives_its_job_to_another(two: Cluster) -> None:
    cluster = two
    dataset = cluster.register("stopped")
    with cluster.client() as client:
        job = client.submit(job_of(dataset, length={"steps": 2500}, **CHEAP)).id
    until(lambda: cluster.get(f"/v1/jobs/{job}")["progress"]["step"] > 0)
    running = cluster.get(f"/v1/jobs/{job}")["attempts"][0]["worker"]
    stopped = cluster.worker_of(job)
    stopped.terminate()
    assert stopped.wait(300) == 0
    ended = cluster.finished([job])[0]
    # Exactly one more attempt, by the other worker: the one that stops does not take back what it gave back.
    assert [attempt["status"] for attempt in ended["attempts"]] == ["lost", "succeeded"], ended["attempts"]
    assert ended["attempts"][1]["worker"] != running
    assert "replay_mismatch" not in {event["type"] for event in cluster.get(f"/v1/jobs/{job}/events")["items"]}
    cluster.assert_charged(dataset, [ended])
    listed = {worker["name"] for worker in cluster.get("/v1/workers")["items"]}
    assert running not in listed and ended["attempts"][1]["worker"] in listed
    assert not [each for each in psutil.process_iter(["cmdline"]) if str(cluster.home) in str(each.info["cmdline"])]
