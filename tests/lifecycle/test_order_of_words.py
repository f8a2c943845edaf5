"""A process that says things in another order than an attempt does: nothing leaves of a state without a recorded
digest. The process is real; its supervisor, not the process, keeps the order."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from sqlalchemy import func, select

from app.db.database import Database
from app.db.models import Artifact, Block, JobEvent, Metric
from app.settings import Settings
from tests.factories import numerics
from tests.lifecycle.conftest import Submit, claimed, job_row
from tests.lifecycle.test_attempts import DIGEST, METRIC
from tests.lifecycle.test_time_limit import started
from worker.attempt.fork_server import ForkServer, Process
from worker.attempt.job_checkpoints import Checkpoints
from worker.attempt.supervisor import run_attempt

# Writes a model and says these words. It waits for an answer to each block, and to the end of its supervisor.
TALKER = """
import json, socket, sys
from pathlib import Path
connection = socket.socket(fileno=int(sys.argv[1]))
answers = connection.makefile("r")
folder = Path(json.loads(answers.readline())["output_dir"])
model = folder / "model.safetensors"
model.write_bytes(b"weights")
for word in json.loads(sys.argv[2]):
    for file in word.get("artifacts", ()):
        file["path"] = str(model)
    connection.sendall(json.dumps(word).encode() + b"\\n")
    if word["kind"] == "block" and "go" not in (answer := answers.readline()):
        sys.exit(answer)
answers.read()
"""
Word = dict[str, Any]
MODEL = {"name": "model.safetensors", "path": "", "sha256": hashlib.sha256(b"weights").hexdigest(), "size_bytes": 7}
READY: Word = {"kind": "ready", "device": "cpu", "numerics": numerics().model_dump(mode="json")}
OTHER = "cd" * 32


def block(first: int, last: int, digest: str | None = None) -> Word:
    return {"kind": "block", "first_step": first, "last_step": last, "digest": digest}


def digest(step: int, content: str = DIGEST) -> Word:
    return {"kind": "digest", "step": step, "digest": content}


def metric(step: int) -> Word:
    return {"kind": "metric"} | METRIC | {"step": step}


def finished(step: int) -> Word:
    return {"kind": "finished", "steps_effective": step, "artifacts": [MODEL]}


def mismatch(step: int) -> Word:
    return {"kind": "mismatch", "matched_step": step}


@pytest.fixture(autouse=True)
def nothing_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has no state that it could send, and is asked for one every few seconds."""
    monkeypatch.setattr(Checkpoints, "wants", lambda *_, **__: False)


class TalkingForkServer(ForkServer):
    """Starts that process instead of an attempt's."""

    def __init__(self, words: tuple[Word, ...]) -> None:
        super().__init__()
        self.words = json.dumps([READY, *words])

    def start(self, channel: int) -> Process:
        line = [sys.executable, "-c", TALKER, str(channel), self.words]
        self.child = subprocess.Popen(line, pass_fds=[channel])
        return Process(os.pidfd_open(self.child.pid))


def attempt(db: Database, settings: Settings, submit: Submit, *words: Word) -> str:
    """An attempt that says this. Returns its job."""
    started(db, job_id := submit())
    server = TalkingForkServer(words)
    run_attempt(claimed(db, job_id), settings, server)
    server.child.wait(300)
    return job_id


def left(db: Database, job_id: str) -> tuple[int, int]:
    """How many files and numbers left it."""
    with db.read() as session:
        counts = (
            session.scalar(select(func.count()).select_from(table).where(table.job_id == job_id))
            for table in (Artifact, Metric)
        )
        files, numbers = (int(count or 0) for count in counts)
        return files, numbers


ORDERS = {
    "an end without a digest": (digest(0), block(1, 50), finished(50)),
    "an end after another state": (digest(0), block(1, 25), block(26, 50, DIGEST), finished(50)),
    "an end before it began": (finished(0),),
    "a number without a digest": (digest(0), block(1, 50), metric(50), digest(50), finished(50)),
    "a number of another step": (digest(0), block(1, 50), digest(50), metric(49), finished(50)),
    "a digest of no block's end": (digest(0), block(1, 50), digest(25), metric(25), finished(25)),
    "a block after no state": (block(1, 50), digest(50), finished(50)),
    "a block without the digest before": (digest(0), block(1, 25), block(26, 50), digest(50), finished(50)),
    "a block that leaves steps out": (digest(0), block(41, 50), digest(50), finished(50)),
    "steps that come later": (digest(0), block(41, 50, DIGEST), digest(50), finished(50)),
    "a block that ends before it begins": (block(1, 1, DIGEST), block(2, 1, DIGEST), digest(1), finished(1)),
    "another digest with the next block": (block(1, 25, DIGEST), digest(25), block(26, 50, OTHER), finished(50)),
    "another digest of the first state": (digest(0), block(1, 50, OTHER), digest(50), finished(50)),
    "a match of a state that it never had": (digest(0), block(1, 50), mismatch(50), metric(50), finished(50)),
}


@pytest.mark.parametrize("order", ORDERS)
def test_nothing_leaves_of_a_state_whose_digest_is_not_recorded(
    db: Database, settings: Settings, submit: Submit, order: str
) -> None:
    """Attack (Reliability): A process that says things in another order
    Now: its job fails; nothing leaves, and what it started is charged
    """
    job_id = attempt(db, settings, submit, *ORDERS[order])
    job = job_row(db, job_id)
    assert job.status == "failed" and left(db, job_id) == (0, 0)
    with db.read() as session:
        blocks = session.scalars(select(Block).where(Block.job_id == job_id).order_by(Block.id)).all()
        steps = session.scalars(select(JobEvent.data).where(JobEvent.type == "progress", JobEvent.job_id == job_id))
        digested = {each.last_step for each in blocks if each.digest is not None}
        assert {row["step"] for row in steps} <= digested, "callers see no step without a recorded digest"
    assert job.steps_started == max((each.last_step for each in blocks), default=0)


@pytest.mark.parametrize(
    "words",
    [
        (digest(0), block(1, 25), digest(25), block(26, 50), digest(50)),
        (block(1, 25, DIGEST), block(26, 50, DIGEST), digest(50)),
        (digest(0), block(1, 25, DIGEST), digest(25), digest(25), block(26, 50), digest(50)),
    ],
)
def test_a_digest_alone_or_with_the_next_block_is_recorded(
    db: Database, settings: Settings, submit: Submit, words: tuple[Word, ...]
) -> None:
    job_id = attempt(db, settings, submit, *words, metric(50), finished(50))
    assert job_row(db, job_id).status == "succeeded" and left(db, job_id) == (1, 1)
    with db.read() as session:
        blocks = session.scalars(select(Block).where(Block.job_id == job_id).order_by(Block.id)).all()
    assert [(each.last_step, each.digest) for each in blocks] == [(0, DIGEST), (25, DIGEST), (50, DIGEST)]
