"""A finished job is run again by a real process: what deviated is found, and nothing is charged or changed."""

from __future__ import annotations

import json
import math
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select, update
from typer.testing import CliRunner

from app.db.database import Database
from app.db.models import Artifact, Block, Job, JobEvent, LedgerEntry
from app.keys import service as keys
from app.lifecycle.attempts import AttemptLog
from app.lifecycle.queue.fair import claim_next
from app.lifecycle.queue.room import Room
from app.main import create_app
from app.secrets import ensure_secrets, load_secret
from app.settings import Settings
from core.errors import InvalidRequest, NotFound, PrivacyError
from scrimp.cli import app
from scrimp_server.commands.replay_command import described
from tests.e2e.conftest import csv_spec, job_of, write_csv
from tests.factories import AT_ONCE
from tests.lifecycle.conftest import claimed, job_row
from tests.lifecycle.test_fair import NO_RECORDS
from worker.attempt import fork_server as serving
from worker.attempt.auditor import Choose, missed, replay
from worker.attempt.fork_server import ForkServer
from worker.attempt.supervisor import run_attempt
from worker.attempt.verdicts import FILE

STEPS = 30
Submit = Callable[[str], str]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Settings:
    home = tmp_path_factory.mktemp("home")
    shutil.copy(migrated_database, home / "scrimp.db")
    made = Settings(home=home, allowed_hosts=["testserver"])
    ensure_secrets(made)
    return made


@pytest.fixture(scope="module")
def db(settings: Settings) -> Iterator[Database]:
    database = Database.of(settings)
    yield database
    database.close()


@pytest.fixture(scope="module")
def client(settings: Settings, db: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A client of an API that knows two data sets: `small`, which is private, and `open`, which is public."""
    with db.write() as session:
        pepper = load_secret(settings, "api_key_pepper")
        _, token = keys.create(session, pepper, name="a", role="admin", created_by=None)
    with TestClient(create_app(settings)) as client:
        client.headers["Authorization"] = f"Bearer {token}"
        content = write_csv(tmp_path_factory.mktemp("data") / "data.csv").read_bytes()
        public = csv_spec("open") | {"privacy": {"sensitivity": "public"}}
        for spec, table in ((csv_spec("small"), content), (public, content.replace(b"-", b""))):  # other records
            files = {"spec": (None, json.dumps(spec)), "file": ("data.csv", table)}
            made = client.post("/v1/datasets", files=files)
            assert made.status_code == 201, made.text
        yield client


@pytest.fixture(scope="module")
def submit(client: TestClient) -> Submit:
    """Submits private jobs by name on one data set."""

    def made(name: str) -> str:
        spec = job_of("small", name=name, evaluation={"noise_mu": 0.05, "points": 6})
        return str(client.post("/v1/jobs", json=spec, headers={"Idempotency-Key": name}).json()["id"])

    return made


@pytest.fixture(scope="module")
def first_run(settings: Settings, db: Database, fork_server: ForkServer, submit: Submit) -> tuple[str, list[str]]:
    """A job that a real attempt has run, and the verdicts that it left in a home without any. Each score ends a
    stretch."""
    (settings.home / FILE).unlink(missing_ok=True)  # of another test's attempt
    job_id = submit("honest")
    run_attempt(claimed(db, job_id), settings, fork_server)
    assert job_row(db, job_id).status == "succeeded"
    return job_id, (settings.home / FILE).read_text().split()


@pytest.fixture(scope="module")
def job(first_run: tuple[str, list[str]]) -> str:
    return first_run[0]


def test_the_verdict_of_its_self_test_is_kept(first_run: tuple[str, list[str]]) -> None:
    assert [len(each) for each in first_run[1]] == [64]


def state(db: Database) -> list[Any]:
    """What a replay must not change."""
    with db.read() as session:
        tables = (Job, Block, LedgerEntry, Artifact)
        return [session.scalar(select(func.count()).select_from(each)) for each in tables]


def stretches(db: Database, job_id: str) -> list[Block]:
    with db.read() as session:
        found = select(Block).where(Block.job_id == job_id, Block.first_step > 0).order_by(Block.first_step)
        return list(session.scalars(found))


def taking(*places: int) -> Choose:
    return lambda _all, _k: places


def test_a_job_of_two_ranks_is_the_same_to_the_bit_on_one_process(
    client: TestClient, db: Database, settings: Settings, fork_server: ForkServer
) -> None:
    spec = job_of("small", name="ranks", runtime={"processes": 2, "physical_batch_size": 48})
    job_id = str(client.post("/v1/jobs", json=spec, headers={"Idempotency-Key": "ranks"}).json()["id"])
    held = claim_next(db, NO_RECORDS, "w", 3600.0, Room(2))
    assert held is not None and held.ranks == 2
    log = AttemptLog(db, held, lease_s=3600.0, max_attempts=3, cadence=AT_ONCE)
    run_attempt(log, settings, fork_server, processes=held.ranks)
    assert job_row(db, job_id).status == "succeeded"
    with db.read() as session:
        (ready,) = session.scalars(select(JobEvent.data).where(JobEvent.job_id == job_id, JobEvent.type == "ready"))
    found = replay(db, settings, fork_server, job_id, None)
    assert len(ready["processes"]) == 2
    assert found.holds and found.same_model and found.unlike == ()


def test_an_honest_run_is_the_same_to_the_bit(
    db: Database, settings: Settings, fork_server: ForkServer, job: str
) -> None:
    before, blocks = state(db), stretches(db, job)
    assert len(blocks) >= 3 and blocks[-1].last_step == STEPS
    whole = replay(db, settings, fork_server, job, 1, choose=taking(len(blocks) - 1))
    assert whole.holds and whole.same_model and whole.unlike == ()
    assert whole.compared == tuple(each.last_step for each in blocks) and whole.stretches == len(blocks)
    part = replay(db, settings, fork_server, job, 1, choose=taking(0))
    assert part.holds and part.compared == (blocks[0].last_step,) and part.same_model is None
    by_chance = replay(db, settings, fork_server, job, 2)
    assert by_chance.holds and len(by_chance.chosen) == 2
    assert state(db) == before and job_row(db, job).status == "succeeded"


@pytest.mark.parametrize("place", [0, 1, -1])
def test_a_digest_of_another_state_is_found_if_the_replay_reaches_it(
    db: Database, settings: Settings, fork_server: ForkServer, job: str, place: int
) -> None:
    blocks = stretches(db, job)
    planted, at = blocks[place], place % len(blocks)
    with db.write() as session:
        session.execute(update(Block).where(Block.id == planted.id).values(digest="ab" * 32))
    try:
        found = replay(db, settings, fork_server, job, 1, choose=taking(len(blocks) - 1))
        assert not found.holds and found.differs_after == (blocks[at - 1].last_step if at else 0)
        if at:
            assert replay(db, settings, fork_server, job, 1, choose=taking(at - 1)).holds, "not reached"
    finally:
        with db.write() as session:
            session.execute(update(Block).where(Block.id == planted.id).values(digest=planted.digest))


class FaultyServer(ForkServer):
    """A fork server whose attempts have the fault that their job's name begins with: this one's alone, whichever other
    is started meanwhile."""

    def _begin(self) -> socket.socket:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(serving, "COMMAND", (sys.executable, "-m", "tests.e2e.faulty_attempt"))
            return super()._begin()


@pytest.mark.parametrize("fault", ["less-noise", "shared-noise", "twice-the-clip"])
def test_a_worker_that_left_the_mechanism_is_found(
    db: Database,
    settings: Settings,
    fork_server: ForkServer,
    submit: Submit,
    fault: str,
) -> None:
    """A real attempt with four fifths of the noise, one noise for all jobs, or twice the clip: its job succeeds. The
    honest replay of one stretch finds it."""
    job_id = submit(f"{fault}:planted")
    faulty = FaultyServer()
    run_attempt(claimed(db, job_id), settings, faulty)
    faulty.close()
    assert job_row(db, job_id).status == "succeeded"
    found = replay(db, settings, fork_server, job_id, 1, choose=taking(0))
    assert not found.holds and found.differs_after == 0 and found.compared == ()


def test_digests_that_were_written_afterwards_are_found_by_the_model_alone(
    db: Database, settings: Settings, fork_server: ForkServer, job: str
) -> None:
    """The digests are an honest run's, the model is another's: a quick look holds, the whole replay does not."""
    key = (job, "model.safetensors")
    with db.write() as session:
        kept = session.get_one(Artifact, key).sha256
        session.get_one(Artifact, key).sha256 = "11" * 32
    try:
        quick = replay(db, settings, fork_server, job, 1, choose=taking(0))
        assert quick.holds and quick.same_model is None
        assert "did not reach it" in " ".join(described(quick)) and "condition" in " ".join(described(quick))
        whole = replay(db, settings, fork_server, job, None)
        assert not whole.holds and whole.differs_after is None and "DIFFERS     the model's file" in described(whole)
    finally:
        with db.write() as session:
            session.get_one(Artifact, key).sha256 = kept


def test_a_record_of_another_rate_is_found(db: Database, settings: Settings, fork_server: ForkServer, job: str) -> None:
    """The digests are the run's; now the job says that it learned faster."""
    spec = job_row(db, job).spec
    with db.write() as session:
        session.get_one(Job, job).spec = spec | {"optimizer": spec["optimizer"] | {"learning_rate": 1.5}}
    assert not replay(db, settings, fork_server, job, 1, choose=taking(0)).holds
    with db.write() as session:
        session.get_one(Job, job).spec = spec


def test_another_model_file_is_found(db: Database, settings: Settings, fork_server: ForkServer, job: str) -> None:
    key = (job, "model.safetensors")
    with db.write() as session:
        kept = session.get_one(Artifact, key).sha256
        session.get_one(Artifact, key).sha256 = "00" * 32
    try:
        found = replay(db, settings, fork_server, job, 1, choose=taking(len(stretches(db, job)) - 1))
        assert found.differs_after is None and found.same_model is False and not found.holds
    finally:
        with db.write() as session:
            session.get_one(Artifact, key).sha256 = kept


@pytest.mark.nightly
def test_a_job_without_privacy_is_replayed_on_as_many_processes(
    db: Database, settings: Settings, fork_server: ForkServer, client: TestClient
) -> None:
    """Its sums are in float64, so another number of processes rounds otherwise: an honest job would be accused."""
    spec = job_of("open", privacy=None, evaluation=None, runtime={"processes": 3, "dtype": "float64"})
    spec["sampling"] = {"kind": "poisson", "expected_batch_size": 900}
    spec["runtime"]["physical_batch_size"] = 48
    answer = client.post("/v1/jobs", json=spec, headers={"Idempotency-Key": "shared"})
    assert answer.is_success, answer.text
    job_id = str(answer.json()["id"])
    run_attempt(claimed(db, job_id), settings, fork_server, processes=3)
    assert job_row(db, job_id).status == "succeeded"
    last = len(stretches(db, job_id)) - 1
    found = replay(db, settings, fork_server, job_id, 1, choose=taking(last))
    assert found.holds and found.same_model and found.unlike == ()
    with db.write() as session:  # as if it had run in one process
        ready = session.scalars(select(JobEvent).where(JobEvent.job_id == job_id, JobEvent.type == "ready")).one()
        ready.data = ready.data | {"processes": ready.data["processes"][:1]}
    assert not replay(db, settings, fork_server, job_id, 1, choose=taking(last)).holds


def test_what_cannot_be_replayed_is_said(db: Database, settings: Settings, fork_server: ForkServer, job: str) -> None:
    with pytest.raises(NotFound):
        replay(db, settings, fork_server, "job_none", 1)
    with pytest.raises(InvalidRequest, match="stretches"):
        replay(db, settings, fork_server, job, 10_000)
    row = job_row(db, job)
    with db.write() as session:
        session.get_one(Job, job).segments = tuple(each.model_copy(update={"key_id": "gone"}) for each in row.segments)
    with pytest.raises(PrivacyError, match="noise secret"):
        replay(db, settings, fork_server, job, 1)
    with db.write() as session:
        session.get_one(Job, job).segments = row.segments
        session.get_one(Job, job).status = "running"
    with pytest.raises(InvalidRequest, match="not ended"):
        replay(db, settings, fork_server, job, 1)
    with db.write() as session:
        session.get_one(Job, job).status = row.status


def test_the_odds_are_those_of_drawing_without_replacement() -> None:
    for total, bad, drawn in ((5, 1, 2), (6, 3, 2), (7, 2, 5), (4, 4, 1), (10, 1, 10)):
        draws = list(combinations(range(total), drawn))
        # The last `bad` stretches deviate: a replay from step 1 misses them if its last chosen stretch is before them.
        exact = sum(max(each) < total - bad for each in draws) / len(draws)
        assert math.isclose(missed(total, bad, drawn), exact)


@pytest.mark.nightly  # the functions behind it are tested above
def test_the_command_says_what_it_found(
    settings: Settings, db: Database, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = ["--home", str(settings.home)]
    shown = CliRunner().invoke(app, ["replay", job, *home])
    assert shown.exit_code == 0, shown.output
    assert "same        the model's file" in shown.output and "missed" not in shown.output
    monkeypatch.setattr("random.SystemRandom.sample", lambda _self, _all, k: range(k))
    quick = CliRunner().invoke(app, ["replay", job, "--samples", "2", *home])
    assert quick.exit_code == 0, quick.output
    assert "chosen      2 of" in quick.output and "missed      a deviation in 1 of" in quick.output
    assert "did not reach it" in quick.output and "condition   the recorded digests" in quick.output
    assert CliRunner().invoke(app, ["replay", "job_none", *home]).exit_code == 1
