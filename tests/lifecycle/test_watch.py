"""A supervisor beside processes that freeze: the lease is kept while it should be, and nothing waits for ever."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery.signals import worker_ready
from sqlalchemy import delete, select

from app.db.database import Database
from app.db.models import Attempt, Block, Dataset, Job, Outbox
from app.lifecycle.attempts import AttemptLog
from app.lifecycle.claims import claim
from app.lifecycle.sweeper import expire_all_leases, reap_expired
from app.settings import Settings
from tests.factories import numerics
from tests.lifecycle.conftest import Submit, claimed, job_row
from worker.attempt import supervisor
from worker.attempt.attempt_watch import Watch
from worker.attempt.fork_server import ForkServer, Process

# A process that says what one says at first, then half a line, and then nothing.
FROZEN = (
    f"""
NUMERICS = b'{numerics().model_dump_json()}'
"""
    + """
import socket, sys, time
connection = socket.socket(fileno=int(sys.argv[1]))
answers = connection.makefile("r")
answers.readline()
connection.sendall(b'{"kind": "ready", "device": "cpu", "numerics": ' + NUMERICS + b'}\\n')
connection.sendall(b'{"kind": "digest", "step": 0, "digest": "' + b"ab" * 32 + b'"}\\n')
connection.sendall(b'{"kind": "block", "fir')
time.sleep(600)
"""
)


class Watched(AttemptLog):
    """Lets a test act at a heartbeat, once the process is in the middle of its line."""

    beats = 0
    has_digest = False

    def record_digest(self, *message: Any) -> Any:
        recorded = super().record_digest(*message)
        self.has_digest = True
        return recorded

    def at(self, beat: int, act: Any) -> Watched:
        self._beat, self._act = beat, act
        return self

    def heartbeat(self) -> bool:
        self.beats += 1
        if self.beats == self._beat:
            self._act()
        return super().heartbeat()


class FrozenForkServer(ForkServer):
    """Starts that process instead of an attempt's."""

    def start(self, channel: int) -> Process:
        self.child = subprocess.Popen([sys.executable, "-c", FROZEN, str(channel)], pass_fds=[channel])
        return Process(os.pidfd_open(self.child.pid))


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(supervisor, "STOPPING", threading.Event())
    monkeypatch.setattr("worker.attempt.attempt_watch.SILENCES", 2)  # the start of the process is one
    yield


def run(db: Database, settings: Settings, submit: Submit, act: Any = None, **changes: Any) -> tuple[str, Watched]:
    """One attempt of a fresh job with a process that freezes, to its end."""
    log = claimed(db, job_id := submit())
    with db.write() as session:
        dataset = session.get_one(Dataset, session.get_one(Job, job_id).dataset_id)
        dataset.parts = {"train": {"path": "nowhere", "sha256": "0" * 64}}
    watched = Watched(db, log.held, lease_s=30.0, max_attempts=3).at(5, lambda: act and act(job_id))
    quick = {"heartbeat_s": 0.1, "attempt_silence_s": 30.0} | changes
    fork_server = FrozenForkServer()
    supervisor.run_attempt(watched, settings.model_copy(update=quick), fork_server)
    assert fork_server.child.wait(300) == -signal.SIGKILL
    return job_id, watched


def hear_until(monkeypatch: pytest.MonkeyPatch, beat: int) -> None:
    """Silence counts from that heartbeat on, and from the digest: neither how many beats come before it nor how long
    the process takes to start follows a clock."""
    why_to_end = Watch._why_to_end

    def look(watch: Watch) -> Any:
        log: Any = watch._log
        return why_to_end(watch) if log.beats >= beat and log.has_digest else None

    monkeypatch.setattr(Watch, "_why_to_end", look)


def ends(db: Database, job_id: str) -> list[str]:
    with db.read() as session:
        return list(session.scalars(select(Attempt.status).where(Attempt.job_id == job_id).order_by(Attempt.number)))


@pytest.mark.usefixtures("frozen")
def test_a_frozen_process_is_ended_and_its_job_queued_again(
    db: Database,
    settings: Settings,
    submit: Submit,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hear_until(monkeypatch, 4)
    job_id, watched = run(db, settings, submit, attempt_silence_s=0.2)
    assert "crashed (its process was ended by the supervisor: silent)" in caplog.text
    assert (job_row(db, job_id).status, ends(db, job_id)) == ("queued", ["crashed"])
    assert watched.beats > 3, "the lease was renewed while the supervisor waited for the rest of the line"
    with db.read() as session:
        assert session.scalars(select(Block.digest).where(Block.job_id == job_id)).all() == ["ab" * 32]


@pytest.mark.usefixtures("frozen")
def test_a_frozen_process_that_is_cancelled_is_ended_after_its_grace(
    db: Database, settings: Settings, submit: Submit
) -> None:
    def cancel(job_id: str) -> None:
        with db.write() as session:
            session.get_one(Job, job_id).status = "cancelling"

    job_id, _ = run(db, settings, submit, cancel, cancel_grace_s=0.2)
    assert (job_row(db, job_id).status, ends(db, job_id)) == ("cancelled", ["cancelled"])


@pytest.mark.usefixtures("frozen")
def test_a_frozen_process_whose_lease_was_taken_is_ended_and_writes_nothing(
    db: Database, settings: Settings, submit: Submit
) -> None:
    def take(job_id: str) -> None:
        expire_all_leases(db)
        reap_expired(db, 3)
        with db.write() as session:
            assert claim(session, job_id, "other", 30.0) is not None

    job_id, _ = run(db, settings, submit, take)
    assert (job_row(db, job_id).status, ends(db, job_id)) == ("running", ["lapsed", "running"])


@pytest.mark.usefixtures("frozen")
def test_a_worker_that_stops_does_not_wait_for_a_frozen_process(
    db: Database, settings: Settings, submit: Submit
) -> None:
    job_id, _ = run(db, settings, submit, lambda _: supervisor.STOPPING.set())
    assert (job_row(db, job_id).status, ends(db, job_id)) == ("queued", ["lost"])


@pytest.mark.usefixtures("frozen")
def test_a_database_that_is_away_for_a_moment_costs_no_attempt(
    db: Database, settings: Settings, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    hear_until(monkeypatch, 7)
    beats: list[str] = []

    def away(job_id: str) -> None:
        beats.append(job_id)
        raise ConnectionError

    job_id, watched = run(db, settings, submit, away, attempt_silence_s=0.2)
    assert beats == [job_id] and watched.beats > 5
    assert ends(db, job_id) == ["crashed"], "for its silence, later"


def test_a_database_that_stands_still_makes_no_process_silent(
    db: Database, settings: Settings, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, hears = threading.Semaphore(0), threading.Event()
    why_to_end = Watch._why_to_end

    def look(watch: Watch) -> Any:
        if not hears.is_set():  # how long this thread takes to get there
            return None
        looks.release()
        return why_to_end(watch)

    monkeypatch.setattr(Watch, "_why_to_end", look)
    log, ended = claimed(db, submit()), threading.Event()
    quick = settings.model_copy(update={"attempt_silence_s": 0.3})
    with Watch(log, quick, ended.set, threading.Event(), threading.Event()) as watch:
        with watch.hearing():  # for longer than a process may be silent: 0.2 s lie between two looks
            hears.set()
            assert all(looks.acquire(timeout=300) for _ in range(6))
            assert not ended.is_set()
        assert ended.wait(300), "once it was answered, silence counts"
    assert watch.ended == "silent"


def test_a_worker_that_cannot_start_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Celery logs what a receiver of its signals raises, and goes on: with a worker that is not listed and has no
    cluster, beside jobs that wait for ever."""
    monkeypatch.setenv("SCRIMP_HOME", str(tmp_path))  # the module has its settings from the environment
    tasks = importlib.import_module("worker.tasks")

    def fails() -> None:
        raise ValueError("Failed to connect to GCS")

    def leaves(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(tasks, "_cluster", fails)
    monkeypatch.setattr(os, "_exit", leaves)
    with pytest.raises(SystemExit, match="1"):
        worker_ready.send(sender=None)
    assert "this worker cannot start: ValueError" in caplog.text


def test_a_worker_told_to_stop_claims_nothing_and_notifies_for_another(
    db: Database, submit: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRIMP_HOME", str(tmp_path))  # the module has its settings from the environment
    tasks = importlib.import_module("worker.tasks")
    stopping = threading.Event()
    stopping.set()
    monkeypatch.setattr(tasks, "STOPPING", stopping)
    monkeypatch.setattr(tasks, "_database", lambda: db)
    job_id = submit()
    with db.write() as session:
        session.execute(delete(Outbox))
    tasks.run_job(job_id)
    assert (job_row(db, job_id).status, job_row(db, job_id).attempt) == ("queued", 0)
    with db.read() as session:
        assert session.scalars(select(Outbox.job_id).where(Outbox.topic == "notify")).all() == [job_id]
