"""API, relay, ingest worker and job worker, each a process: any is lost, and no upload and no reading with it."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.db.database import Database
from app.db.models import DatasetReading
from scrimp.models import RegisteredDataset
from scrimp.reading import wait_until_read
from tests import processes
from tests.e2e.cluster import Cluster
from tests.e2e.conftest import csv_spec, job_of, on_postgres, seed_of, until, write_csv

ROWS = 20_000
BACKGROUND = {"SCRIMP_READ_AT_ONCE_BYTES": "0"}


@pytest.fixture(scope="module", params=[pytest.param("sqlite", marks=pytest.mark.nightly), "postgres"])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    backing = on_postgres(request) if request.param == "postgres" else {}
    made = Cluster(tmp_path_factory.mktemp("fleet") / "home", BACKGROUND | backing).start(apis=1, relays=1)
    yield made
    made.stop()


@pytest.fixture
def fleet(running: Cluster) -> Iterator[Cluster]:
    """Without an ingest worker: each test starts its own."""
    yield running
    running.stop("ingest")


@pytest.fixture
def db(fleet: Cluster) -> Iterator[Database]:
    url = fleet.environment.get("SCRIMP_DATABASE_URL") or f"sqlite:///{fleet.home / 'scrimp.db'}"
    made = Database(url)
    yield made
    made.close()


def go(fleet: Cluster) -> Path:
    """The file that lets held ingest workers read to the end."""
    return fleet.home.parent / "go"


def start_held(fleet: Cluster) -> None:
    """An ingest worker whose readings end when `go` is there."""
    fleet._run("ingest", "-m", "tests.e2e.held_ingest", str(go(fleet)))
    until(lambda: fleet.workers("ingest"))


def registered(fleet: Cluster, name: str, *, sent: bool = False) -> RegisteredDataset:
    """A registration that waits for its reader. `sent`: its file was uploaded, and then the API was lost."""
    file = write_csv(fleet.home.parent / f"{name}.csv", rows=ROWS, seed=seed_of(name))
    with fleet.client() as client:
        if sent:
            upload = client.upload(file)
            fleet.kill_api()
            until(lambda: fleet._answers(0))
            return client.create_dataset(csv_spec(name, records=ROWS) | {"upload": upload.id}, wait=False)
        return client.create_dataset(csv_spec(name, records=ROWS), file, wait=False)


def begun(fleet: Cluster, name: str, *, sent: bool = False) -> RegisteredDataset:
    """A registration that a held worker reads, and of which parts are there."""
    go(fleet).unlink(missing_ok=True)
    found = registered(fleet, name, sent=sent)
    folder = fleet.home / "storage" / "reading" / found.id
    processes.until(lambda: list(folder.glob("attempt-1/parts/*")))
    return found


def read(fleet: Cluster, db: Database, dataset: RegisteredDataset) -> tuple[int, int]:
    """Attempts at its file, and how many of them died, once it is one whole data set with one ledger."""
    with fleet.client() as client:
        ready = wait_until_read(client, dataset, None)
        assert ready.state == "ready" and ready.read is not None and ready.read.records == ROWS
        assert [entry.kind for entry in client.ledger_entries(dataset.id)] == ["open"]
    until(lambda: not (fleet.home / "storage" / "reading" / dataset.id).exists())
    with db.read() as session:
        row = session.get_one(DatasetReading, dataset.id)
        return row.attempt, row.deaths


@pytest.mark.nightly  # by day tests/datasets/test_ingest.py and test_reading.py
def test_no_reading_is_lost(fleet: Cluster, db: Database) -> None:
    start_held(fleet)
    (ingest,) = fleet.living("ingest")
    before = {each["name"] for each in fleet.get("/v1/workers")["items"] if each["runs"] == "readings"}
    assert before == set(fleet.workers("ingest"))
    first = begun(fleet, "first", sent=True)
    fleet.kill_api()
    until(lambda: fleet._answers(0))
    go(fleet).touch()
    assert read(fleet, db, first) == (1, 0), "the ingest worker read it, whatever happened to the API"

    second = begun(fleet, "second")
    ingest.kill()
    ingest.wait()
    assert read(fleet, db, second) == (2, 1), "an API process read it from the beginning"

    start_held(fleet)
    third = begun(fleet, "third")
    assert fleet.stop("ingest")[-1] == 0
    assert read(fleet, db, third)[1] == 0, "a worker that stops in order did not die"

    fleet.start(workers=1)
    with fleet.client() as client:
        job = client.submit(job_of(third.id, privacy={"target_epsilon": 0.3}, evaluation={"noise_mu": 0.05})).id
    (ended,) = fleet.finished([job])
    assert ended["status"] == "succeeded"
    assert fleet.stop("worker") == [0]


def test_a_worker_that_cannot_see_the_files_does_not_start(fleet: Cluster, tmp_path: Path) -> None:
    fleet.start(ingests=1)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    moved = {"SCRIMP_HOME": str(elsewhere), "SCRIMP_SECRETS_DIR": str(fleet.home / "secrets")}
    url = fleet.environment.get("SCRIMP_DATABASE_URL") or f"sqlite:///{fleet.home / 'scrimp.db'}"
    process = fleet._run("lost", *fleet._command("worker"), "--ingest", **moved, SCRIMP_DATABASE_URL=url)
    assert process.wait(300) == 1
    assert "no API process keeps files in" in fleet.words("lost")
    assert len(fleet.workers("ingest")) == 1, "the list has the one that reads"


def pending(pid: int, number: signal.Signals) -> bool:
    """A signal was sent to a process, which has not taken it yet."""
    (line,) = (each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("ShdPnd"))
    return bool(int(line.split()[1], 16) >> (number - 1) & 1)


def test_a_worker_needs_two_of_the_api_s_secrets_and_no_broker(fleet: Cluster, db: Database, tmp_path: Path) -> None:
    """And draining this machine's workers ends it, also one that stands still as it is told."""
    secrets = tmp_path / "two"
    secrets.mkdir(mode=0o700)
    for name in ("data_hmac_key", "parts_key"):
        shutil.copy(fleet.home / "secrets" / name, secrets / name)
    given = {"SCRIMP_SECRETS_DIR": str(secrets), "SCRIMP_ENCRYPT_PARTS": "true"}
    given |= {"SCRIMP_BROKER_URL": "redis://127.0.0.1:9/0"}
    process = fleet._run("ingest", *fleet._command("worker"), "--ingest", **given)
    until(lambda: fleet.workers("ingest"))
    assert read(fleet, db, registered(fleet, "fourth")) == (1, 0)
    process.send_signal(signal.SIGSTOP)
    try:
        drained = fleet._run("drain", *fleet._command("worker"), "--drain")
        processes.until(lambda: process.poll() is not None or pending(process.pid, signal.SIGTERM))
    finally:
        process.send_signal(signal.SIGCONT)
    assert drained.wait(300) == 0 and process.wait(300) == 0
    assert "1 stopped" in fleet.words("drain")
