"""Spot-check replay: runs a finished job's steps again, on the owner's machine, and compares digests.

A job's write-ahead record holds a digest of parameters and optimizer state at the end of each block of steps: a
stretch. Noise, batches and passes are keyed, so an honest run repeats them bit for bit. A process runs the job from its
first step to the last one, and every digest and the model's hash are compared. Or, to look quickly, to the end of the
last of k stretches that the auditor chooses by coins of its own. States between stretches are not kept, so a replay
starts at step 1.

A run that left its mechanism in some stretch has other states from there on. It is missed only if its first such
stretch comes after the last chosen one. If the last d of b stretches deviate, that has probability
C(b − d, k) / C(b, k); any other d stretches are found at least as often.

Condition: the recorded digests are those of the run that made the model. The record is rows of the database without a
signature: who writes it can put an honest run's digests there afterwards. Only the model's hash, at the end of a whole
replay, contradicts that.

Nothing is charged and nothing leaves: the noise is that of the first run on the same states. At the first digest that
differs the process hears stop, and has told no more than that. Its scores are not read; its model is compared by its
SHA-256 and deleted. The database is only read.

A job without privacy adds floats, so its sums depend on how many processes (ranks) shared them: its replay has as many
as its last attempt. A private job's totals are integers, and one process repeats them.
"""

from __future__ import annotations

import math
import random
import shutil
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select

from app.db.database import Database
from app.db.models import Artifact, Job, JobEvent
from app.lifecycle.attempts import AttemptLog
from app.lifecycle.claims import Claim
from app.lifecycle.states import FINISHED
from app.settings import Settings
from core.errors import InvalidRequest, NotFound, TransientError
from worker import messages
from worker.attempt.fork_server import ForkServer
from worker.attempt.start import Inputs, Machine, NoiseSecrets, start_message
from worker.channel import Channel

# Facts of a machine on which the bits of a sum may depend.
MACHINE = ("device", "device_name", "threads", "torch", "rows_per_pass", "passes", "sums", "totals", "self_test")
EXIT_S = 10.0
Choose = Callable[[Sequence[int], int], Sequence[int]]


class ReplayFailedError(Exception):
    """The replay's process ended before it could compare."""


@dataclass(frozen=True)
class Stretch:
    """A block of steps, with the recorded digest of the state after it."""

    first_step: int
    last_step: int
    digest: str


@dataclass(frozen=True)
class Replayed:
    """What a replay found.

    Attributes:
        stretches: b, all with a recorded digest.
        chosen: the sampled ones, in order.
        compared: the last steps of all stretches whose digests were the same.
        differs_after: the last step whose state was the same, if a later one differs; −1: not even the first state;
            None: all were the same.
        same_model: the model's file has the recorded SHA-256; None: the replay did not reach the end, or no model is
            recorded.
        unlike: facts of this machine that differ from the first run's: a difference may then be the machine's.
    """

    stretches: int
    chosen: tuple[Stretch, ...]
    compared: tuple[int, ...]
    differs_after: int | None
    same_model: bool | None
    unlike: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Nothing differed."""
        return self.differs_after is None and self.same_model is not False


def missed(stretches: int, deviating: int, samples: int) -> float:
    """The largest probability that a deviation in so many stretches is missed: C(b − d, k) / C(b, k)."""
    return math.comb(stretches - deviating, samples) / math.comb(stretches, samples)


def replay(
    db: Database,
    settings: Settings,
    fork_server: ForkServer,
    job_id: str,
    samples: int | None,
    *,
    choose: Choose | None = None,
) -> Replayed:
    """Replays a finished job and compares.

    Args:
        samples: as far as so many random stretches reach; None: to the end, with the model's hash.
        choose: k of range(b); None: by the operating system's coins.

    Raises:
        NotFound: there is no such job.
        InvalidRequest: it is not finished, is a study, or recorded no digests.
        PrivacyError: its noise secret is not here.
        ReplayFailedError: the process ended early.
    """
    job = _finished(db, job_id)
    inputs = Inputs(settings)
    output = Path(tempfile.mkdtemp(prefix="replay-"))
    try:
        log = AttemptLog(db, Claim(job_id, job.attempt, "auditor"), lease_s=0.0, max_attempts=0)
        ran = _ready(db, job_id)
        ranks = 1 if job.mechanism else max(1, ran.processes)
        machine, secrets = Machine(ranks), NoiseSecrets.of(settings)
        start = start_message(db, log.recorded(), settings, secrets, inputs, machine, output)
        start = start.model_copy(update={"allowed_steps": 0})  # no step that was not run before
        stretches = _stretches(start)
        count = len(stretches) if samples is None else samples
        if not 1 <= count <= len(stretches):
            raise InvalidRequest(f"the job has {len(stretches)} stretches with digests: choose 1 to that many")
        picked = (choose or random.SystemRandom().sample)(range(len(stretches)), count)
        picked_stretches = tuple(stretches[k] for k in sorted(picked))
        return _Conversation(db, start, stretches, picked_stretches, ran).run(fork_server)
    finally:
        inputs.close()
        shutil.rmtree(output, ignore_errors=True)


class _Conversation:
    """The auditor's side of the pipe: it grants steps that were granted before, and records nothing."""

    def __init__(
        self,
        db: Database,
        start: messages.Start,
        stretches: list[Stretch],
        picked_stretches: tuple[Stretch, ...],
        ran: _Ran,
    ) -> None:
        self._db, self._start, self._chosen, self._ran = db, start, picked_stretches, ran
        self._stretches, self._recorded = stretches, {each.last_step: each.digest for each in stretches}
        self._end = picked_stretches[-1].last_step
        self._compared: list[int] = []
        self._differs: int | None = None
        self._same_model: bool | None = None
        self._unlike: tuple[str, ...] = ()
        self._stopped = False

    def run(self, fork_server: ForkServer) -> Replayed:
        """Talks to the process until its last message."""
        child_end, own_end = socket.socketpair()
        channel = Channel(child_end, messages.TO_SUPERVISOR)
        with own_end:
            process = fork_server.start(own_end.fileno())
        try:
            channel.send(self._start)
            while not self._hear(channel, channel.receive()):
                pass
            process.ended(EXIT_S)
        except (EOFError, OSError, messages.ProtocolError, TransientError) as error:
            raise ReplayFailedError(f"the replay's process ended early: {type(error).__name__}") from None
        finally:
            process.kill()
            process.close()
            channel.close()
        compared, stretches = tuple(self._compared), self._chosen
        return Replayed(len(self._stretches), stretches, compared, self._differs, self._same_model, self._unlike)

    def _hear(self, channel: Channel, message: messages.ToSupervisor) -> bool:
        """Answers one message; True after the last one."""
        match message:
            case messages.Verdict():
                channel.send(messages.Written())  # kept by nobody: the audit's key is not the job's
            case messages.Ready():
                self._unlike = self._differences(message)
            case messages.BlockStart():
                if message.digest is not None:
                    self._compare(message.first_step - 1, message.digest)
                self._answer(channel, self._differs is None and message.last_step <= self._end, messages.Go())
            case messages.Digest():
                self._compare(message.step, message.digest)
            case messages.Mismatch():
                self._differs = message.matched_step
                self._answer(channel, False, messages.Go())
            case messages.Finished():
                self._same_model = self._is_recorded(message)
                return True
            case messages.Stopped():
                return True
            case messages.Failed():
                raise ReplayFailedError(f"the replay failed: {message.message}")
        return False

    def _compare(self, step: int, digest: str) -> None:
        """The process compares too, but the auditor does not rely on it."""
        if step in self._recorded:
            if self._recorded[step] == digest:
                self._compared.append(step)
            else:
                self._differs = self._compared[-1] if self._compared else 0

    def _answer(self, channel: Channel, goes_on: bool, answer: messages.ToChild) -> None:
        if not self._stopped:
            self._stopped = not goes_on
            channel.send(answer if goes_on else messages.Stop())

    def _is_recorded(self, message: messages.Finished) -> bool | None:
        name = self._start.spec.delivers
        with self._db.read() as session:
            artifact = session.get(Artifact, (self._start.job_id, name))
        replayed_hash = next((each.sha256 for each in message.artifacts if each.name == name), None)
        return None if artifact is None or replayed_hash is None else artifact.sha256 == replayed_hash

    def _differences(self, ready: messages.Ready) -> tuple[str, ...]:
        recorded, now = self._ran.numerics, ready.numerics.model_dump(mode="json")
        compared = [(name, recorded[name], now.get(name)) for name in MACHINE if name in recorded]
        if self._ran.processes and self._start.mechanism is None:
            compared.append(("processes", self._ran.processes, len(ready.processes)))
        return tuple(f"{name}: {then} then, {current} here" for name, then, current in compared if then != current)


@dataclass(frozen=True)
class _Ran:
    """What the job's last attempt said of its machine; `processes`: how many ranks it had, 0 if that is not known."""

    processes: int
    numerics: Mapping[str, object]


def _ready(db: Database, job_id: str) -> _Ran:
    ready = select(JobEvent.data).where(JobEvent.job_id == job_id, JobEvent.type == "ready")
    with db.read() as session:
        document = session.scalars(ready.order_by(JobEvent.seq.desc()).limit(1)).first() or {}
    return _Ran(len(document.get("processes") or ()), document.get("numerics") or {})


def _finished(db: Database, job_id: str) -> Job:
    with db.read() as session:
        job = session.get(Job, job_id)
    if job is None:
        raise NotFound(f"there is no job {job_id}")
    if job.study is not None:
        raise InvalidRequest("a study runs no steps itself: replay its trials")
    if job.status not in FINISHED:
        raise InvalidRequest("the job has not ended: replay it when it has")
    return job


def _stretches(start: messages.Start) -> list[Stretch]:
    """The blocks of the steps that count, each under the keys that it ended with."""
    ends = [each.from_step for each in start.segments[1:]] + [start.steps + 1]
    return [
        Stretch(each.first_step, each.last_step, each.digest)
        for segment, end in zip(start.segments, ends, strict=True)
        for each in segment.recorded
        if each.first_step > 0 and each.last_step < end and each.digest is not None
    ]
