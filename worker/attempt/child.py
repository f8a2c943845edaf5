"""The attempt's own process, with one socket to its supervisor. The fork server (worker.attempt.fork_server) forks it.

To inspect one by itself: `python -m worker.attempt.child FD`. The process has no database and dies with its supervisor.
However it ends, its last output is one message from a closed set. On private data, and for predictions, it prints
nothing else.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar, assert_never

import numpy as np
import torch
from torch import Tensor

from core.contracts.base import Document
from core.contracts.stored import ArtifactFile
from worker.attempt import sandbox
from worker.attempt.answering import Sums, answer
from worker.attempt.failures import StopRequested, StorageFailed, failed_module, failure_code
from worker.attempt.loading import extractor_of, loader
from worker.attempt.means import write_mean
from worker.attempt.policy import policy_of
from worker.attempt.prepare import agreed_plan, device_of_start, report_of
from worker.attempt.second_user import User
from worker.attempt.together import PEER_GONE, Forked, Others, SharedLink, Unheard, exit_status, fork_ranks
from worker.channel import Channel
from worker.data.parts import records_of, users_of
from worker.data.ranks import ALONE, Ranks, RanksError
from worker.messages import (
    FAILURE_TEXTS,
    PIECE_BYTES,
    TO_CHILD,
    Alive,
    BlockStart,
    Checkpoint,
    Digest,
    Failed,
    FailureCode,
    Go,
    Mismatch,
    More,
    Piece,
    Predict,
    Predicted,
    ProtocolError,
    RankReport,
    Ready,
    Resalt,
    Save,
    Start,
    Stop,
    Stopped,
    Verdict,
    WarningCode,
    Written,
)
from worker.models.base import Model
from worker.models.card import Privacy
from worker.models.files import save_model
from worker.noise.order import HOLDOUT, TRAIN
from worker.predicting.predict import predicted
from worker.statistics import files as answers
from worker.statistics import rows
from worker.statistics.center import TENSOR
from worker.telemetry import Telemetry
from worker.training.batches import TrainingData
from worker.training.canaries import write_canaries
from worker.training.loop import Outcome, Training
from worker.training.planted import canaries_of
from worker.training.replay import Replay

PR_SET_PDEATHSIG = 1
ALIVE_S = 30.0
M = TypeVar("M")


class SupervisorLink:
    """The training loop's end of the pipe. Remembers the last step that was started."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.steps_started = 0
        self._read, self._is_read = memoryview(b""), True
        self._alive_at = time.monotonic()

    def loading(self) -> None:
        """Call often while data are loading. Checks for stop, and sends a keep-alive every `ALIVE_S` seconds."""
        self.poll(0)
        if time.monotonic() >= self._alive_at + ALIVE_S:
            self._alive_at = time.monotonic()
            self._channel.send(Alive())

    def begin(self, first_step: int, last_step: int) -> bool:
        """Announces a block. Returns False once it is recorded; True if the state is wanted first."""
        self._channel.send(BlockStart(first_step=first_step, last_step=last_step))
        answer = self._channel.receive()
        if isinstance(answer, Stop):
            raise StopRequested
        if not isinstance(answer, Go | Save):
            raise ProtocolError("unexpected message kind")
        return isinstance(answer, Save)

    def save(self, header: Checkpoint, pieces: Iterator[Tensor]) -> None:
        """Sends the state."""
        self._channel.send(header)
        for piece in pieces:
            content = _bytes_of(piece)
            for first in range(0, len(content), PIECE_BYTES):
                self._send_piece(content[first : first + PIECE_BYTES])
        self._send_piece(memoryview(b""))

    def fill(self, numbers: Tensor) -> None:
        """Replaces the numbers by the next ones of the saved state. What cannot be read any more stays as it was."""
        wanted = _bytes_of(numbers)
        while wanted and self._is_read:
            if not self._read:
                self._channel.send(More())
                size = self._expect(Piece).size
                self._read = memoryview(self._channel.receive_bytes(size))
                self._is_read = size > 0
            count = min(len(wanted), len(self._read))
            wanted[:count] = self._read[:count]
            wanted, self._read = wanted[count:], self._read[count:]

    def _send_piece(self, content: memoryview) -> None:
        self._channel.send(Piece(size=len(content)))
        self._channel.send_bytes(content)

    def poll(self, step: int) -> None:
        """Checks for stop and notes that `step` starts."""
        while self._channel.pending():
            self._expect(Stop)
        self.steps_started = step

    def send(self, message: Document) -> None:
        """Sends a metric or the last message."""
        self._channel.send(message)

    def record(self, digest: Digest | Verdict) -> None:
        """Returns once the digest, or the verdict, is recorded."""
        self._channel.send(digest)
        self._expect(Written)

    def mismatch(self, matched_step: int) -> Resalt:
        """Reports that a replay differs, and waits for fresh keys."""
        self._channel.send(Mismatch(matched_step=matched_step))
        return self._expect(Resalt)

    def _expect(self, kind: type[M]) -> M:
        message = self._channel.receive()
        if isinstance(message, Stop):
            raise StopRequested
        if not isinstance(message, kind):
            raise ProtocolError("unexpected message kind")
        return message


def _bytes_of(numbers: Tensor) -> memoryview:
    """The memory of a flat tensor."""
    return numbers.detach().numpy().view(np.uint8).data


def run_attempt(
    channel: Channel, link: SupervisorLink, start: Start, pids: Sequence[int] = (), ranks: Ranks = ALONE
) -> None:
    """Runs one attempt, from the start message to `finished`, as its first or only rank.

    Args:
        pids: of all ranks.
    """
    match start.spec.kind:
        case "training":
            _train(channel, link, start, pids, ranks)
        case "statistics":
            _sum(link, start, pids, Sums(start.spec.queries or (), answers.contents))
        case "synthetic":
            _sum(link, start, pids, Sums(start.spec.tables, rows.contents))
        case _:
            assert_never(start.spec.kind)


def _sum(link: SupervisorLink, start: Start, pids: Sequence[int], sums: Sums) -> None:
    """Runs one attempt of a job without a model."""
    exit_ = Telemetry(link, start.mechanism, data_public=start.data_public, holdout_public=start.holdout_public)
    answer(link, start, exit_, pids, sums)


def _train(channel: Channel, link: SupervisorLink, start: Start, pids: Sequence[int], ranks: Ranks) -> None:
    """Runs one attempt of a training job; see run_attempt."""
    device = device_of_start(start)
    plan, tested, fitted = agreed_plan(start, device, ranks)
    link.record(Verdict(self_test=tested, fitted_rows=fitted))  # nothing private was opened: worker.attempt.verdicts
    replay = Replay(start.steps, start.segments, start.allowed_steps, plan.block_end)
    telemetry = Telemetry(
        link,
        start.mechanism,
        data_public=start.data_public,
        holdout_public=start.holdout_public,
        released=start.released,
        score_only=start.score_only,
    )
    load = loader(start, link.loading, plan)
    stored = load(start.parts.train)
    users, train = users_of(stored.whole, start.mechanism), records_of(stored.whole)
    ranks.from_first()  # the others load now: they find what was extracted
    scored = plan.scores.points > 0 and plan.scores.on == "holdout"
    held_out = load(start.parts.holdout) if start.parts.holdout and scored else None
    if held_out is not None and not start.holdout_public:
        # Checks that no user has more hold-out records than the scores' noise covers.
        users_of(held_out.whole, start.mechanism)
    holdout = records_of(held_out.whole) if held_out is not None else None
    public = records_of(load([start.parts.public]).whole) if start.parts.public else None
    report = report_of(plan, tested, device)
    ready = Ready(
        device=start.device,
        processes=tuple(pids) or (os.getpid(),),
        fitted_rows=fitted,
        fallbacks=plan.fallbacks,
        numerics=report,
    )
    channel.send(ready)
    data = TrainingData(
        train,
        holdout,
        start.holdout_public,
        users=users,
        blocks={TRAIN: stored.blocks, HOLDOUT: held_out.blocks if held_out is not None else ()},
        side=plan.side(public) if public is not None else None,
        canaries=canaries_of(start, plan),
    )
    training = Training(
        plan, data, replay, link if ranks.size == 1 else SharedLink(ranks, link), telemetry, start.saved
    )
    outcome = training.run()
    reports = () if ranks.size == 1 or not start.data_public else _reports(ranks, outcome)
    privacy = None if start.claim is None else Privacy.of(start.claim, telemetry.scores)
    artifacts = _saved(start, plan.model, outcome, privacy)
    slow: tuple[WarningCode, ...] = ("one-record-passes",) if tested == "one_record" else ()
    telemetry.finished(outcome.steps, artifacts, outcome.warnings + slow, reports)


def run_rank(start: Start, ranks: Ranks) -> None:
    """Runs another rank of an attempt: the same plan, draws, noise and updates, over passes of its own.

    It sends nothing, and reads no hold-out.
    """
    plan, _, _ = agreed_plan(start, device_of_start(start), ranks)
    ranks.from_first()
    load = loader(start, lambda: None, plan)
    stored = load(start.parts.train)
    public = records_of(load([start.parts.public]).whole) if start.parts.public else None
    unheard = Telemetry(Unheard(), start.mechanism, data_public=start.data_public, holdout_public=start.holdout_public)
    data = TrainingData(
        records_of(stored.whole),
        None,
        start.holdout_public,
        users=users_of(stored.whole, start.mechanism),
        blocks={TRAIN: stored.blocks},
        side=plan.side(public) if public is not None else None,
        canaries=canaries_of(start, plan),
    )
    replay = Replay(start.steps, start.segments, start.allowed_steps, plan.block_end)
    outcome = Training(plan, data, replay, SharedLink(ranks, None), unheard, start.saved).run()
    if start.data_public:
        _reports(ranks, outcome)


def _reports(ranks: Ranks, outcome: Outcome) -> tuple[RankReport, ...]:
    """What each rank did, gathered in all of them."""
    mine = [os.getpid(), outcome.private_passes, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]
    found = torch.zeros(ranks.size, len(mine), dtype=torch.int64)
    found[ranks.rank] = torch.tensor(mine)
    ranks.add_up(found)
    return tuple(RankReport(pid=pid, passes=passes, max_rss_bytes=rss) for pid, passes, rss in found.tolist())


def _saved(start: Start, model: Model, outcome: Outcome, privacy: Privacy | None) -> tuple[ArtifactFile, ...]:
    """Saves what is kept, the model, the study's mean and what canaries left, and returns their files.

    Raises:
        StorageFailed: they could not be written.
    """
    try:
        folder, extractor = Path(start.output_dir), extractor_of(start)
        more = [write_mean(folder, outcome.parameters[TENSOR])] if start.hands_mean_on else []
        if outcome.canaries is not None:
            more.append(write_canaries(folder, outcome.canaries))
        if not start.keeps_weights:
            return tuple(more)
        return (*save_model(folder, model, outcome.parameters, start.task, start.features, extractor, privacy), *more)
    except OSError:
        raise StorageFailed from None


def serve(
    channel: Channel,
    be_silent: Callable[[], None],
    confine: Callable[[Start | Predict], Forked] = lambda _: Forked(0, 1, ()),
) -> int:
    """Runs one attempt over a channel, to its last message. Returns the exit status: 0 if it finished or was stopped.

    Args:
        channel: to the supervisor.
        be_silent: called before anything private is touched.
        confine: drops every right that the message does not need; called before any of its files is touched. It
            returns in each rank of an attempt that asks for several.
    """
    link = SupervisorLink(channel)
    tell = False
    others: Others | None = None
    forked = Forked(0, 1, ())
    try:
        start = channel.receive()
        if isinstance(start, Start | Predict):
            forked = confine(start)
        if isinstance(start, Predict):
            be_silent()  # its inputs are private whatever the model is
            channel.send(Predicted(outputs=predicted(start)))
            return 0
        if not isinstance(start, Start):
            raise ProtocolError("the first message must be start or predict")
        if not start.data_public:
            be_silent()
        if forked.rank > 0:
            channel.close()
            return _serve_rank(start, forked)
        tell = start.data_public
        if forked.size > 1:
            others = Others(forked.pids[1:])
        run_attempt(channel, link, start, forked.pids, forked.ranks)
    except StopRequested:
        channel.send(Stopped(steps_started=link.steps_started))
    except (EOFError, ConnectionError):
        return 1  # the supervisor is gone
    except BaseException as error:
        if tell:
            traceback.print_exc()
        code: FailureCode | None = failure_code(error)
        if isinstance(error, RanksError):
            code = others.failure() if others is not None else None
        if code is None:
            return 1  # a rank is gone: the job is queued again
        with contextlib.suppress(OSError):
            channel.send(Failed(code=code, message=FAILURE_TEXTS[code], module=failed_module(error)))
        return 1
    return 0


def _serve_rank(start: Start, forked: Forked) -> int:
    """Runs another rank to its end. Returns the exit status, which tells rank 0 why it failed."""
    try:
        run_rank(start, forked.ranks)
    except RanksError:
        return PEER_GONE
    except BaseException as error:
        if start.data_public:
            traceback.print_exc()
        return exit_status(failure_code(error))
    return 0


def main(fd: int, memory_limit_bytes: int, user: User | None = None) -> int:
    """The process: sets its limits, then runs one attempt over the socket `fd`, in a sandbox.

    Args:
        user: whose the process becomes before it reads what the attempt is about.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold data and keys
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the supervisor decides
    be_deterministic()

    def confine(message: Start | Predict) -> Forked:
        entered = sandbox.enter(policy_of(message, memory_limit_bytes, user))
        forked = fork_ranks(message.processes if isinstance(message, Start) else 1)  # while there is one thread
        sandbox.seal(entered)
        os.environ.update(visible_to(message, forked.rank))  # CUDA reads it when it is initialized: nothing has yet
        # A fixed number makes sums repeatable. Threads must start inside the sandbox, or it would not confine them.
        torch.set_num_threads(threads_of(message, torch.get_num_threads()))
        return forked

    return serve(Channel(socket.socket(fileno=fd), TO_CHILD), _be_silent, confine)


def be_deterministic() -> None:
    """Makes torch raise an error where only an algorithm without fixed bits exists, and choose none by its speed."""
    # The same flag as use_deterministic_algorithms(True), which loads torch's compiler too: 750 modules, two seconds
    # in each attempt's process.
    torch.set_deterministic_debug_mode("error")
    torch.backends.cudnn.benchmark = False  # it chooses an algorithm by how long each takes
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    # Nothing reads uninitialized memory, and filling it would cost a pass.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def visible_to(message: Start | Predict, rank: int) -> dict[str, str]:
    """What to change so that a rank sees no GPU but its own. The fork server's environment names the worker's."""
    if isinstance(message, Predict) or message.device == "cpu":
        return {"CUDA_VISIBLE_DEVICES": ""}
    return {"CUDA_VISIBLE_DEVICES": message.gpus[rank]} if message.gpus else {}


def threads_of(message: Start | Predict, here: int) -> int:
    """The threads of each rank: those of the job's first ready attempt, so that a pass rounds as it did there.

    The first one has as many as the job names. Otherwise the processors are divided among the ranks that the job asks
    for: after a loss before it is ready, fewer ranks do not have more.

    Args:
        here: this machine's processors, as torch counts them.
    """
    if not isinstance(message, Start):
        return here
    runtime = message.spec.runtime
    if message.threads is not None:
        return message.threads
    if runtime.threads != "auto":
        return runtime.threads
    return max(1, here // (message.processes if runtime.processes == "auto" else runtime.processes))


def in_fork(fd: int) -> int:
    """Runs `main` in a fork, which has one thread: numpy started threads in this process when it was loaded."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = main(fd, sandbox.default_memory_bytes())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    os.close(fd)
    status = os.waitpid(pid, 0)[1]
    sandbox.leave(pid)
    return abs(os.waitstatus_to_exitcode(status))


def _be_silent() -> None:
    """Silences stdout and stderr from now on: library warnings and tracebacks can depend on the data."""
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(null, stream)
    os.close(null)


if __name__ == "__main__":
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    sys.exit(in_fork(int(sys.argv[1])))
