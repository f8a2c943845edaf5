"""The attempt over a socket pair: as a real process where the process matters, in a thread elsewhere."""

from __future__ import annotations

import contextlib
import hashlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from core.errors import TransientError
from core.parts.damage import DataDamagedError
from tests.processes import alive, until
from tests.worker.support import ROOT, Supervisor, dense, key, run_child, run_thread, spec, start_of, stored_part
from worker.attempt.child import serve
from worker.attempt.failure_codes import StorageFailed, failure_code
from worker.attempt.rank_processes import Forked
from worker.channel import Channel
from worker.messages import (
    FAILURE_TEXTS,
    TO_CHILD,
    TO_SUPERVISOR,
    BlockStart,
    Digest,
    Failed,
    Finished,
    Go,
    MetricValue,
    Mismatch,
    Predict,
    ProtocolError,
    Ready,
    Stop,
    Stopped,
    Verdict,
    Written,
)

SHAPE = {"records_train": 80, "records_holdout": 20, "features": 5, "outputs": 3, "sparse": False}


@pytest.fixture
def supervisor(tmp_path: Path) -> Supervisor:
    return make(tmp_path)


def make(folder: Path, *, sparse: bool = False, public: bool = False, job: dict[str, Any] | None = None) -> Supervisor:
    x, y = dense(100, 5, 3)
    parts = {
        "train": stored_part(folder / "train.npz", x[:80], y[:80], sparse=sparse),
        "holdout": stored_part(folder / "holdout.npz", x[80:], y[80:], sparse=sparse),
    }
    out = folder / "out"
    out.mkdir()
    shape = SHAPE | {"sparse": sparse}
    return Supervisor(start_of(job or spec(), shape, parts=parts, output_dir=out, public=public))


def test_a_whole_attempt(supervisor: Supervisor) -> None:
    ended = run_child(supervisor)
    assert ended.status == "exit code 0" and isinstance(ended.last, Finished) and ended.printed == b""
    assert (ended.last.steps_effective, ended.last.warnings) == (10, ())
    assert [artifact.name for artifact in ended.last.artifacts] == ["model.safetensors", "model.json", "README.md"]
    for artifact in ended.last.artifacts:
        assert hashlib.sha256(Path(artifact.path).read_bytes()).hexdigest() == artifact.sha256
    assert load_file(ended.last.artifacts[0].path)["weight"].shape == (3, 5)
    order = [type(each) for each in supervisor.seen]
    assert order[:4] == [Verdict, Ready, Digest, BlockStart] and order[-1] is Finished
    assert [each.step for each in supervisor.of(MetricValue)] == [5, 10] and supervisor.started == 10


def test_the_model_s_card_has_the_claim_and_the_last_released_score(supervisor: Supervisor) -> None:
    claim = {"epsilon": {"value": 1.0, "delta": 1e-5, "accountant": "gdp"}, "certificate": "job_1"}
    supervisor.start |= {"claim": claim}
    ended = run_thread(supervisor)
    assert isinstance(ended.last, Finished)
    weights, card, _readme = ended.last.artifacts
    said = json.loads(Path(card.path).read_text())["privacy"]
    last = supervisor.of(MetricValue)[-1]
    assert (said["epsilon"], said["certificate"]) == (1.0, "job_1")
    assert said["scores"] == [{"name": last.name, "value": last.value, "std": last.std, "on": last.on}]
    with safe_open(weights.path, framework="np") as opened:
        assert json.loads(opened.metadata()["privacy.scores"]) == said["scores"]


def test_a_killed_attempt_is_gone_on_with_by_another_process(tmp_path: Path) -> None:
    """Sparse data, Poisson batches: the second process gives the straight run's file, byte for byte."""
    job = spec(sampling={"kind": "poisson", "expected_batch_size": 16})
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    straight, killed = make(tmp_path / "a", sparse=True, job=job), make(tmp_path / "b", sparse=True, job=job)
    whole = run_child(straight)
    killed.die_at = 6
    assert run_child(killed).last is None
    killed.die_at = None
    resumed = run_child(killed)
    assert isinstance(whole.last, Finished) and isinstance(resumed.last, Finished)
    assert resumed.last.artifacts[0].sha256 == whole.last.artifacts[0].sha256
    assert killed.metrics == straight.metrics and killed.started == 10 and killed.resalts == 0


def test_a_tampered_digest_leads_to_fresh_keys(supervisor: Supervisor) -> None:
    first = run_thread(supervisor)
    for each in supervisor.segments[0]["recorded"]:
        each["digest"] = key("tampered") if each["last_step"] == 8 else each["digest"]
    supervisor.hold = 13
    second = run_thread(supervisor)
    assert [each.matched_step for each in supervisor.of(Mismatch)] == [7]
    assert isinstance(first.last, Finished) and isinstance(second.last, Finished)
    assert second.last.steps_effective == 10 and supervisor.started == 13
    assert first.last.artifacts[0].sha256 != second.last.artifacts[0].sha256


def test_a_cancelled_attempt_stops_at_a_block(supervisor: Supervisor) -> None:
    supervisor.stop_at = 4
    ended = run_thread(supervisor)
    assert ended.status == 0 and ended.last == Stopped(steps_started=3)


def test_public_data_without_privacy(tmp_path: Path) -> None:
    supervisor = make(tmp_path, public=True, job=spec(privacy=None, seed=1))
    ended = run_thread(supervisor)
    assert isinstance(ended.last, Finished)
    final = {each.name: each.value for each in supervisor.of(MetricValue) if each.step == 10}
    assert set(final) == {"accuracy", "loss", "training_loss"} and final["accuracy"] > 0.6


def _until_first_block(channel: Channel) -> None:
    while not isinstance(message := channel.receive(), BlockStart):
        if isinstance(message, Verdict):
            channel.send(Written())


@contextlib.contextmanager
def begun(supervisor: Supervisor) -> Iterator[tuple[Channel, Future[int]]]:
    """An attempt that waits for an answer to its first block, and its status to come."""
    ours, theirs = socket.socketpair()
    child, channel = Channel(theirs, TO_CHILD), Channel(ours, TO_SUPERVISOR)
    with ThreadPoolExecutor(1) as pool:
        status = pool.submit(serve, child, lambda: None)
        channel.send(supervisor.message())
        _until_first_block(channel)
        yield channel, status
        channel.close()
    child.close()


def test_stop_is_heard_between_steps(tmp_path: Path) -> None:
    """Blocks of 1000 steps: stop comes while one is running."""
    supervisor = make(tmp_path, job=spec(length={"steps": 1_000_000}, evaluation=None))
    with begun(supervisor) as (channel, status):
        # Both at once: between two sends this thread may stand still for longer than a block.
        channel.send_bytes(b"".join(said.model_dump_json().encode() + b"\n" for said in (Go(), Stop())))
        last = channel.receive()
        assert isinstance(last, Stopped) and last.steps_started < 1000
        assert status.result(300) == 0


def test_a_child_without_a_supervisor_ends(supervisor: Supervisor) -> None:
    with begun(supervisor) as (channel, status):
        channel.close()
        assert status.result(300) == 1


def test_another_message_than_the_awaited_one_is_a_protocol_failure(supervisor: Supervisor) -> None:
    with begun(supervisor) as (channel, status):
        channel.send(supervisor.message())
        last = channel.receive()
        assert isinstance(last, Failed) and last.code == "protocol" and status.result(300) == 1


@pytest.mark.nightly  # by day a fork dies with its worker, and with its fork server: test_fork_server.py
def test_a_child_dies_with_its_parent(supervisor: Supervisor, tmp_path: Path) -> None:
    """The parent is killed; its end of the socket stays open here, so that only the death signal can end the child."""
    ours, theirs = socket.socketpair()
    script = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-m', 'worker.attempt.child', '{theirs.fileno()}'],"
        f" pass_fds=({theirs.fileno()},))\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, pass_fds=(theirs.fileno(),), stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    channel = Channel(ours, TO_SUPERVISOR)
    channel.send(supervisor.message())
    _until_first_block(channel)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    until(lambda: not alive(child))
    channel.close()
    theirs.close()


# --- Failures: a closed set, without values ---


def failed(supervisor: Supervisor, line: bytes | None = None) -> Failed:
    ended = run_thread(supervisor, line)
    assert ended.status == 1 and isinstance(ended.last, Failed)
    assert ended.last.message == FAILURE_TEXTS[ended.last.code]
    assert supervisor.started == 0
    return ended.last


def test_damaged_data_fail_before_anything_starts(supervisor: Supervisor) -> None:
    """In a real process: nothing is printed either."""
    path = Path(supervisor.start["parts"]["train"][0]["path"])
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    ended = run_child(supervisor)
    assert isinstance(ended.last, Failed) and ended.last.code == "data-damaged"
    assert ended.status == "exit code 1" and ended.printed == b"" and supervisor.started == 0


@pytest.mark.parametrize("change", [{"features": 6}, {"outputs": 2}, {"sparse": True}, {"outputs": 1}])
def test_data_of_another_shape_are_damaged(supervisor: Supervisor, change: dict[str, Any]) -> None:
    job = spec(evaluation=None)
    supervisor.start = start_of(job, SHAPE | change) | {"parts": supervisor.start["parts"]}
    assert failed(supervisor).code == "data-damaged"


def test_a_mechanism_that_is_not_the_specification_s_is_refused(supervisor: Supervisor) -> None:
    supervisor.start["mechanism"]["training"]["noise_multiplier"] = 0.5
    assert failed(supervisor).code == "privacy-invariant"


def test_a_message_that_is_none_is_a_protocol_failure(supervisor: Supervisor) -> None:
    assert failed(supervisor, b'{"kind":"start"}').code == "protocol"


def test_an_output_folder_that_is_not_there_is_a_storage_failure(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.start["output_dir"] = str(tmp_path / "absent")
    ended = run_thread(supervisor)
    assert isinstance(ended.last, Failed) and ended.last.code == "storage"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MemoryError(), "out-of-memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "out-of-memory"),
        (RuntimeError("shape mismatch: 3.14"), "internal"),
        (ValueError("3.14"), "internal"),
        (DataDamagedError("x"), "data-damaged"),
        (ProtocolError("x"), "protocol"),
        (StorageFailed(), "storage"),
        (TransientError("the GPU's driver loads no kernel"), "device"),
        (KeyboardInterrupt(), "internal"),
    ],
)
def test_every_end_has_a_code(error: BaseException, code: str) -> None:
    assert failure_code(error) == code


def test_a_record_that_is_not_finite_shows_nowhere(tmp_path: Path) -> None:
    """NaN, ∞ and numbers that overflow in the data: no message, no output, no warning differs."""
    clean = make(tmp_path)
    run_thread(clean)
    x, y = dense(83, 5, 3)
    x[80:] = np.array([np.nan, np.inf, 3e38], dtype=np.float32)[:, None]
    clean.start["parts"]["train"] = [stored_part(tmp_path / "bad.npz", x, y)]
    second = Supervisor(clean.start)
    ended = run_thread(second)
    assert isinstance(ended.last, Finished) and ended.last.warnings == ()
    assert [each.kind for each in second.seen] == [each.kind for each in clean.seen]


def test_what_the_child_sends_names_no_private_number(supervisor: Supervisor) -> None:
    """Every message of a private run is one of these, with these members: a new one has to be thought about."""
    run_thread(supervisor)
    members = {each.kind: set(json.loads(each.model_dump_json())) - {"kind"} for each in supervisor.seen}
    assert members == {
        # The size of passes that fits was found with random public records, and so was the verdict.
        "verdict": {"self_test", "fitted_rows"},
        "ready": {"device", "processes", "fallbacks", "numerics", "fitted_rows"},
        "digest": {"step", "digest"},
        "block": {"first_step", "last_step", "digest"},
        # Scores of groups are cells of the one histogram that is charged.
        "metric": {"name", "step", "value", "std", "on", "released_by", "parts"},
        "finished": {"steps_effective", "artifacts", "warnings", "ranks"},
    }
    assert supervisor.of(Finished)[0].ranks == (), "how many passes a rank had, and its memory, are private"


def test_a_prediction_is_silent_before_it_reads_anything() -> None:
    """Its inputs may be private: a library's warning must not print them, whatever the model is."""
    ours, theirs = socket.socketpair()
    columns: dict[str, Any] = {"kind": "columns", "columns": list("abcde")}
    asked = Predict.model_validate(
        {
            "spec": spec(),
            "task": {"kind": "regression", "label": "y"},
            "features": columns,
            "shape": SHAPE | {"outputs": 1},
            "weights": {"path": "/nowhere", "sha256": "0" * 64},
            "records": [[0.0] * 5],
            "top": 1,
        }
    )
    called: list[str] = []
    with ours:
        supervisor = Channel(ours, TO_SUPERVISOR)
        supervisor.send(asked)

        def confine(_: object) -> Forked:
            called.append("confined")
            return Forked(0, 1, ())

        assert serve(Channel(theirs, TO_CHILD), lambda: called.append("silent"), confine) == 1
        assert isinstance(supervisor.receive(), Failed) and called == ["confined", "silent"]
    theirs.close()
