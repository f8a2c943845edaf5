"""The attempt's own process, with one socket to its supervisor. The fork server (worker.attempt.fork_server) forks it.

To inspect one by itself: `python -m worker.attempt.child FD`. The process has no database and dies with its supervisor.
However it ends, its last output is one message from a closed set. On private data it prints nothing else.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from app.contracts.base import Document
from app.contracts.extractor import ExtractorRef, Words
from app.contracts.job_spec import LinearModel
from app.errors import PrivacyError
from app.formats.stored import DataDamagedError, StoredPart
from app.formats.tables import scaled
from app.privacy.numerics import NumericsReport, SelfTest, fewer_rows
from worker.attempt import devices, sandbox
from worker.attempt.means import read_mean, write_mean
from worker.attempt.policy import policy_of
from worker.data.parts import AnyPart, load_stored, open_stored, records_of, users_of
from worker.extractors.features import extracted
from worker.extractors.files import ExtractorMissingError
from worker.extractors.words import hashed_words
from worker.messages import (
    FAILURE_TEXTS,
    TO_CHILD,
    Alive,
    ArtifactFile,
    BlockStart,
    Channel,
    Digest,
    Failed,
    FailureCode,
    Go,
    Mismatch,
    Part,
    Predict,
    Predicted,
    ProtocolError,
    Ready,
    Resalt,
    Start,
    Stop,
    Stopped,
    WarningCode,
    Written,
)
from worker.models.base import Model, Parameters
from worker.models.card import Privacy
from worker.models.files import save_model
from worker.models.hf.loading import ModelMissingError
from worker.models.hf.model import HfTuning
from worker.models.hf.tokens import Tokens
from worker.predicting.predict import predicted
from worker.telemetry import Telemetry
from worker.training import self_test
from worker.training.center import TENSOR
from worker.training.loop import Training
from worker.training.plan import Plan, build_plan
from worker.training.rehearsal import rehearse
from worker.training.replay import Replay

PR_SET_PDEATHSIG = 1
ALIVE_S = 30.0
M = TypeVar("M")


PROCESSOR = devices.processor().name  # read before the process enters the sandbox


class StopRequested(Exception):
    """The supervisor sent stop."""


class DeviceFailed(Exception):
    """The GPU that this attempt must run on cannot be used. Nothing else is used in its place."""


class StorageFailed(Exception):
    """The model's files could not be written."""


class SupervisorLink:
    """The training loop's end of the pipe. Remembers the last step that was started."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.steps_started = 0
        self._alive_at = time.monotonic()

    def loading(self) -> None:
        """Call often while data are loading. Checks for stop, and sends a keep-alive every `ALIVE_S` seconds."""
        self.poll(0)
        if time.monotonic() >= self._alive_at + ALIVE_S:
            self._alive_at = time.monotonic()
            self._channel.send(Alive())

    def begin(self, first_step: int, last_step: int) -> None:
        """Announces a block and returns once it is recorded."""
        self._channel.send(BlockStart(first_step=first_step, last_step=last_step))
        self._expect(Go)

    def poll(self, step: int) -> None:
        """Checks for stop and notes that `step` starts."""
        while self._channel.pending():
            self._expect(Stop)
        self.steps_started = step

    def send(self, message: Document) -> None:
        """Sends a metric or the last message."""
        self._channel.send(message)

    def record(self, digest: Digest) -> None:
        """Returns once the digest is recorded."""
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


def run_attempt(channel: Channel, link: SupervisorLink, start: Start) -> None:
    """Runs one attempt, from the start message to `finished`."""
    device = _device(start)
    plan, tested, fitted = _fitting_plan(start, device)
    replay = Replay(start.steps, start.segments, start.allowed_steps, plan.block_end)
    telemetry = Telemetry(
        link,
        start.mechanism,
        data_public=start.data_public,
        holdout_public=start.holdout_public,
        released=start.released,
        score_only=start.score_only,
    )
    load = _loader(start, link, plan)
    stored = load(start.parts.train)
    users, train = users_of(stored, start.mechanism), records_of(stored)
    scored = start.parts.holdout is not None and plan.scores.points > 0 and plan.scores.on == "holdout"
    held_out = load(start.parts.holdout) if start.parts.holdout and scored else None
    if held_out is not None and not start.holdout_public:
        # Checks that no user has more hold-out records than the scores' noise covers.
        users_of(held_out, start.mechanism)
    holdout = records_of(held_out) if held_out is not None else None
    public = records_of(load(start.parts.public)) if start.parts.public else None
    report = _report(plan, tested, device)
    channel.send(Ready(device=start.device, fitted_rows=fitted, fallbacks=plan.fallbacks, numerics=report))
    training = Training(
        plan,
        train,
        holdout,
        users=users,
        holdout_public=start.holdout_public,
        replay=replay,
        link=link,
        telemetry=telemetry,
        side=plan.side(public) if public is not None else None,
    )
    outcome = training.run()
    privacy = None if start.claim is None else Privacy.of(start.claim, telemetry.scores)
    artifacts = _saved(start, plan.model, outcome.parameters, privacy)
    slow: tuple[WarningCode, ...] = ("one-record-passes",) if tested == "one_record" else ()
    telemetry.finished(outcome.steps, artifacts, outcome.warnings + slow)


def _device(start: Start) -> torch.device:
    """The device that the attempt must run on.

    Raises:
        DeviceFailed: it is a GPU that torch cannot use here.
    """
    if start.device == "cuda" and not torch.cuda.is_available():
        raise DeviceFailed
    return torch.device("cpu") if start.device == "cpu" else torch.device("cuda", 0)  # the only one that it sees


def _fitting_plan(start: Start, device: torch.device) -> tuple[Plan, SelfTest, int | None]:
    """The plan, its self-test, and the rows of a pass if fewer fit in memory than were admitted.

    Everything here computes on random public records. Only a job's first ready attempt may choose smaller passes: a
    later one must repeat its numbers.

    Raises:
        NumericsError: see `_tested_plan`.
        MemoryError, RuntimeError: even passes of one record do not fit, or the size of passes is fixed.
    """
    fitted = start.fitted_rows
    mean = None if start.mean is None else read_mean(start.mean, _inputs(start))
    while True:
        plan = _plan(start, device, mean, rows=fitted)
        try:
            if device.type != "cpu":
                rehearse(plan)
            return (*_tested_plan(start, plan, mean, known=start.self_tested and fitted == start.fitted_rows), fitted)
        except (MemoryError, RuntimeError) as error:
            fitted = fewer_rows(plan.numerics.rows_per_pass)
            if start.begun or fitted is None or failure_code(error) != "out-of-memory":
                raise
        del plan  # with its buffers
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _tested_plan(start: Start, plan: Plan, mean: Tensor | None, *, known: bool) -> tuple[Plan, SelfTest]:
    """The plan, with passes that keep each record's results independent on this machine.

    Args:
        known: the self-test of this very plan passed before, on this machine.

    Raises:
        NumericsError: no passes achieve this.
        PrivacyError: the engine's gradients are wrong for this model.
    """
    if plan.public:
        return plan, "public_data"
    if known:
        return plan, "passed"
    self_test.require_exact(plan)
    if self_test.holds(plan):
        return plan, "passed"
    plan = _plan(start, plan.device, mean, rows=1)
    if self_test.holds(plan):
        return plan, "one_record"
    raise self_test.NumericsError("a record's results depend on other records")


def _plan(start: Start, device: torch.device, mean: Tensor | None, *, rows: int | None = None) -> Plan:
    return build_plan(
        start.spec,
        start.mechanism,
        start.shape,
        start.task,
        start.features,
        steps=start.steps,
        data_public=start.data_public,
        holdout_public=start.holdout_public,
        holdout_account=start.holdout_account,
        models_root=Path(start.models_root) if start.models_root else None,
        numerics=start.numerics,
        rows=rows,
        device=device,
        mean=mean,
    )


def _report(plan: Plan, tested: SelfTest, device: torch.device) -> NumericsReport:
    frozen = plan.numerics
    return NumericsReport(
        device=device.type,
        device_name=PROCESSOR if device.type == "cpu" else torch.cuda.get_device_name(device),
        passes=frozen.passes,
        sums=frozen.sums,
        rows_per_pass=frozen.rows_per_pass,
        physical_batch_size=frozen.rows_per_pass,
        threads=torch.get_num_threads(),
        torch=torch.__version__.partition("+")[0],
        self_test=tested,
        sensitivity_slack=frozen.sensitivity_slack,
    )


def _saved(start: Start, model: Model, parameters: Parameters, privacy: Privacy | None) -> tuple[ArtifactFile, ...]:
    """Saves what is kept, the model and the study's mean, and returns their files.

    Raises:
        StorageFailed: they could not be written.
    """
    try:
        folder, extractor = Path(start.output_dir), _extractor(start)
        mean = (write_mean(folder, parameters[TENSOR]),) if start.hands_mean_on else ()
        if not start.keeps_weights:
            return mean
        return (*save_model(folder, model, parameters, start.task, start.features, extractor, privacy), *mean)
    except OSError:
        raise StorageFailed from None


def _loader(start: Start, link: SupervisorLink, plan: Plan) -> Callable[[Part], AnyPart]:
    """The function that loads a stored part, through the job's extractor or its model's tokenizer if it has one.

    A part too large for memory stays on disk.
    """
    model = plan.model
    if isinstance(model, HfTuning):
        tokens = Tokens(model.folder, model.spec.max_length)
        return lambda part: tokens.of_part(load_stored(part, start.shape), link.loading)
    extractor = _extractor(start)
    if extractor is None:
        load_or_open = load_stored if plan.in_memory else open_stored
        return lambda part: load_or_open(part, start.shape, lambda stored: scaled(stored, start.features))
    if extractor.words is not None and start.cache_dir is not None:
        return _words(start, link, extractor, Path(start.cache_dir))
    if start.extractor_dir is None or start.cache_dir is None or extractor.sha256 is None:
        raise ExtractorMissingError("this worker has no models root")
    folder, sha256, cache = Path(start.extractor_dir), extractor.sha256, Path(start.cache_dir)
    image = extractor.image

    def load(part: Part) -> StoredPart:
        stored = load_stored(part, start.shape)
        check = (lambda _: None) if start.data_public else self_test.require_repeating
        return extracted(stored, part.sha256, folder, sha256, cache, link.loading, image, check)

    return load


def _words(start: Start, link: SupervisorLink, extractor: ExtractorRef, cache: Path) -> Callable[[Part], StoredPart]:
    words, sha256 = extractor.words or Words(), extractor.sha256 or ""
    return lambda part: hashed_words(load_stored(part, start.shape), part.sha256, sha256, words, cache, link.loading)


def _extractor(start: Start) -> ExtractorRef | None:
    return start.spec.model.extractor if isinstance(start.spec.model, LinearModel) else None


def _inputs(start: Start) -> int:
    model, features = start.spec.model, start.shape.features
    return model.inputs(features) if isinstance(model, LinearModel) else features


CODES: dict[type[BaseException], FailureCode] = {
    PrivacyError: "privacy-invariant",
    DataDamagedError: "data-damaged",
    ExtractorMissingError: "extractor-missing",
    ModelMissingError: "model-missing",
    ProtocolError: "protocol",
    StorageFailed: "storage",
    DeviceFailed: "device",
    self_test.NumericsError: "numerics",
}


def failure_code(error: BaseException) -> FailureCode:
    """The code of the error that ended an attempt. Nothing else about the error leaves."""
    for kind, code in CODES.items():
        if isinstance(error, kind):
            return code
    # torch's CPU allocator raises a plain RuntimeError.
    allocation = isinstance(error, RuntimeError) and "allocat" in str(error)
    return "out-of-memory" if allocation or isinstance(error, MemoryError | torch.OutOfMemoryError) else "internal"


def serve(
    channel: Channel, be_silent: Callable[[], None], confine: Callable[[Start | Predict], object] = lambda _: None
) -> int:
    """Runs one attempt over a channel, to its last message. Returns the exit status: 0 if it finished or was stopped.

    Args:
        channel: to the supervisor.
        be_silent: called before anything private is touched.
        confine: drops every right that the message does not need; called before any of its files is touched.
    """
    link = SupervisorLink(channel)
    tell = False
    try:
        start = channel.receive()
        if isinstance(start, Start | Predict):
            confine(start)
        if isinstance(start, Predict):
            channel.send(Predicted(outputs=predicted(start)))
            return 0
        if not isinstance(start, Start):
            raise ProtocolError("the first message must be start or predict")
        if not start.data_public:
            be_silent()
        tell = start.data_public
        run_attempt(channel, link, start)
    except StopRequested:
        channel.send(Stopped(steps_started=link.steps_started))
    except (EOFError, ConnectionError):
        return 1  # the supervisor is gone
    except BaseException as error:
        if tell:
            traceback.print_exc()
        code = failure_code(error)
        with contextlib.suppress(OSError):
            channel.send(Failed(code=code, message=FAILURE_TEXTS[code]))
        return 1
    return 0


def main(fd: int, memory_limit_bytes: int) -> int:
    """The process: sets its limits, then runs one attempt over the socket `fd`, in a sandbox."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold data and keys
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the supervisor decides
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False  # it chooses an algorithm by how long each takes
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    # Nothing reads uninitialized memory, and filling it would cost a pass.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]

    def confine(message: Start | Predict) -> None:
        if isinstance(message, Predict) or message.device == "cpu":
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # CUDA reads it when it is initialized, which nothing has done yet
        sandbox.enter(policy_of(message, memory_limit_bytes))
        # A fixed number makes sums repeatable. Threads must start inside the sandbox, or it would not confine them.
        torch.set_num_threads(torch.get_num_threads())

    return serve(Channel(socket.socket(fileno=fd), TO_CHILD), _be_silent, confine)


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
