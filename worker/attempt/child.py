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
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import assert_never

import numpy as np
import torch

from worker.attempt import confined
from worker.attempt.answering import Sums, answer
from worker.attempt.failure_codes import StopRequested, failed_module, failure_code
from worker.attempt.link import SupervisorLink
from worker.attempt.policy import policy_of
from worker.attempt.rank_processes import Forked, Others, fork_ranks, on_ring
from worker.attempt.running import run_rank, train
from worker.attempt.second_user import User
from worker.channel import Channel
from worker.data.ranks import ALONE, Ranks, RanksDifferError, RanksError
from worker.messages import (
    FAILURE_TEXTS,
    PEER_GONE,
    TO_CHILD,
    Failed,
    FailureCode,
    Predict,
    Predicted,
    ProtocolError,
    Start,
    Stopped,
    exit_status,
)
from worker.predicting.predict import predicted
from worker.statistics import answer_files as answers
from worker.statistics import synthetic_files
from worker.telemetry import Telemetry

PR_SET_PDEATHSIG = 1


def run_attempt(
    channel: Channel, link: SupervisorLink, start: Start, pids: Sequence[int] = (), ranks: Ranks = ALONE
) -> None:
    """Runs one attempt, from the start message to `finished`, as its first or only rank.

    Args:
        pids: of all ranks.
    """
    match start.spec.kind:
        case "training":
            train(channel, link, start, pids, ranks)
        case "statistics":
            _sum(link, start, pids, Sums(start.spec.queries or (), answers.contents))
        case "synthetic":
            _sum(link, start, pids, Sums(start.spec.tables, synthetic_files.contents))
        case _:
            assert_never(start.spec.kind)


def _sum(link: SupervisorLink, start: Start, pids: Sequence[int], sums: Sums) -> None:
    """Runs one attempt of a job without a model."""
    exit_ = Telemetry(link, start.mechanism, data_public=start.data_public, holdout_public=start.holdout_public)
    answer(link, start, exit_, pids, sums)


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
    peers: Others | None = None
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
        if len(forked.pids) > 1:
            peers = Others(forked.pids[1:])
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
            code = peers.failure() if peers is not None else None
        if code is None:
            # A rank is gone: the job is queued again. Where they are processes of this one, one of them has crashed.
            return 1 if peers is not None or isinstance(error, RanksDifferError) else PEER_GONE
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


def main(fd: int, ring: int | None = None, *, memory_limit_bytes: int, user: User | None = None) -> int:
    """The process: sets its limits, then runs one attempt over the socket `fd`, in a sandbox.

    Args:
        ring: the socket to ranks on other machines; None: all ranks of the attempt are forked here.
        user: whose the process becomes before it reads what the attempt is about.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold data and keys
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the supervisor decides
    be_deterministic()

    def confine(message: Start | Predict) -> Forked:
        entered = confined.enter(policy_of(message, memory_limit_bytes, user))
        processes = message.processes if isinstance(message, Start) else 1
        if ring is not None and isinstance(message, Start):
            forked = on_ring(message.rank, processes, ring)
        else:
            forked = fork_ranks(processes)  # while there is one thread
        confined.seal(entered)
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
    """What to change so that a rank sees no GPU but its own. Elsewhere than on a cluster the fork server's
    environment names it."""
    if isinstance(message, Predict) or message.device == "cpu":
        return {"CUDA_VISIBLE_DEVICES": ""}
    return {"CUDA_VISIBLE_DEVICES": message.gpus[rank]} if message.gpus else {}


def threads_of(message: Start | Predict, cores: int) -> int:
    """The threads of each rank: those of the job's first ready attempt, so that a pass rounds as it did there.

    The first one has as many as the job names. Otherwise the processors are divided among the ranks that the job asks
    for: after a loss before it is ready, fewer ranks do not have more.

    Args:
        cores: this machine's processors, as torch counts them.
    """
    if not isinstance(message, Start):
        return cores
    runtime = message.spec.runtime
    if message.threads is not None:
        return message.threads
    if runtime.threads != "auto":
        return runtime.threads
    return max(1, cores // (message.processes if runtime.processes == "auto" else runtime.processes))


def in_fork(fd: int) -> int:
    """Runs `main` in a fork, which has one thread: numpy started threads in this process when it was loaded."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = main(fd, memory_limit_bytes=confined.default_memory_bytes())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    os.close(fd)
    status = os.waitpid(pid, 0)[1]
    confined.leave(pid)
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
