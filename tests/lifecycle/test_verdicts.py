"""A process that vouches for its self-test after it may have opened data: its job fails, and nothing is kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from app.db.database import Database
from app.settings import Settings
from tests.factories import numerics
from tests.lifecycle.conftest import Submit, claimed, job_row
from tests.lifecycle.test_time_limit import started
from worker.attempt.fork_server import ForkServer, Process
from worker.attempt.supervisor import run_attempt
from worker.attempt.verdicts import FILE

# Says these words, and waits for an answer to each verdict.
TALKER = """
import json, socket, sys
connection = socket.socket(fileno=int(sys.argv[1]))
answers = connection.makefile("r")
start = json.loads(answers.readline())
for said in json.loads(sys.argv[2]):
    connection.sendall(json.dumps(said).encode() + b"\\n")
    if said["kind"] == "verdict" and "written" not in answers.readline():
        sys.exit(1)
"""
ALIVE: dict[str, object] = {"kind": "alive"}
FAILED: dict[str, object] = {"kind": "failed", "code": "data-damaged", "message": "the file is gone"}
READY: dict[str, object] = {"kind": "ready", "device": "cpu", "numerics": numerics().model_dump(mode="json")}


def verdict(self_test: str) -> dict[str, object]:
    return {"kind": "verdict", "self_test": self_test}


class TalkingForkServer(ForkServer):
    """Starts that process instead of an attempt's."""

    def __init__(self, words: list[dict[str, object]]) -> None:
        super().__init__()
        self.words = json.dumps(words)

    def start(self, channel: int) -> Process:
        line = [sys.executable, "-c", TALKER, str(channel), self.words]
        self.child = subprocess.Popen(line, pass_fds=[channel])
        return Process(os.pidfd_open(self.child.pid))


def attempt(db: Database, settings: Settings, job_id: str, *words: dict[str, object]) -> str:
    """Runs an attempt that says this. Returns the code of its job's failure."""
    started(db, job_id)
    server = TalkingForkServer(list(words))
    run_attempt(claimed(db, job_id), settings, server)
    server.child.wait(300)
    return str(job_row(db, job_id).failure)


@pytest.mark.parametrize("before", [ALIVE, READY, verdict("one_record"), verdict("public_data")])
def test_a_late_verdict_fails_the_job(
    db: Database,
    settings: Settings,
    submit: Submit,
    before: dict[str, object],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its owner is told `internal`, as of every cause that may follow from private data."""
    assert "internal" in attempt(db, settings, submit(), before, verdict("passed"))
    assert "failed: protocol" in caplog.text and not (settings.home / FILE).exists()


def test_one_that_is_the_first_word_is_kept(db: Database, settings: Settings, submit: Submit) -> None:
    failure = attempt(db, settings, submit(), verdict("passed"), FAILED)
    assert "data-damaged" in failure and len((settings.home / FILE).read_text().split()) == 1
