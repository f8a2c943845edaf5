"""Redis and PostgreSQL go away under a running deployment and come back: nothing is started again, no job is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests import servers
from tests.e2e.cluster import Cluster
from tests.e2e.conftest import job_of, until

CHEAP: dict[str, Any] = {"privacy": {"target_epsilon": 0.3}, "evaluation": {"noise_mu": 0.05}}


@pytest.fixture
def whole(cluster: Cluster) -> Iterator[Cluster]:
    """An API, a relay and a worker: those that a test begins with are there at its end."""
    cluster.exactly_one_worker()
    before = [process for name in ("api", "relay", "worker") for process in cluster.living(name)]
    yield cluster
    assert [process.poll() for process in before] == [None] * len(before)


def submitted(cluster: Cluster, dataset: str, **changes: Any) -> str:
    with cluster.client() as client:
        return client.submit(job_of(dataset, **CHEAP | changes)).id


@pytest.mark.nightly  # messages are lost by day in tests/lifecycle/test_relay.py
def test_jobs_wait_for_a_redis_that_was_killed_and_comes_back_empty(whole: Cluster) -> None:
    cluster, redis = whole, whole.redis
    dataset = cluster.register("redis")
    # One that runs, and one whose message Redis takes with it.
    jobs = [submitted(cluster, dataset, length={"steps": 2500}), submitted(cluster, dataset)]
    until(lambda: cluster.get(f"/v1/jobs/{jobs[0]}")["progress"]["step"] > 0)
    redis.kill()
    jobs.append(submitted(cluster, dataset))
    ready = cluster.get("/readyz")["checks"]
    assert (ready["database"], ready["broker"] == "ok") == ("ok", False)
    assert [cluster.get(f"/v1/jobs/{each}")["status"] for each in jobs[1:]] == ["queued", "queued"]
    redis.start()
    cluster.assert_once(dataset, cluster.finished(jobs))
    assert cluster.get("/readyz")["checks"]["broker"] == "ok"


def test_a_postgres_that_is_restarted_costs_a_replay_at_most(whole: Cluster) -> None:
    cluster, postgres = whole, whole.postgres
    dataset = cluster.register("postgres")
    jobs = [submitted(cluster, dataset, length={"steps": 2500}), submitted(cluster, dataset)]
    until(lambda: cluster.get(f"/v1/jobs/{jobs[0]}")["progress"]["step"] > 0)
    with servers.postgres_down(postgres), cluster.client() as client:
        for _ in range(25):  # more than the pool has connections
            answer = client._http.get("/v1/jobs")
            assert (answer.status_code, answer.json()["type"]) == (503, "/problems/unavailable")
        assert int(answer.headers["Retry-After"]) > 0
        assert client._http.get("/healthz").status_code == 200
    assert len(cluster.get("/v1/jobs")["items"]) >= 2
    ended = cluster.finished(jobs)
    assert [job["status"] for job in ended] == ["succeeded", "succeeded"]
    assert [attempt["status"] for attempt in ended[0]["attempts"]] in (["succeeded"], ["lost", "succeeded"])
    assert not {event["type"] for event in cluster.get(f"/v1/jobs/{jobs[0]}/events")["items"]} & {"replay_mismatch"}
    cluster.assert_charged(dataset, ended)
