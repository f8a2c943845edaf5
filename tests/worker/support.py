"""What the worker tests share: small data sets in the stored layout, plans, and a supervisor that keeps the record."""

from __future__ import annotations

import atexit
import hashlib
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
import scipy.sparse
import torch

from core.contracts.job_spec import JobSpec
from core.parts.part_files import save_part
from core.parts.stored_records import Csr, StoredPart
from core.privacy.derive import delayed_of
from core.privacy.slot_numbers import unstated_slots
from worker.attempt.child import serve
from worker.attempt.failure_codes import StopRequested
from worker.attempt.fork_server import ForkServer, Process
from worker.channel import Channel
from worker.data.passes import Prepared
from worker.data.placed import CPU
from worker.data.ranks import ALONE, Ranks
from worker.data.records import DenseRecords, Records, SparseRecords
from worker.data.secret_slots import Slotted
from worker.messages import (
    PIECE_BYTES,
    TO_CHILD,
    TO_SUPERVISOR,
    BlockStart,
    Checkpoint,
    Digest,
    Failed,
    Finished,
    Go,
    Mismatch,
    More,
    Piece,
    Resalt,
    Save,
    Start,
    Stop,
    Stopped,
    Verdict,
    Written,
)
from worker.noise.attempt_keys import Purpose
from worker.telemetry import Telemetry
from worker.training.batches import TrainingData
from worker.training.loop import Outcome, Training
from worker.training.plan import Plan, build_plan
from worker.training.write_ahead import Replay

ROOT = Path(__file__).resolve().parents[2]


def key(*name: object) -> str:
    """32 bytes as hex, of whatever names them."""
    return hashlib.sha256(repr(name).encode()).hexdigest()


def keys_of(salt: str) -> dict[str, str]:
    return {f"{purpose}_key": key(salt, purpose) for purpose in get_args(Purpose)}


def dense(n: int, d: int, classes: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Separable records: float32 features and labels."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(n, d)).astype(np.float32)
    w = np.random.default_rng(12345).normal(size=(d, max(classes, 1)))
    scores = x @ w
    return x, scores.argmax(axis=1).astype(np.int64) if classes > 1 else (scores[:, 0] / d).astype(np.float64)


def records(x: np.ndarray, y: np.ndarray, *, sparse: bool = False) -> Records:
    labels = torch.from_numpy(y)
    return SparseRecords(scipy.sparse.csr_matrix(x), labels) if sparse else DenseRecords(torch.from_numpy(x), labels)


def prepared(batch: Records, rows: int, dtype: torch.dtype = torch.float64) -> Prepared[Any]:
    """Passes of all these records, as a full batch keeps them."""
    return Slotted(batch, np.arange(len(batch))).prepared(rows, dtype, CPU)


def spec(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "dataset": "ds_1",
        "optimizer": {"kind": "dp_sgd", "learning_rate": 0.5, "momentum": 0.9, "free_step": True},
        "privacy": {"noise_multiplier": 1.0, "target_delta": 1e-5},
        "length": {"steps": 10},
        "evaluation": {"noise_mu": 0.5, "points": 2},
    }
    return base | changes


def mechanism(job: dict[str, Any], shape: dict[str, Any], *, holdout_public: bool = False) -> dict[str, Any]:
    """The mechanism that admission would store for a specification, with its σ."""
    parsed = JobSpec.model_validate(job)
    assert (
        parsed.privacy is not None and parsed.privacy.noise_multiplier is not None and parsed.length.steps is not None
    )
    poisson = parsed.sampling.kind == "poisson"
    batch = parsed.sampling.batch(shape["records_train"])
    releases = []
    if parsed.evaluation is not None and not holdout_public:
        releases = [
            {
                "what": what,
                "account": "holdout",
                "noise_mu": parsed.evaluation.noise_mu,
                "sensitivity": sensitivity,
                "times": parsed.evaluation.points,
                "records": shape["records_holdout"],
                "groups": parsed.evaluation.groups or {},
            }
            for what, sensitivity in parsed.evaluation.sensitivities(classes=shape["outputs"] > 1).items()
        ]
    clipping = job.get("clipping") or {"kind": "flat", "max_grad_norm": 1.0}
    training = {
        "sampling": parsed.sampling.kind,
        "sample_rate": batch / shape["records_train"] if poisson else 1.0,
        "steps": parsed.length.steps,
        "noise_multiplier": parsed.privacy.noise_multiplier,
        "max_grad_norm": clipping.get("max_grad_norm", 1.0),
        "clipping": clipping.get("kind", "flat"),
        "expected_batch_size": batch,
        "delayed": delayed_of(parsed.optimizer),
        "reach": parsed.model.reach,
    }
    if parsed.sampling.kind == "poisson" and parsed.sampling.largest_batch is not None:
        slots = unstated_slots(shape["records_train"])
        training["truncation"] = {"records": slots, "largest_batch": parsed.sampling.largest_batch}
    if parsed.sampling.kind == "cyclic":
        training["cycle"] = parsed.sampling.batches
    if parsed.noise is not None:
        training["noise"] = {"decay": parsed.noise.decay}
    return {"target_delta": parsed.privacy.target_delta or 1e-5, "training": training, "releases": releases}


@dataclass
class Supervisor:
    """Keeps the write-ahead record as the real one does, and answers an attempt.

    stop_at: answers stop to the block that holds this step. die_at: raises ConnectionError there instead, as if the
    attempt had been killed after the block was written ahead. save_at: asks for the state before the blocks that hold
    these steps. saved, state: the last one.
    """

    start: dict[str, Any]
    segments: list[dict[str, Any]] = field(default_factory=lambda: [{"from_step": 1, **keys_of("s0"), "recorded": []}])
    hold: int | None = None
    started: int = 0
    metrics: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    seen: list[Any] = field(default_factory=list)
    stop_at: int | None = None
    die_at: int | None = None
    resalts: int = 0
    save_at: tuple[int, ...] = ()
    saved: Checkpoint | None = None
    state: bytes = b""
    read: int = 0

    @property
    def allowed(self) -> int:
        return (self.hold if self.hold is not None else self.start["steps"]) - self.started

    def message(self) -> Start:
        released = [{"name": name, "step": step} for name, step in self.metrics]
        return Start.model_validate(
            self.start
            | {"segments": self.segments, "released": released, "allowed_steps": self.allowed, "saved": self.saved}
        )

    def keep(self, header: Checkpoint, state: bytes) -> None:
        self.saved, self.state = header, state

    def next_bytes(self, count: int) -> bytes:
        self.read += count
        return self.state[self.read - count : self.read]

    def answer(self, message: Any) -> Any:
        """What the real supervisor writes down and replies; None where nothing is replied."""
        if isinstance(message, BlockStart) and message.digest is not None:
            self.answer(Digest(step=message.first_step - 1, digest=message.digest))
        self.seen.append(message)
        if isinstance(message, Verdict):
            return Written()
        if isinstance(message, BlockStart):
            return self._block(message)
        if isinstance(message, Digest):
            self._digest(message)
        if isinstance(message, Mismatch):
            return self._resalt(message.matched_step)
        if message.kind == "metric":
            whole = message.model_dump(exclude={"parts"})
            if (message.name, message.step) not in self.metrics:
                for each in message.parts:
                    part = whole | each.model_dump() | {"released_by": "post_processing"}
                    self.metrics[each.name, message.step] = part
                self.metrics[message.name, message.step] = whole
        return None

    def _segment(self, step: int) -> dict[str, Any]:
        return max((s for s in self.segments if s["from_step"] <= max(step, 1)), key=lambda s: s["from_step"])

    def _block(self, block: BlockStart) -> Go | Save | Stop:
        if any(block.first_step <= each <= block.last_step for each in self.save_at) and not (
            self.saved and self.saved.step == block.first_step - 1
        ):
            return Save()
        if self.stop_at is not None and block.first_step <= self.stop_at <= block.last_step:
            return Stop()
        recorded = self._segment(block.first_step)["recorded"]
        known = max((each["last_step"] for each in recorded), default=0)
        self.started += max(0, block.last_step - max(known, block.first_step - 1))
        assert self.allowed >= 0, "more steps started than held"
        row = {"first_step": block.first_step, "last_step": block.last_step}
        if not any(row.items() <= each.items() for each in recorded):
            recorded.append(row | {"digest": None})
        if self.die_at is not None and block.first_step <= self.die_at <= block.last_step:
            raise ConnectionError
        return Go()

    def _digest(self, digest: Digest) -> None:
        recorded = self._segment(digest.step)["recorded"]
        if digest.step == 0 and not any(each["last_step"] == 0 for each in recorded):
            recorded.append({"first_step": 0, "last_step": 0, "digest": None})
        rows = [each for each in recorded if each["last_step"] == digest.step]
        assert rows, "a digest without a block"
        for row in rows:
            assert row["digest"] in (None, digest.digest), "went on although a replay differs"
            row["digest"] = digest.digest

    def _resalt(self, matched: int) -> Resalt:
        self.resalts += 1
        fresh = {"from_step": matched + 1, **keys_of(f"s{self.resalts}")}
        self.segments = [s for s in self.segments if s["from_step"] <= matched] + [fresh | {"recorded": []}]
        return Resalt.model_validate(fresh | {"allowed_steps": self.allowed})

    def digests(self) -> dict[int, str]:
        return {each.step: each.digest for each in self.seen if isinstance(each, Digest)}

    def of(self, kind: type) -> list[Any]:
        return [each for each in self.seen if isinstance(each, kind)]


class DirectLink:
    """A link without a pipe: the supervisor in the same process."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self.steps: list[int] = []

    def begin(self, first_step: int, last_step: int) -> bool:
        answer = self.supervisor.answer(BlockStart(first_step=first_step, last_step=last_step))
        if isinstance(answer, Stop):
            raise StopRequested
        return isinstance(answer, Save)

    def save(self, header: Checkpoint, pieces: Iterator[torch.Tensor]) -> None:
        self.supervisor.keep(header, b"".join(each.numpy().tobytes() for each in pieces))

    def fill(self, numbers: torch.Tensor) -> None:
        content = self.supervisor.next_bytes(numbers.nbytes)
        if len(content) == numbers.nbytes:
            numbers.copy_(torch.frombuffer(bytearray(content), dtype=numbers.dtype))

    def poll(self, step: int) -> None:
        self.steps.append(step)

    def mismatch(self, matched_step: int) -> Resalt:
        answer = self.supervisor.answer(Mismatch(matched_step=matched_step))
        assert isinstance(answer, Resalt)
        return answer

    def send(self, message: Any) -> None:
        self.supervisor.answer(message)

    record = send

    def flush(self) -> None:
        """Nothing waits."""


def start_of(
    job: dict[str, Any],
    shape: dict[str, Any],
    *,
    public: bool = False,
    holdout_public: bool | None = None,
    parts: dict[str, Any] | None = None,
    output_dir: Path = Path("/nowhere"),
) -> dict[str, Any]:
    """A start message but for what the supervisor adds."""
    free = public if holdout_public is None else holdout_public
    private = job["privacy"] is not None
    if not public and "slots" not in shape:  # twice the declared records and 64, in both parts
        places = [2 * shape[f"records_{part}"] + 64 for part in ("train", "holdout")]
        train, holdout = ({"units": units, "rows": units} for units in places)
        shape = shape | {"slots": {"train": train, "holdout": holdout}}
    classes = shape["outputs"]
    task = {"kind": "classification", "label": "y", "classes": list(range(classes))}
    return {
        "job_id": "job_1",
        "spec": job,
        "mechanism": mechanism(job, shape, holdout_public=free) if private else None,
        "task": task if classes > 1 else {"kind": "regression", "label": "y"},
        "features": {"kind": "tensor", "array": "x"},
        "shape": shape,
        "parts": parts_of(parts or {"train": {"path": "/nowhere", "sha256": "0" * 64}}),
        "data_public": public,
        "holdout_public": free,
        "steps": job["length"]["steps"],
        "output_dir": str(output_dir),
    }


def parts_of(parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The parts of one data set, each under its name, as a start message names them."""
    return {name: part | more if name == "public" else [part | more] for name, part in parts.items()}


def plan_of(
    start: dict[str, Any], ranks: Ranks = ALONE, *, rows: int | None = None, models_root: Path | None = None
) -> Plan:
    more = {"segments": [{"from_step": 1, **keys_of("x")}], "allowed_steps": 0}
    more |= {} if models_root is None else {"models_root": str(models_root)}
    return build_plan(Start.model_validate(start | more).job, rows=rows, ranks=ranks)


def run_direct(
    supervisor: Supervisor, train: Records, holdout: Records | None, side: Records | None = None
) -> tuple[Outcome, DirectLink]:
    """One attempt in this process, against the supervisor's record."""
    link = DirectLink(supervisor)
    return training_of(supervisor, train, holdout, side, link).run(), link


def training_of(
    supervisor: Supervisor,
    train: Records,
    holdout: Records | None,
    side: Records | None = None,
    link: DirectLink | None = None,
) -> Training:
    start = supervisor.message()
    plan = plan_of(supervisor.start)
    link = link or DirectLink(supervisor)
    telemetry = Telemetry(
        link,
        start.mechanism,
        data_public=start.data_public,
        holdout_public=start.holdout_public,
        released=start.released,
    )
    replay = Replay(start.steps, start.segments, start.allowed_steps, plan.block_end)
    data = TrainingData(train, holdout, start.holdout_public, side=plan.side(side) if side is not None else None)
    return Training(plan, data, replay, link, telemetry, start.saved)


# --- A real process ---


def stored_part(path: Path, x: np.ndarray, y: np.ndarray, *, sparse: bool = False) -> dict[str, str]:
    """Writes a part as registration does. Returns the start message's entry for it."""
    matrix = scipy.sparse.csr_matrix(x)
    csr = Csr(
        matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), matrix.data.astype(np.float32), matrix.shape
    )
    return {"path": str(path), "sha256": save_part(path, StoredPart(x=csr if sparse else x, y=y))}


@dataclass
class Ended:
    """How an attempt ended: its exit status (of a process: in words), its last word, what the process printed."""

    status: int | str
    last: Finished | Stopped | Failed | None
    printed: bytes = b""


class Forks(ForkServer):
    """The product's fork server, one for all tests of this process: loading torch anew takes three seconds each time.

    What its forks print goes to a file.
    """

    def __init__(self) -> None:
        super().__init__()
        atexit.register(self.close)
        self._out = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as this process
        atexit.register(self._out.close)

    def start(self, channel: int) -> Process:
        """Forks an attempt's process, whose output begins at the file's end."""
        before = [os.dup(1), os.dup(2)]
        try:
            for stream in (1, 2):
                os.dup2(self._out.fileno(), stream)  # the server inherits them, if it starts now
            self._out.seek(0, os.SEEK_END)
            return super().start(channel)
        finally:
            for stream, saved in zip((1, 2), before, strict=True):
                os.dup2(saved, stream)
                os.close(saved)

    def printed(self, begin: int) -> bytes:
        """What has been printed since the file had this length."""
        return os.pread(self._out.fileno(), 1 << 20, begin)

    @property
    def length(self) -> int:
        return os.fstat(self._out.fileno()).st_size


forks = Forks()


def run_child(supervisor: Supervisor, fork_server: ForkServer | None = None) -> Ended:
    """One attempt in a forked process over a socket pair; the supervisor answers until the last word or the end."""
    ours, theirs = socket.socketpair()
    begin = forks.length
    with theirs:
        process = (fork_server or forks).start(theirs.fileno())
    channel = Channel(ours, TO_SUPERVISOR)
    try:
        channel.send(supervisor.message())
        last = _converse(channel, supervisor, process.kill)
        assert process.ended(60)
        return Ended(process.how() or "", last, forks.printed(begin))
    finally:
        channel.close()
        process.kill()
        process.close()


def run_thread(supervisor: Supervisor, line: bytes | None = None) -> Ended:
    """One attempt over a socket pair in a thread of this process: all but what belongs to the process."""
    ours, theirs = socket.socketpair()
    child, channel = Channel(theirs, TO_CHILD), Channel(ours, TO_SUPERVISOR)
    silenced: list[bool] = []
    with closing(child), ThreadPoolExecutor(1) as pool:
        status = pool.submit(serve, child, lambda: silenced.append(True))
        with closing(channel):  # which ends the thread
            if line is None:
                channel.send(supervisor.message())
            else:
                ours.sendall(line + b"\n")
            last = _converse(channel, supervisor, channel.close)
        ended = Ended(status.result(), last)
    assert bool(silenced) is (line is None and not supervisor.start["data_public"])
    return ended


def assert_released_once(supervisor: Supervisor, ended: Ended) -> None:
    """What such a job releases before its first step is replayed bit for bit, and not released again under new keys."""
    assert ended.status == 0 and isinstance(ended.last, Finished)
    again = Supervisor(supervisor.start, segments=supervisor.segments, started=supervisor.started)
    assert run_thread(again).status == 0 and again.resalts == 0, "a replay is bit for bit the same"
    fresh = [segment | {"recorded": []} for segment in supervisor.segments]
    anew = run_thread(
        Supervisor(supervisor.start, segments=fresh, started=5)
    )  # steps were run under keys that are gone
    assert anew.status == 1 and anew.last.code == "privacy-invariant", "nothing is released twice for one price"


def _converse(channel: Channel, supervisor: Supervisor, kill: Callable[[], None]) -> Any:
    while True:
        assert channel.pending(300.0), "the child says nothing"
        try:
            message = channel.receive()
        except (EOFError, ConnectionError):
            return None
        try:
            answer = supervisor.answer(message)
        except ConnectionError:
            kill()
            return None
        if isinstance(message, Finished | Stopped | Failed):
            return message
        if isinstance(message, Checkpoint):
            supervisor.keep(message, b"")
        if isinstance(message, Piece):
            supervisor.state += channel.receive_bytes(message.size)
        if isinstance(message, More):
            content = supervisor.next_bytes(PIECE_BYTES)
            answer = Piece(size=len(content))
        if answer is not None:
            channel.send(answer)
        if isinstance(message, More):
            channel.send_bytes(content)
