"""The worst attacks that this service has been through, against its real processes: `pytest -m attack` runs all seven.
Two are elsewhere: the flood of tests/access/test_doors.py, the hostile attempt of tests/worker/test_sandbox.py.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from app.db.database import Database
from scrimp.client import Client
from tests.chaos import tamper
from tests.chaos.deployment import LIBFAKETIME
from tests.e2e.cluster import Cluster
from tests.e2e.conftest import Service, csv_spec, job_of, seed_of, until, write_csv
from tests.e2e.test_spine import ON_SQLITE, finished, register, submit

pytestmark = pytest.mark.attack
BEHIND = "/problems/ledger-behind"
CAP = {"epsilon": 1.0, "delta": 1e-5}
MOST: dict[str, Any] = {"privacy": {"target_epsilon": 0.95}, "evaluation": {"noise_mu": 0.05}}


@pytest.fixture(scope="module")
def worker(cluster: Cluster) -> Iterator[subprocess.Popen[bytes]]:
    """One whose clock is 20 s ahead. That is wrong, but runs: the time since the machine's start stays what it is."""
    cluster.stop("worker")
    wrong = {"LD_PRELOAD": str(LIBFAKETIME), "FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME": "+20s"}
    made = cluster._run("worker", *cluster._command("worker"), **wrong if LIBFAKETIME else {})
    until(cluster.workers)
    yield made
    cluster.stop("worker")


@pytest.mark.nightly  # by day tests/lifecycle/test_clocks.py
@pytest.mark.slow
@pytest.mark.skipif(LIBFAKETIME is None, reason="libfaketime is not here (apt install faketime)")
def test_a_worker_whose_clock_is_wrong_runs_each_job_once(cluster: Cluster, worker: subprocess.Popen[bytes]) -> None:
    """+20 s against a lease: a job was taken back in every sweep, until it failed. tests/lifecycle/test_clocks.py shows
    the same with a clock that is injected; there on SQLite too, where one machine has one clock.

    Attack (Reliability): Worker's clock 20 s off the relay's, lease 8 s
    Now: one attempt: leases are written and judged by the database's clock
    Also: tests/lifecycle/test_clocks.py::test_a_worker_whose_clock_is_wrong_keeps_its_job
    """
    dataset = cluster.register("clocks")
    steps = {"length": {"steps": 500}, "privacy": {"target_epsilon": 0.3}}
    with cluster.client() as client:
        jobs = [client.submit(job_of(dataset, name=f"job {number}", **MOST | steps)).id for number in range(2)]
    cluster.assert_once(dataset, cluster.finished(jobs))
    assert worker.poll() is None


@pytest.mark.nightly  # by day tests/lifecycle/test_zombies.py
@pytest.mark.slow
def test_a_zombie_leaves_the_model_that_was_paid_for(cluster: Cluster, worker: subprocess.Popen[bytes]) -> None:
    """Attempt 1 stood still after its claim, and when it went on deleted the model of attempt 2: 404, and ε spent.

    Attack (Reliability): An attempt whose lease was taken wakes up late
    Now: it touches no file before a fenced write, and removes older attempts' folders alone
    Also: tests/lifecycle/test_zombies.py::test_a_published_folder_is_never_removed
    """
    dataset = cluster.register("zombie")
    worker.send_signal(signal.SIGSTOP)  # so that the zombie claims first
    options = ["--pool", "solo", "--concurrency", "1", "--without-gossip", "--without-mingle"]
    zombie = cluster._run("zombie", "-m", "celery", "--app", "tests.e2e.zombie_worker", "worker", *options)
    try:
        with cluster.client() as client:
            job = client.submit(job_of(dataset, **MOST)).id
        until(lambda: psutil.Process(zombie.pid).status() == psutil.STATUS_STOPPED)
    finally:
        worker.send_signal(signal.SIGCONT)
    (ended,) = cluster.finished([job])
    assert [each["status"] for each in ended["attempts"]] == ["lost", "succeeded"], ended["attempts"]
    zombie.send_signal(signal.SIGCONT)
    until(lambda: f"attempt 1 of {job} is stale" in cluster.words("zombie"))
    cluster.stop("zombie")
    (model,) = (each for each in ended["artifacts"] if each["name"] == "model.safetensors")
    with cluster.client() as client:
        answer = client._http.get(f"/v1/jobs/{job}/artifacts/model.safetensors")
    assert (answer.status_code, hashlib.sha256(answer.content).hexdigest()) == (200, model["sha256"])
    cluster.assert_charged(dataset, [ended])


def asked_again(service: Service, dataset: str) -> httpx.Response:
    with service.client() as client:
        return client._http.post("/v1/jobs", json=job_of(dataset, **MOST), headers={"Idempotency-Key": "again"})


def spent(service: Service, dataset: str) -> int:
    return int(service.get(f"/v1/datasets/{dataset}/ledger")["accounts"]["train"]["spent"])


@pytest.mark.nightly  # by day tests/lifecycle/test_restore.py
@ON_SQLITE
def test_a_restored_backup_spends_nothing_twice(service: Service, tmp_path: Path) -> None:
    """ε = 0.95 of a cap of 1 was spent, the database restored, and 0.95 admitted again.

    Attack (Reliability): The database is restored from a backup
    Now: 409 `/problems/ledger-behind`, `"state": "behind"`, `/readyz` degraded; untouched data sets stay open
    Also: tests/lifecycle/test_restore.py::test_spending_that_a_backup_forgot_is_not_admitted_again
    """
    dataset, database = register(service, "restored", tmp_path, cap=CAP), service.home / "scrimp.db"
    with sqlite3.connect(database) as connection:
        connection.execute("VACUUM INTO ?", (str(tmp_path / "backup.db"),))
    connection.close()
    assert finished(service, submit(service, job_of(dataset, **MOST)))["status"] == "succeeded"
    before = spent(service, dataset)
    service.kill()
    for each in service.home.glob("scrimp.db*"):
        each.unlink()
    (tmp_path / "backup.db").rename(database)
    service.start()
    assert (spent(service, dataset), service.get(f"/v1/datasets/{dataset}")["state"]) == (0, "behind")
    assert service.get("/readyz")["checks"]["ledger"] == "LedgerBehindError"
    assert asked_again(service, dataset).json()["type"] == BEHIND
    line = [sys.executable, "-m", "scrimp.cli", "restore", "--home", str(service.home), "--post", dataset]
    subprocess.run([*line, "--reason", "the disk died"], env=os.environ, check=True, capture_output=True)
    assert (spent(service, dataset), service.get(f"/v1/datasets/{dataset}")["state"]) == (before, "ready")
    assert asked_again(service, dataset).json()["type"] == "/problems/budget-exceeded"


@ON_SQLITE
def test_a_chain_that_was_rewritten_is_found(service: Service, tmp_path: Path) -> None:
    """By somebody with the database's password, consistently: it was "valid", though certificates sign other heads.

    Attack (Reliability): A ledger is rewritten consistently
    Now: every certificate's head, the signed one and the recorded one are looked for: invalid, admits nothing
    Also: tests/ledger/test_anchors.py::test_without_certificates_the_signed_head_and_the_record_find_it
    """
    dataset = register(service, "rewritten", tmp_path, cap=CAP)
    job = submit(service, job_of(dataset, **MOST))
    assert finished(service, job)["status"] == "succeeded"
    until(lambda: "certificate" in service.get(f"/v1/jobs/{job}/certificate"))
    db = Database(f"sqlite:///{service.home / 'scrimp.db'}")
    with tamper.unprotected(db) as session:
        rows = tamper.rows_of(session, dataset)
        tamper.rewrite(session, dataset, keep=1)
    assert spent(service, dataset) == 0
    verified = service.verification(dataset)
    assert (verified["valid"], verified["first_bad_entry"]) == (False, 2), verified
    assert asked_again(service, dataset).json()["type"] == BEHIND
    with tamper.unprotected(db) as session:
        tamper.put_back(session, dataset, rows)
    db.close()
    assert service.verification(dataset)["valid"] is True


class Tenant:
    """An analyst with a key of its own, who may train on a data set."""

    def __init__(self, service: Service, name: str, dataset: str) -> None:
        with service.client() as admin:
            made = admin._http.post("/v1/keys", json={"name": name, "role": "analyst"}).json()
            granted = admin._http.put(f"/v1/datasets/{dataset}/grants/{made['key']['id']}", json={"access": "train"})
        assert granted.status_code in (200, 201), granted.text
        self.dataset, self.client = dataset, Client(f"http://127.0.0.1:{service.port}", made["token"])

    def spec(self, epsilon: float, steps: int = 10) -> dict[str, Any]:
        privacy = {"target_epsilon": epsilon}
        return job_of(self.dataset, privacy=privacy, length={"steps": steps}, evaluation=None)

    def quote(self, epsilon: float) -> int:
        return self.client._http.post("/v1/quotes", json=self.spec(epsilon)).status_code


@pytest.mark.nightly  # by day tests/jobs/test_fair_prices.py and tests/lifecycle/test_fair.py
@ON_SQLITE
def test_a_greedy_tenant_delays_another_by_one_turn(service: Service, tmp_path: Path) -> None:
    """24 quotes at a time made another's 8 of 8 answer 503; jobs of 10⁷ steps held the only worker for hours.

    Attack (Doors): 24 quotes of one key at a time
    Now: two are priced, 16 wait, the rest is that key's own 503; another's are 200
    Also: tests/jobs/test_fair_prices.py::test_a_greedy_key_waits_and_another_does_not

    Attack (Doors): A job of 10⁷ steps before another owner's 5
    Now: owners and keys take turns; over 10⁴ random arrivals nobody is passed over twice by one other
    Also: tests/lifecycle/test_fair.py::test_nobody_is_passed_over_twice_by_one_other,
    tests/lifecycle/test_fair.py::test_a_planted_first_come_first_served_fails_all_of_that
    """
    csv = write_csv(tmp_path / "shared.csv", seed=seed_of("shared-by-tenants"))
    with service.client() as admin:
        dataset = admin.create_dataset(csv_spec("shared-by-tenants"), csv).id
    greedy, modest = Tenant(service, "greedy", dataset), Tenant(service, "modest", dataset)
    enough, numbers = threading.Event(), itertools.count(1)

    def ask() -> set[int]:
        answers = set()
        while not enough.is_set():  # each time another price, which no cache holds
            answers.add(greedy.quote(0.1 + next(numbers) * 1e-5))
            enough.wait(0.3)
        return answers

    with ThreadPoolExecutor(24) as pool:
        asking = [pool.submit(ask) for _ in range(24)]
        try:
            assert [modest.quote(1.0 + number / 100) for number in range(8)] == [200] * 8
        finally:
            enough.set()
    assert set().union(*(each.result() for each in asking)) <= {200, 503}

    runs, *backlog = [greedy.client.submit(greedy.spec(0.1 + number / 100, 10**7)).id for number in range(8)]
    until(lambda: service.get(f"/v1/jobs/{runs}")["status"] == "running")
    job = modest.client.submit(modest.spec(0.1, steps=5)).id
    greedy.client.cancel(runs)  # the worker is free: whose turn is it?
    assert finished(service, job)["status"] == "succeeded"
    waiting = [service.get(f"/v1/jobs/{each}")["status"] for each in backlog]
    assert waiting[1:] == ["queued"] * 6 and waiting[0] in ("queued", "running"), waiting
    for each in reversed(backlog):
        greedy.client.cancel(each)
    assert {finished(service, each)["status"] for each in backlog} == {"cancelled"}
    for tenant in (greedy, modest):
        tenant.client.close()
