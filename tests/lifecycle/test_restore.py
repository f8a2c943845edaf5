"""A backup of the database is restored: what it has forgotten is noticed, admits nothing, and is posted as spent."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.db.database import Database
from app.db.models import Account, Dataset, DatasetContent, Job
from app.keys import service as keys
from app.ledger import behind
from app.ledger.transparency.heads import Heads
from app.ledger.verification import verify
from app.lifecycle import restore
from app.lifecycle.mark_survey import compare, survey
from app.lifecycle.marks import Marks
from app.lifecycle.queue.fair import claim_next
from app.main import create_app
from app.secrets import at_epoch, load_secret
from app.settings import Settings
from app.storage import objects
from app.system import health
from core.errors import PrivacyError
from core.privacy.prices import Units
from tests import processes, servers
from tests.factories import add_dataset, job_spec
from tests.lifecycle.conftest import claimed, job_row, no_wait
from worker.attempt.fork_server import ForkServer, Process
from worker.attempt.start import NoiseSecrets
from worker.attempt.supervisor import run_attempt

CAP = {"sensitivity": "private", "records": 10_000, "cap": {"epsilon": 1.0, "delta": 1e-5}, "filter": "gdp"}


class Refusing(ForkServer):
    """Has no place for a process: the attempt ends before its first pass."""

    started = 0

    def start(self, channel: int) -> Process:
        self.started += 1
        raise OSError


class World:
    """A deployment whose database can be backed up and restored, on both back ends."""

    def __init__(self, settings: Settings, server: str | None, folder: Path) -> None:
        self.settings, self.server, self.folder = settings, server, folder
        self.db = Database.of(settings)
        self.heads = Heads.of(settings)
        with self.db.write() as session:
            _, self.token = keys.create(
                session, load_secret(settings, "api_key_pepper"), name="a", role="admin", created_by=None
            )

    def backup(self) -> str:
        """The URL of a copy of the database as it is now."""
        if self.server is None:
            copy = self.folder / f"backup-{len(list(self.folder.iterdir()))}.db"
            with self.db.engine.connect() as connection:
                connection.exec_driver_sql("COMMIT")
                connection.exec_driver_sql(f"VACUUM INTO '{copy}'")
            return f"sqlite:///{copy}"
        self.db.close()
        return servers.new_database(self.server, servers.database_name(self.settings.effective_database_url))

    def restore(self, url: str) -> None:
        self.db.close()
        self.settings = self.settings.model_copy(update={"database_url": url})
        self.db = Database(url)

    @contextmanager
    def api(self) -> Iterator[TestClient]:
        with TestClient(create_app(self.settings)) as client:
            client.headers["Authorization"] = f"Bearer {self.token}"
            yield client

    def submit(self, dataset: str, epsilon: float, once: str) -> Any:
        with self.api() as client:
            spec = job_spec(dataset, privacy={"target_epsilon": epsilon}, evaluation=None)
            return client.post("/v1/jobs", json=spec, headers={"Idempotency-Key": once})

    def run(self, job_id: str) -> None:
        """To its end, as a worker would."""
        no_wait(self.db, job_id)
        log = claimed(self.db, job_id)
        run = job_row(self.db, job_id)
        behind.record(self.db, self.heads, run.dataset_id)
        log.start_block(1, 50)
        log.record_digest(50, "ab" * 32)
        log.succeed([], 50, [])
        behind.record(self.db, self.heads, run.dataset_id)

    def account(self, dataset: str) -> Account:
        with self.db.read() as session:
            return session.get_one(Account, dataset)


@pytest.fixture
def world(settings: Settings, backing: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    server = request.getfixturevalue("postgres_server") if backing == "postgres" else None
    (tmp_path / "backups").mkdir()
    made = World(settings, server, tmp_path / "backups")
    yield made
    made.db.close()


def test_spending_that_a_backup_forgot_is_not_admitted_again(world: World) -> None:
    """ε = 0.95 was spent under a cap of 1, the database restored, the chain "valid", and 0.95 admitted again."""
    spent, untouched = (add_dataset(world.db, privacy=CAP, holdout=None) for _ in range(2))
    backup = world.backup()
    job = world.submit(spent, 0.95, "first").json()["id"]
    world.run(job)
    world.restore(backup)
    with world.db.read() as session:
        assert verify(session, spent).valid, "the chain alone does not tell"
    refused = world.submit(spent, 0.95, "second")
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/ledger-behind")
    with world.api() as client:
        states = {each["id"]: each["state"] for each in client.get("/v1/datasets").json()["items"]}
        assert states == {spent: "behind", untouched: "ready"}
        assert client.get(f"/v1/datasets/{spent}").json()["state"] == "behind"
        body, seen = {"epsilon": 2.0, "reason": "more"}, {"If-Match": "*"}
        raised = client.post(f"/v1/datasets/{spent}/ledger/cap", json=body, headers=seen)
        assert raised.json()["type"] == "/problems/ledger-behind"
        ready = client.get("/readyz").json()
        assert (ready["status"], ready["checks"]["ledger"]) == ("degraded", "LedgerBehindError")
        assert f'scrimp_ledger_behind{{dataset="{spent}"}} 1.0' in client.get("/metrics").text
    assert world.account(spent).train_held == 0
    assert world.submit(untouched, 0.95, "third").status_code == 201


def test_what_was_forgotten_is_posted_as_spent(world: World) -> None:
    dataset = add_dataset(world.db, privacy=CAP, holdout=None)
    backup = world.backup()
    world.run(world.submit(dataset, 0.5, "first").json()["id"])
    world.submit(dataset, 0.5, "second")  # held when the database was lost: it may have run
    was = world.account(dataset)
    behind.record(world.db, world.heads, dataset)
    world.restore(backup)
    (gap,) = restore.gaps(world.db, world.heads, objects.of(world.settings))
    assert gap.missing == Units(train=was.train_spent + was.train_held, holdout=0)
    posted = restore.post(world.db, world.heads, objects.of(world.settings), dataset, "the disk died")
    now = world.account(dataset)
    assert posted == gap.missing and (now.train_spent, now.train_held) == (was.train_spent + was.train_held, 0)
    assert restore.gaps(world.db, world.heads, objects.of(world.settings)) == []
    with world.db.read() as session:
        assert verify(session, dataset).valid
    assert world.submit(dataset, 0.9, "third").json()["type"] == "/problems/budget-exceeded"
    assert world.submit(dataset, 0.3, "fourth").status_code == 201
    with world.api() as client:
        assert client.get(f"/v1/datasets/{dataset}").json()["state"] == "ready"
        assert client.get(f"/v1/datasets/{dataset}/ledger").json()["comparison"] is None


def test_a_charge_that_a_backup_believes_held_is_spent_once(world: World) -> None:
    """More than half of the budget: counted twice, it would fit in no ledger."""
    dataset = add_dataset(world.db, privacy=CAP, holdout=None)
    body = {"dataset": dataset, "unit": "example", "attested": "a test"}
    with world.api() as client:
        left = client.get(f"/v1/datasets/{dataset}/ledger").json()["accounts"]["train"]["remaining"]
        body["mechanism"] = {"kind": "gdp", "mu": (0.6 * left * 1e-12) ** 0.5}
        charge = client.post("/v1/charges", json=body, headers={"Idempotency-Key": "one"}).json()
    backup = world.backup()
    with world.api() as client:
        assert client.post(f"/v1/charges/{charge['id']}/post").json()["status"] == "posted"
    world.restore(backup)
    restore.post(world.db, world.heads, objects.of(world.settings), dataset, "the disk died")
    assert (world.account(dataset).train_spent, world.account(dataset).train_held) == (charge["train"], 0)
    with world.api() as client:
        assert client.get(f"/v1/charges/{charge['id']}").json()["status"] == "posted"
    with world.db.read() as session:
        assert verify(session, dataset).valid


def test_a_job_that_a_backup_believes_unfinished_does_not_run_again(world: World) -> None:
    dataset = add_dataset(world.db, privacy=CAP, holdout=None)
    job = world.submit(dataset, 0.5, "first").json()["id"]
    queued = world.backup()
    world.run(job)
    whole = world.account(dataset).train_spent
    world.restore(queued)
    assert job_row(world.db, job).status == "queued"
    assert behind.reach(world.db, world.heads, dataset) == 0
    assert claim_next(world.db, world.heads, "w", 30.0) is None
    fork_server = Refusing()
    run_attempt(claimed(world.db, job), world.settings, fork_server)  # it was claimed before anybody noticed
    assert (fork_server.started, job_row(world.db, job).status) == (0, "queued")
    restore.post(world.db, world.heads, objects.of(world.settings), dataset, "restored")
    assert job_row(world.db, job).status == "cancelled"
    assert (world.account(dataset).train_spent, world.account(dataset).train_held) == (whole, 0)


def test_a_newer_backup_opens_the_data_set(world: World) -> None:
    dataset = add_dataset(world.db, privacy=CAP, holdout=None)
    old = world.backup()
    world.run(world.submit(dataset, 0.5, "first").json()["id"])
    new = world.backup()
    world.restore(old)
    assert restore.gaps(world.db, world.heads, objects.of(world.settings)) != []
    world.restore(new)
    assert restore.gaps(world.db, world.heads, objects.of(world.settings)) == []
    assert world.submit(dataset, 0.3, "second").status_code == 201


def test_the_head_is_on_disk_before_the_first_private_pass(world: World) -> None:
    """Attack (Reliability): The storage has a job that the database does not know
    Now: the same alarm
    """
    dataset = add_dataset(world.db, privacy=CAP, holdout=None)
    backup = world.backup()
    job = world.submit(dataset, 0.5, "first").json()["id"]
    recorded: list[int] = []

    class Looking(Refusing):
        def start(self, channel: int) -> Process:
            found = world.heads.read(dataset)
            recorded.append(found.train.held if found else 0)
            return super().start(channel)

    with world.db.write() as session:
        session.get_one(Dataset, dataset).parts = {"train": {"path": "nowhere", "sha256": "0" * 64}}
    run_attempt(claimed(world.db, job), world.settings, Looking())
    assert recorded == [world.account(dataset).train_held] and recorded[0] > 0
    # Without its record, the job's folder tells as much.
    (world.heads.folder / f"{dataset}.json").unlink()
    world.restore(backup)
    refused = world.submit(dataset, 0.5, "second")
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/ledger-behind")
    assert job in refused.json()["problem"]


def test_content_that_a_backup_forgot_is_no_second_budget(world: World) -> None:
    backup = world.backup()
    dataset = add_dataset(world.db, privacy=CAP, holdout=None)
    with world.db.write() as session:
        owner = session.get_one(Dataset, dataset).owner_key
        content = {"part": "data", "kind": "records", "hmac": "ab" * 32}
        session.add(DatasetContent(dataset_id=dataset, owner_key=owner, **content))
    behind.record(world.db, world.heads, dataset)
    assert behind.forgotten_content(world.db, world.heads, owner, {"ab" * 32}) is None
    world.restore(backup)
    assert behind.forgotten_content(world.db, world.heads, owner, {"ab" * 32, "cd" * 32}) == dataset
    assert behind.forgotten_content(world.db, world.heads, owner, {"cd" * 32}) is None
    others = behind.forgotten_content(world.db, world.heads, "key_of_another", {"ab" * 32})
    assert others is None, "an answer would tell an owner what others have"
    (gap,) = restore.gaps(world.db, world.heads, objects.of(world.settings))
    assert (gap.dataset_id, gap.name) == (dataset, None)
    assert health.checks(world.db, world.settings)["ledger"] == "LedgerBehindError"


def test_a_new_epoch_gives_unfinished_jobs_fresh_keys(world: World) -> None:
    dataset = add_dataset(world.db, privacy=CAP, holdout=None)
    job = world.submit(dataset, 0.5, "first").json()["id"]
    log = claimed(world.db, job)
    secret = load_secret(world.settings, "noise_secret")
    before = NoiseSecrets.of(world.settings)
    assert before.by_id[before.current] == secret
    log.name_key(before.current)
    (segment,) = log.recorded()[0].segments
    before.keys(segment)
    world.heads.rotate_epoch()
    after = NoiseSecrets.of(world.settings)
    assert after.by_id[after.current] == at_epoch(secret, world.heads.epoch()) != secret
    with pytest.raises(PrivacyError, match="its epoch has ended"):
        after.keys(segment)


def scrimp_restore(world: World, *arguments: str) -> subprocess.CompletedProcess[str]:
    there = {"SCRIMP_DATABASE_URL": world.settings.effective_database_url}
    return processes.scrimp(world.settings.home, "restore", *arguments, **there)


def test_the_command_shows_the_gap_and_posts_it(world: World) -> None:
    """Attack (Reliability): What a backup forgot is to be put right
    Now: `scrimp restore` shows it, posts it as spent, rotates the noise key's epoch
    Also: tests/lifecycle/test_restore.py::test_a_new_epoch_gives_unfinished_jobs_fresh_keys
    """
    dataset = add_dataset(world.db, privacy=CAP, holdout=None)
    backup = world.backup()
    world.run(world.submit(dataset, 0.5, "first").json()["id"])
    spent = world.account(dataset).train_spent
    world.restore(backup)
    shown = scrimp_restore(world)
    assert shown.returncode == 1, shown.stderr
    assert dataset in shown.stdout and f"train {spent}, holdout 0" in shown.stdout
    assert world.heads.epoch() is None and world.account(dataset).train_spent == 0, "showing changes nothing"
    posted = scrimp_restore(world, "--post", dataset, "--reason", "the disk died")
    assert posted.returncode == 0, posted.stderr
    assert world.heads.epoch() is not None and world.account(dataset).train_spent == spent
    assert scrimp_restore(world, "--post", dataset).returncode == 1


def test_a_first_start_of_this_version_records_nothing_and_closes_nothing(world: World) -> None:
    dataset = add_dataset(world.db, privacy=CAP, holdout=None)
    shutil.rmtree(world.heads.folder, ignore_errors=True)
    (world.settings.storage_root / "jobs" / "job_of_before").mkdir(parents=True)
    assert survey(world.db, world.heads, objects.of(world.settings), compare(world.db, Marks.of(world.settings))) == {}
    assert world.submit(dataset, 0.5, "first").status_code == 201
    with world.db.read() as session:
        assert session.scalar(select(Job.status)) == "queued"


@pytest.mark.parametrize("backing", ["sqlite"])  # PostgreSQL's pages have checksums of their own
def test_the_command_refuses_a_database_of_which_the_disk_has_lost_a_page(settings: Settings, tmp_path: Path) -> None:
    """As a disk does that says a page is written, and loses it: its indexes name rows that are not there."""
    file = settings.home / "scrimp.db"
    db = Database.of(settings)
    assert db.damage() is None
    db.close()
    old = shutil.copy(file, tmp_path / "old.db")
    add_dataset(db, privacy=CAP, holdout=None)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'datasets'").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    db.close()
    lost = Path(old).read_bytes()[(page - 1) * size : page * size]
    with file.open("r+b") as stream:
        stream.seek((page - 1) * size)
        stream.write(lost)
    assert db.damage() is not None
    db.close()
    refused = processes.scrimp(settings.home, "restore")
    assert refused.returncode == 1 and "the database is damaged" in refused.stderr
    assert "Traceback" not in refused.stderr and not refused.stdout
