"""Real attempts that are killed, stopped or paused, and go on from their checkpoint; and files that are not believed.

`replay` runs each job again from its first step, undisturbed: the digests and the model's SHA-256 are the same.
"""

from __future__ import annotations

import json
import math
import os
import select
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fastapi.testclient import TestClient
from sqlalchemy import select as selected

from app.db.database import Database
from app.db.models import Attempt, Job, JobEvent
from app.lifecycle.attempts import AttemptLog
from app.lifecycle.relay import Relay
from app.lifecycle.saved import drop_ended
from app.lifecycle.wakeups import CeleryNotifier
from app.settings import Settings
from app.storage import objects
from core.contracts.stored_documents import SaltedSteps
from core.parts.sealed import HEADER_BYTES, STORED_BYTES
from core.privacy.numerics import NumericsReport
from tests.by_night import but
from tests.e2e.conftest import job_of
from tests.factories import AT_ONCE
from tests.lifecycle import test_auditor as auditing
from tests.lifecycle.conftest import claimed, job_row
from worker.attempt import job_checkpoints, supervisor
from worker.attempt.auditor import replay
from worker.attempt.fork_server import ForkServer
from worker.attempt.job_checkpoints import Checkpoints
from worker.attempt.output_folders import drop_dead
from worker.attempt.start import NoiseSecrets
from worker.messages import Checkpoint, ProtocolError

settings, db, client = auditing.settings, auditing.db, auditing.client
STEPS, KILLED = 100, 81  # blocks of four steps
MLP = {"kind": "mlp", "hidden": [8], "dropout": 0.25}
ADAM = {"kind": "dp_adam", "learning_rate": 0.1}
JOBS: dict[str, dict[str, Any]] = {
    "DP-SGD": {},
    "DP-Adam, two processes": {"model": MLP, "optimizer": ADAM, "runtime": {"processes": 2}},
    "sharded": {"model": MLP, "optimizer": ADAM, "runtime": {"processes": 2, "shard": "optimizer"}},
}


class Watched(AttemptLog):
    """Acts before the block that holds a step; notes the attempt's processes and where it began."""

    pids: tuple[int, ...] = ()
    blocks: list[int]
    act: Callable[[Watched], object] | None = None
    at = STEPS + 1

    @classmethod
    def of(cls, db: Database, job_id: str, at: int = STEPS + 1, act: Any = None) -> Watched:
        plain = claimed(db, job_id)
        log = cls(db, plain.held, lease_s=30.0, max_attempts=99, cadence=AT_ONCE)
        log.at, log.act, log.blocks = at, act, []
        return log

    def ready(self, device: Any, numerics: NumericsReport, *rest: Any) -> None:
        self.pids = rest[-1]
        super().ready(device, numerics, *rest)

    def start_block(self, first_step: int, last_step: int, digest: str | None = None) -> bool:
        self.blocks.append(first_step)
        if self.act is not None and first_step <= self.at <= last_step:
            self.act(self)
        return super().start_block(first_step, last_step, digest)

    @property
    def began_after(self) -> int:
        return self.blocks[0] - 1

    def kill(self) -> None:
        os.kill(self.pids[0], signal.SIGKILL)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state is saved after `checkpoint_s`, whatever that costs; and this worker may be told to stop."""
    monkeypatch.setattr(job_checkpoints, "SHARE", 0)
    monkeypatch.setattr(job_checkpoints, "LEAST_S", 3600.0)
    monkeypatch.setattr(supervisor, "STOPPING", threading.Event())
    monkeypatch.setattr(supervisor, "AT_ONCE", threading.Event())


@pytest.fixture
def quick(settings: Settings) -> Settings:
    return settings.model_copy(update={"checkpoint_s": 1e-9})


Submit = Callable[..., str]


@pytest.fixture
def submit(client: TestClient) -> Submit:
    def made(name: str, **changes: Any) -> str:
        asked = {"length": {"steps": STEPS}, "evaluation": {"noise_mu": 0.05, "points": 2}} | changes
        asked |= {"privacy": {"target_epsilon": 0.5}}  # many fit
        spec = job_of("small", name=name, **asked)
        answer = client.post("/v1/jobs", json=spec, headers={"Idempotency-Key": name})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    return made


def run(log: Watched, settings: Settings, fork_server: ForkServer, processes: int = 1) -> Watched:
    supervisor.run_attempt(log, settings, fork_server, processes=processes)
    return log


def file_of(settings: Settings, job_id: str) -> Path:
    return settings.storage_root / "checkpoints" / job_id / "state"


def ends(db: Database, job_id: str) -> list[str]:
    with db.read() as session:
        return list(session.scalars(selected(Attempt.status).where(Attempt.job_id == job_id).order_by(Attempt.number)))


def require_same(db: Database, settings: Settings, fork_server: ForkServer, job_id: str) -> None:
    """The job succeeded with the model of an undisturbed run, and was charged for its steps once."""
    job = job_row(db, job_id)
    assert (job.status, job.step, job.steps_started, len(job.segments)) == ("succeeded", STEPS, STEPS, 1)
    found = replay(db, settings, fork_server, job_id, None)
    assert found.holds and found.same_model and len(found.compared) == found.stretches
    drop_ended(db, objects.of(settings))
    assert not file_of(settings, job_id).exists()


@pytest.mark.parametrize("name", but(JOBS, lambda name: name == "DP-SGD"))
def test_a_job_that_is_killed_at_four_fifths_does_the_last_fifth(
    db: Database, quick: Settings, fork_server: ForkServer, submit: Submit, name: str
) -> None:
    """Claim: a job killed at 80 % of its steps does the last fifth, to the same model
    Now: from its checkpoint, on one process, two, and sharded
    """
    job_id, processes = submit(name, **JOBS[name]), JOBS[name].get("runtime", {}).get("processes", 1)
    run(Watched.of(db, job_id, KILLED, Watched.kill), quick, fork_server, processes)
    assert (job_row(db, job_id).status, ends(db, job_id)) == ("queued", ["crashed"])
    assert file_of(quick, job_id).stat().st_mode & 0o777 == 0o600
    again = run(Watched.of(db, job_id), quick, fork_server, processes)
    assert again.began_after == 80
    require_same(db, quick, fork_server, job_id)


def test_a_job_shorter_than_the_interval_is_not_saved(
    db: Database, settings: Settings, fork_server: ForkServer, submit: Submit
) -> None:
    saved: list[bool] = []
    job_id = submit("short")
    run(
        Watched.of(db, job_id, KILLED, lambda _: saved.append(file_of(settings, job_id).exists())),
        settings,
        fork_server,
    )
    assert saved == [False] and job_row(db, job_id).status == "succeeded"


@pytest.mark.parametrize("seconds", [40.0, 100.0, 600.0, 3600.0, 86400.0])
def test_a_kill_at_four_fifths_costs_less_than_a_third(
    settings: Settings, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the clock: 25 blocks, and a save takes a tenth of a second. The rest of the job is 30 % of it at most."""
    monkeypatch.undo()
    clock = [0.0]
    monkeypatch.setattr("worker.attempt.job_checkpoints.time.monotonic", lambda: clock[0])
    segment = SaltedSteps(from_step=1, salt="ab" * 32, key_id="k")
    kept = Checkpoints(settings, f"job_{seconds}", 1, "r", lambda _segment: bytes(range(32)))
    saved, saves = 0.0, 0
    for block in range(1, 21):
        clock[0] += seconds / 25
        if kept.wants(block):
            kept.begin(of_step(block), block, [segment])
            clock[0] += 0.1
            kept.add(b"")
            saved, saves = block / 25, saves + 1
    assert 1.0 - saved <= 0.3 and 0.1 * saves <= 0.03 * clock[0]
    assert kept.wants(21, now=True)


# --- Told to stop ---


def test_a_worker_that_stops_ends_its_block_and_saves(
    db: Database, settings: Settings, fork_server: ForkServer, submit: Submit
) -> None:
    """No checkpoint was due: the stop alone saves one, and the job is queued for another worker."""
    job_id = submit("drained")
    first = run(Watched.of(db, job_id, 50, lambda _: supervisor.STOPPING.set()), settings, fork_server)
    assert (job_row(db, job_id).status, ends(db, job_id), first.blocks[-1]) == ("queued", ["lost"], 49)
    supervisor.STOPPING.clear()
    again = run(Watched.of(db, job_id), settings, fork_server)
    assert again.began_after == 50  # a score ends its block
    require_same(db, settings, fork_server, job_id)


@pytest.mark.parametrize("how", ["told twice", "no time"])
def test_a_worker_that_stops_at_once_goes_back_to_the_last_checkpoint(
    db: Database, settings: Settings, fork_server: ForkServer, submit: Submit, how: str
) -> None:
    def act(log: Watched) -> None:
        supervisor.STOPPING.set()
        if how == "told twice":
            supervisor.AT_ONCE.set()
        process = os.pidfd_open(log.pids[0])
        assert select.select([process], [], [], 60.0)[0], "the watch ends it"
        os.close(process)

    job_id = submit(how)
    hurried = settings.model_copy(update={} if how == "told twice" else {"drain_s": 0.0})
    run(Watched.of(db, job_id, 50, act), hurried, fork_server)
    assert (job_row(db, job_id).status, ends(db, job_id)) == ("queued", ["lost"])
    supervisor.STOPPING.clear()
    supervisor.AT_ONCE.clear()
    assert run(Watched.of(db, job_id), settings, fork_server).began_after == 0
    require_same(db, settings, fork_server, job_id)


@pytest.mark.parametrize(("asked", "ended"), [("cancelling", "cancelled"), ("pausing", "paused")])
def test_a_person_s_wish_counts_at_a_drain_s_end(
    db: Database,
    settings: Settings,
    fork_server: ForkServer,
    submit: Submit,
    asked: str,
    ended: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It comes while the state is saved, before the watch has seen it."""
    begin = Checkpoints.begin

    def begun(self: Checkpoints, *said: Any) -> None:
        begin(self, *said)
        set_status(db, job_id, asked)

    job_id = submit(f"drained while {asked}")
    monkeypatch.setattr(Checkpoints, "begin", begun)
    monkeypatch.setattr(Watched, "heartbeat", lambda _self: False)
    run(Watched.of(db, job_id, 50, lambda _: supervisor.STOPPING.set()), settings, fork_server)
    assert (job_row(db, job_id).status, ends(db, job_id)) == (ended, [ended])
    with db.read() as session:
        kinds = session.scalars(selected(JobEvent.type).where(JobEvent.job_id == job_id)).all()
    assert "attempt_lost" not in kinds


@pytest.mark.parametrize(("drain_s", "warned"), [(1e-9, 1), (3600.0, 0)])
def test_a_block_that_outlasts_the_drain_is_said_once(
    db: Database,
    settings: Settings,
    fork_server: ForkServer,
    submit: Submit,
    drain_s: float,
    warned: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    job_id = submit(f"drain of {drain_s}")
    run(Watched.of(db, job_id), settings.model_copy(update={"drain_s": drain_s}), fork_server)
    assert caplog.text.count("SCRIMP_DRAIN_S") == warned and job_row(db, job_id).status == "succeeded"


def test_a_paused_job_goes_on_from_its_checkpoint(
    db: Database, quick: Settings, fork_server: ForkServer, submit: Submit
) -> None:
    def pause(log: Watched) -> None:
        with db.write() as session:
            session.get_one(Job, log.held.job_id).status = "pausing"

    job_id = submit("paused")
    run(Watched.of(db, job_id, 50, pause), quick, fork_server)
    paused = job_row(db, job_id)
    assert (paused.status, ends(db, job_id)) == ("paused", ["paused"])
    assert paused.ran_s > 0.0  # the time until the checkpoint is not given back
    with db.write() as session:
        session.get_one(Job, job_id).status = "queued"
    assert run(Watched.of(db, job_id), quick, fork_server).began_after == 48
    require_same(db, quick, fork_server, job_id)


def test_an_attempt_that_lost_its_job_replaces_no_state(
    db: Database, quick: Settings, fork_server: ForkServer, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker claims the job, or it ends, while a state is written."""
    begin, states = Checkpoints.begin, []

    def begun(self: Checkpoints, *said: Any) -> None:
        begin(self, *said)
        if file_of(quick, job_id).exists():
            states.append(file_of(quick, job_id).read_bytes())
            with db.write() as session:
                session.get_one(Job, job_id).attempt += 1

    job_id = submit("stale")
    monkeypatch.setattr(Checkpoints, "begin", begun)
    run(Watched.of(db, job_id), quick, fork_server)
    assert states == [file_of(quick, job_id).read_bytes()]
    assert [each.name for each in file_of(quick, job_id).parent.iterdir()] == ["state"]


# --- What is not believed ---


def cut(path: Path, _others: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def short(path: Path, _others: Path) -> None:
    os.truncate(path, HEADER_BYTES // 2)


def flipped(path: Path, _others: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def flipped_line(path: Path, _others: Path) -> None:
    content = bytearray(path.read_bytes())
    content[HEADER_BYTES] ^= 1
    path.write_bytes(content)


def swapped(path: Path, others: Path) -> None:
    shutil.copy(others, path)


FILES: dict[str, Callable[[Path, Path], object]] = {
    "missing": lambda path, _others: path.unlink(),
    "cut": cut,
    "torn header": short,
    "tampered with": flipped,
    "tampered with in its line": flipped_line,
    "of another job, under another salt": swapped,
    "in plaintext": lambda path, _others: path.write_bytes(b'{"job":"x"}\n' + bytes(4096)),
}


@pytest.fixture(scope="module")
def others(
    db: Database,
    settings: Settings,
    client: TestClient,
    fork_server: ForkServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """Another job's checkpoint."""
    spec = job_of("small", name="others", length={"steps": STEPS}, evaluation=None)
    job_id = str(client.post("/v1/jobs", json=spec, headers={"Idempotency-Key": "others"}).json()["id"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor, "STOPPING", threading.Event())
        run(Watched.of(db, job_id, 20, lambda _: supervisor.STOPPING.set()), settings, fork_server)
    kept = tmp_path_factory.mktemp("others") / "state"
    shutil.copy(file_of(settings, job_id), kept)
    return kept


def stopped_job(db: Database, settings: Settings, fork_server: ForkServer, submit: Submit, name: str) -> str:
    job_id = submit(name)
    run(Watched.of(db, job_id, KILLED, lambda _: supervisor.STOPPING.set()), settings, fork_server)
    supervisor.STOPPING.clear()
    assert file_of(settings, job_id).exists()
    return job_id


def test_a_file_that_is_not_the_job_s_state_is_not_gone_on_from(
    db: Database, settings: Settings, fork_server: ForkServer, submit: Submit, others: Path
) -> None:
    """An attempt for each, which ends where it begins; the last one goes on to the job's end.

    Claim: a checkpoint that is missing, torn, tampered with or another's is not gone on from
    Now: step 0, the same model
    """
    job_id = stopped_job(db, settings, fork_server, submit, "not believed")
    path, begun = file_of(settings, job_id), {}
    state = path.read_bytes()
    for name, plant in FILES.items():
        path.write_bytes(state)
        plant(path, others)
        begun[name] = run(Watched.of(db, job_id, 1, Watched.kill), settings, fork_server).began_after
    assert begun == dict.fromkeys(FILES, 0)
    path.write_bytes(state)
    honest = run(Watched.of(db, job_id, KILLED + 4, Watched.kill), settings, fork_server)
    assert honest.began_after == 84, "the attempts before it would have gone on from the state itself"
    assert run(plain(path, Watched.of(db, job_id)), settings, fork_server).began_after == 0
    require_same(db, settings, fork_server, job_id)


def plain(path: Path, log: Watched) -> Watched:
    FILES["in plaintext"](path, path)
    return log


def other_release(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(supervisor, "release", lambda: "0" * 16)


def other_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NoiseSecrets, "checkpoint_key", lambda _self, _segment: bytes(range(32)))


@pytest.mark.parametrize("plant", [other_release, other_key])
def test_another_release_or_key_does_not_go_on(
    db: Database,
    settings: Settings,
    quick: Settings,
    fork_server: ForkServer,
    submit: Submit,
    plant: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job_id = stopped_job(db, settings, fork_server, submit, plant.__name__)
    plant(monkeypatch)
    assert run(Watched.of(db, job_id, 50, Watched.kill), quick, fork_server).began_after == 0
    assert run(Watched.of(db, job_id), settings, fork_server).began_after == 48, "what it saves itself is its own"
    require_same(db, settings, fork_server, job_id)


def test_a_disk_that_cannot_keep_it_costs_time_alone(
    db: Database, quick: Settings, fork_server: ForkServer, submit: Submit, caplog: pytest.LogCaptureFixture
) -> None:
    job_id = submit("full disk")
    full = quick.model_copy(update={"disk_reserve_bytes": 2**60})
    run(Watched.of(db, job_id), full, fork_server)
    assert f"the state of {job_id} cannot be saved: StorageFull" in caplog.text
    require_same(db, quick, fork_server, job_id)


# --- What is left ---


def set_status(db: Database, job_id: str, status: str) -> None:
    with db.write() as session:
        session.get_one(Job, job_id).status = status


@pytest.mark.parametrize("status", ["queued", "running", "pausing", "paused", "cancelling"])
def test_an_unfinished_job_keeps_its_state(db: Database, settings: Settings, submit: Submit, status: str) -> None:
    job_id = submit(f"left {status}")
    set_status(db, job_id, status)
    path = file_of(settings, job_id)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"state")
    drop_ended(db, objects.of(settings))
    assert path.exists()
    set_status(db, job_id, "cancelled")


def test_a_state_that_is_written_after_its_job_s_end_goes(db: Database, settings: Settings, submit: Submit) -> None:
    """Whoever wrote it: nobody asks for its deletion. So does one of a job that the database has forgotten."""
    names = [submit("left ended"), "job_forgotten"]
    set_status(db, names[0], "succeeded")
    for name in names:
        file_of(settings, name).parent.mkdir(parents=True)
        file_of(settings, name).write_bytes(b"state")
    relay = Relay(db, settings, Ed25519PrivateKey.generate(), CeleryNotifier(settings))
    relay.next_sweep = relay.next_survey = relay.next_retention = math.inf
    relay.run_once()
    assert not any(file_of(settings, name).parent.exists() for name in names)


def leave(settings: Settings, job_id: str, attempt: int) -> set[str]:
    """What a killed worker leaves on its disk."""
    folder, output = file_of(settings, job_id).parent, settings.storage_root / "jobs" / job_id / f"attempt-{attempt}"
    output.mkdir(parents=True)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("part", "copy"):
        (folder / f"{name}-{attempt}").write_bytes(b"state")
    return {f"part-{attempt}", f"copy-{attempt}", f"attempt-{attempt}"}


def left(settings: Settings, job_id: str) -> set[str]:
    root = settings.storage_root
    return {path.name for kind in ("jobs", "checkpoints") for path in (root / kind / job_id).glob("*")}


@pytest.mark.parametrize("store", ["", "s3://bucket"])
def test_what_a_killed_worker_leaves_on_its_disk_goes(
    db: Database, settings: Settings, submit: Submit, store: str
) -> None:
    """Several workers have one disk: what a living attempt writes there stays. In a folder that all share, published
    files lie where attempts write."""
    mine = settings.model_copy(update={"object_store": store})
    living, queued = submit(f"living {store}"), submit(f"dead {store}")
    for job_id, status in ((living, "running"), (queued, "queued")):
        with db.write() as session:
            job = session.get_one(Job, job_id)
            job.status, job.attempt = status, 2
    files = {job_id: [leave(settings, job_id, attempt) for attempt in (1, 2)] for job_id in (living, queued)}
    file_of(settings, queued).write_bytes(b"state")
    drop_dead(db, mine)
    outputs = set() if store else {"attempt-1", "attempt-2"}
    assert left(settings, living) == files[living][1] | outputs
    assert left(settings, queued) == {"state"} | outputs
    for job_id in (living, queued):
        set_status(db, job_id, "cancelled")


# --- An attempt that lies ---


@pytest.fixture
def saves(quick: Settings) -> Iterator[tuple[Checkpoints, SaltedSteps]]:
    segment = SaltedSteps(from_step=1, salt="ab" * 32, key_id="k")
    made = Checkpoints(quick, "job_liar", 2, "r", lambda _segment: bytes(range(32)))
    yield made, segment
    made.close()


def of_step(step: int) -> Checkpoint:
    return Checkpoint(step=step, before="0" * 64)


def test_only_the_state_that_was_asked_for_is_taken(saves: tuple[Checkpoints, SaltedSteps]) -> None:
    kept, segment = saves
    lies = (lambda: kept.begin(of_step(8), 8, [segment]), lambda: kept.add(b"more"))
    for lie in lies:
        with pytest.raises(ProtocolError):
            lie()
    assert kept.wants(8, now=True)
    with pytest.raises(ProtocolError):
        kept.begin(of_step(9), 8, [segment])
    kept.begin(of_step(8), 8, [segment])
    for again in (False, True):
        assert kept.wants(8, now=True) or again
        with pytest.raises(ProtocolError):
            kept.begin(of_step(8), 8, [segment])
    assert kept.add(b"state") is False and kept.add(b"") is True
    with pytest.raises(ProtocolError):
        kept.begin(of_step(8), 8, [segment])  # a second time: a disk that is written for ever
    assert not kept.wants(8, now=True) and kept.wants(9, now=True)
    found = kept.find([segment], {segment.salt: {8}})
    assert found is not None and found.read() == b"state" and found.read() == b""
    found.close()
    assert kept.find([segment], {segment.salt: {4}}) is None


def test_a_state_larger_than_the_attempt_s_memory_ends_it(quick: Settings) -> None:
    small = quick.model_copy(update={"attempt_memory_bytes": 2**20})
    kept = Checkpoints(small, "job_large", 1, "r", lambda _segment: bytes(range(32)))
    assert kept.wants(1, now=True)
    kept.begin(of_step(1), 1, [SaltedSteps(from_step=1, salt="ab" * 32, key_id="k")])
    assert kept.add(bytes(2**20)) is False
    with pytest.raises(ProtocolError):
        kept.add(b"x")
    kept.close()
    assert list((small.storage_root / "checkpoints" / "job_large").iterdir()) == []


def test_nothing_of_the_state_is_on_disk_in_plaintext(quick: Settings) -> None:
    kept = Checkpoints(quick, "job_sealed", 1, "r", lambda _segment: bytes(range(32)))
    assert kept.wants(1, now=True)
    kept.begin(of_step(1), 1, [SaltedSteps(from_step=1, salt="ab" * 32, key_id="k")])
    needle = b"needle in a state" * (STORED_BYTES // 8)
    assert kept.add(needle) is False and kept.add(b"") is True
    content = file_of(quick, "job_sealed").read_bytes()
    assert b"needle" not in content and json.dumps("job_sealed").encode() not in content
