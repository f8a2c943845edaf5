"""Several APIs and workers over one database; messages lost and doubled on the real transports; Redis down and up."""

from __future__ import annotations

import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.db.engine import Database
from app.lifecycle.presence import workers
from app.lifecycle.relay import Relay, celery_bell, signing_key
from app.settings import Settings
from tests import servers
from tests.conftest import BACKINGS
from tests.e2e.cluster import Cluster
from tests.e2e.conftest import csv_spec, environment_of, job_of, until, write_csv

CHEAP: dict[str, Any] = {"privacy": {"target_epsilon": 0.5}, "evaluation": {"noise_mu": 0.05}}


@pytest.fixture
def production(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path / "home", environment_of("postgres", request))
    yield cluster
    cluster.stop()


def register(cluster: Cluster, folder: Path, name: str = "shared") -> str:
    with cluster.client() as client:
        return client.create_dataset(csv_spec(name), write_csv(folder / f"{name}.csv")).id


def get(cluster: Cluster, path: str, api: int = 0) -> Any:
    with cluster.client(api) as client:
        return client._http.get(path).json()


def all_finished(cluster: Cluster, jobs: list[str]) -> list[dict[str, Any]] | None:
    found = [get(cluster, f"/v1/jobs/{job}") for job in jobs]
    return found if all(each["status"] in ("succeeded", "failed", "cancelled") for each in found) else None


def assert_each_ran_once(cluster: Cluster, dataset: str, ended: list[dict[str, Any]]) -> None:
    for job in ended:
        assert job["status"] == "succeeded", job
        assert [attempt["status"] for attempt in job["attempts"]] == ["succeeded"]
    ledger = get(cluster, f"/v1/datasets/{dataset}/ledger")["accounts"]
    for account in ("train", "holdout"):
        assert ledger[account]["spent"] == sum(job["quote"]["charge"][account] for job in ended)
        assert ledger[account]["held"] == 0
    assert get(cluster, f"/v1/datasets/{dataset}/ledger/verify")["valid"] is True


def test_two_apis_and_two_workers_share_the_queue(production: Cluster, tmp_path: Path) -> None:
    production.api()
    production.api()
    production.relay()
    production.worker()
    production.worker()
    until(lambda: len(get(production, "/v1/workers")["items"]) == 2)
    dataset = register(production, tmp_path)
    jobs = []
    for number in range(6):
        with production.client(number % 2) as client:
            jobs.append(client.submit(job_of(dataset, length={"steps": 100}, **CHEAP)).id)
    ended = until(lambda: all_finished(production, jobs), 240) or []
    assert_each_ran_once(production, dataset, ended)
    # What one API admitted the other knows, and both workers had a share.
    assert {job["id"] for job in get(production, "/v1/jobs", api=1)["items"]} == set(jobs)
    shares = Counter(job["attempts"][0]["worker"] for job in ended)
    assert len(shares) == 2, shares
    assert set(production.stop()) <= {0, -signal.SIGTERM}  # uvicorn ends in order and then by the signal
    # Those that stopped in order are not listed any more.
    db = Database(production.environment["SCRIMP_DATABASE_URL"])
    with db.read() as session:
        assert workers(session) == []
    db.close()


@pytest.mark.parametrize("backing", BACKINGS)
def test_messages_lost_and_doubled_on_the_real_transport_are_harmless(
    backing: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    cluster = Cluster(tmp_path / "home", environment_of(backing, request))
    settings = Settings(
        home=cluster.home,
        database_url=cluster.environment.get("SCRIMP_DATABASE_URL", ""),
        broker_url=cluster.environment.get("SCRIMP_BROKER_URL", ""),
        ring_again_s=1.0,
    )
    real, chance, fates = celery_bell(settings), random.Random(11), Counter[int]()

    def bell(job_id: str) -> None:
        fate = chance.random()
        times = 0 if fate < 0.3 else 2 if fate < 0.6 else 1
        fates[times] += 1
        for _ in range(times):
            real(job_id)

    stop, db = threading.Event(), Database.of(settings)
    relay = threading.Thread(target=Relay(db, settings, signing_key(settings), bell).run, args=(stop,))
    try:
        cluster.api()
        cluster.worker()
        relay.start()
        dataset = register(cluster, tmp_path)
        with cluster.client() as client:
            jobs = [client.submit(job_of(dataset, **CHEAP)).id for _ in range(4)]
        ended = until(lambda: all_finished(cluster, jobs), 240) or []
        assert_each_ran_once(cluster, dataset, ended)
        assert fates[0] > 0
        assert fates[2] > 0
    finally:
        stop.set()
        relay.join(20)
        cluster.stop()
        db.close()


def test_a_job_waits_for_a_redis_that_is_down(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with servers.redis() as redis:
        environment = environment_of("postgres", request) | {"SCRIMP_BROKER_URL": redis.url()}
        cluster = Cluster(tmp_path / "home", environment)
        try:
            cluster.api()
            cluster.relay()
            cluster.worker()
            until(lambda: get(cluster, "/v1/workers")["items"])
            dataset = register(cluster, tmp_path)
            with cluster.client() as client:
                before = client.submit(job_of(dataset, **CHEAP)).id
            until(lambda: all_finished(cluster, [before]), 120)
            redis.kill()
            with cluster.client() as client:
                waiting = client.submit(job_of(dataset, **CHEAP)).id
            ready = get(cluster, "/readyz")
            assert ready["checks"]["broker"] != "ok"
            assert ready["checks"]["database"] == "ok"
            assert get(cluster, f"/v1/jobs/{waiting}")["status"] == "queued"
            redis.start()
            ended = until(lambda: all_finished(cluster, [before, waiting]), 240) or []
            assert_each_ran_once(cluster, dataset, ended)
        finally:
            cluster.stop()
