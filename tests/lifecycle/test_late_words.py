"""The last word of an attempt that comes when its job's time is over, before anybody has looked: it counts for nothing.

Which of the two came first would tell fractions of the time between two looks. A process that says it is real; only the
watch's look, which comes a few times a second, is kept from coming first.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from app.db.database import Database
from app.db.models import Artifact, Attempt
from app.settings import Settings
from tests.factories import numerics
from tests.lifecycle.conftest import Submit, balances, claimed, job_row
from tests.lifecycle.test_time_limit import failed_by_time, started
from worker.attempt import supervisor
from worker.attempt.attempt_watch import Watch
from worker.attempt.fork_server import ForkServer, Process

# Says that it is ready, starts a block, writes a model, and says its last word, or ends without one.
TALKER = """
import hashlib, json, socket, sys
from pathlib import Path
connection = socket.socket(fileno=int(sys.argv[1]))
ready, last = json.loads(sys.argv[2])
answers = connection.makefile("r")
def say(**said):
    connection.sendall(json.dumps(said).encode() + b"\\n")
folder = Path(json.loads(answers.readline())["output_dir"])
say(kind="ready", device="cpu", numerics=ready)
say(kind="block", first_step=1, last_step=10, digest="ab" * 32)
assert "go" in answers.readline()
say(kind="digest", step=10, digest="ab" * 32)
model = folder / "model.safetensors"
model.write_bytes(b"weights")
if last.get("kind") == "finished":
    digest = hashlib.sha256(b"weights").hexdigest()
    last["artifacts"] = [{"name": model.name, "path": str(model), "sha256": digest, "size_bytes": 7}]
if last:
    say(**last)
"""
FINISHED = {"kind": "finished", "steps_effective": 10}
WORDS: dict[str, dict[str, Any]] = {
    "finished": FINISHED,
    "stopped": {"kind": "stopped", "steps_started": 10},
    "failed": {"kind": "failed", "code": "data-damaged", "message": "the file is gone"},
    "nothing": {},
}


class TalkingForkServer(ForkServer):
    """Starts that process instead of an attempt's."""

    def __init__(self, last: dict[str, Any]) -> None:
        super().__init__()
        self.said = json.dumps([numerics().model_dump(mode="json"), last])

    def start(self, channel: int) -> Process:
        line = [sys.executable, "-c", TALKER, str(channel), self.said]
        self.child = subprocess.Popen(line, pass_fds=[channel])
        return Process(os.pidfd_open(self.child.pid))


def attempt(db: Database, settings: Settings, job_id: str, last: dict[str, Any]) -> None:
    started(db, job_id)
    fork_server = TalkingForkServer(last)
    supervisor.run_attempt(claimed(db, job_id), settings, fork_server)
    fork_server.child.wait(300)


@pytest.fixture(autouse=True)
def nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "STOPPING", threading.Event())
    monkeypatch.setattr(Watch, "_why_to_end", lambda _: None)


def artifacts(db: Database, settings: Settings) -> tuple[int, list[Path]]:
    """How many are published, and what lies in the storage."""
    with db.read() as session:
        count = session.scalar(select(func.count()).select_from(Artifact))
    return int(count or 0), list(settings.storage_root.glob("jobs/*/attempt-*/*"))


@pytest.mark.parametrize("word", WORDS)
def test_a_last_word_after_the_time_fails_the_job_whatever_it_says(
    db: Database, settings: Settings, submit: Submit, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    """Attack (Reliability): Its last word comes after its time, before anybody looked
    Now: the same end, whatever it says; no model
    """
    monkeypatch.setattr(supervisor, "_time_left_s", lambda *_: -1.0)
    job_id = submit()
    hold = balances(db, job_id)
    attempt(db, settings, job_id, WORDS[word])
    failed_by_time(db, job_id, hold)
    assert artifacts(db, settings) == (0, []), "a model that was late is neither published nor kept"
    with db.read() as session:
        assert session.scalars(select(Attempt.status).where(Attempt.job_id == job_id)).all() == ["failed"]


@pytest.mark.parametrize(("word", "ends"), [("finished", "succeeded"), ("failed", "failed")])
def test_in_time_it_says_how_the_job_ends(
    db: Database, settings: Settings, submit: Submit, word: str, ends: str
) -> None:
    job_id = submit()
    attempt(db, settings, job_id, WORDS[word])
    job = job_row(db, job_id)
    assert job.status == ends and "time-limit" not in str(job.failure)
    assert artifacts(db, settings)[0] == (word == "finished")


def test_a_process_that_stops_unasked_fails_its_job(db: Database, settings: Settings, submit: Submit) -> None:
    """Taken back, its job would be queued and stop again, for ever."""
    attempt(db, settings, job_id := submit(), WORDS["stopped"])
    assert (job_row(db, job_id).status, balances(db, job_id)[1]) == ("failed", 0)
    with db.read() as session:
        assert session.scalars(select(Attempt.status).where(Attempt.job_id == job_id)).all() == ["failed"]


def test_in_time_a_process_that_ends_without_one_has_crashed(db: Database, settings: Settings, submit: Submit) -> None:
    attempt(db, settings, job_id := submit(), {})
    assert job_row(db, job_id).status == "queued"
    with db.read() as session:
        assert session.scalars(select(Attempt.status).where(Attempt.job_id == job_id)).all() == ["crashed"]
