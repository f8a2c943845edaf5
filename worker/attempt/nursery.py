"""Where attempts' processes come from: one process that has loaded torch, and forks.

Loading torch takes seconds of a processor, again for every attempt; a fork of a process that has it takes milliseconds,
which a study of short trials and a retried job notice. The nursery is started with a plain environment, hears nothing
but "fork" and "how", and is handed neither a job nor a key: what it forks is as clean as a fresh process. It runs no
kernel of torch itself, so that it has no threads of torch's and no CUDA context to inherit. It ends with its worker
(with the thread that started it, which is the kernel's rule), and its children end with it.

`python -m worker.attempt.nursery FD BYTES`: on the socket FD each message carries the descriptor of an attempt's
channel; the answer carries a pidfd of the process that was forked for it, and its number, or nothing where the machine
has no place for one. Each of them may have so many BYTES of memory (worker.attempt.sandbox). Asked how a process ended,
it answers with the exit status, which the kernel tells a parent alone.
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from app.errors import TransientError
from app.processes import ATTEMPT_ENVIRONMENT, plain_environment
from worker.attempt import sandbox

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
START_S = 120.0  # torch on a slow, busy machine takes twenty
FORKED, REFUSED, HOW, UNKNOWN = b"forked", b"refused", b"how", b"unknown"
REMEMBERED = 64  # exit statuses
READ = 32
LIBC = ctypes.CDLL(None, use_errno=True)
ROOT = Path(__file__).resolve().parents[2]


class Process:
    """A process that is not ours to wait for, by its pidfd: a number that no other process is ever given."""

    def __init__(self, handle: int, how: Callable[[], str | None] = lambda: None) -> None:
        self._handle, self._how = handle, how

    def ended(self, within_s: float = 0.0) -> bool:
        """Whether it has ended, waiting for that so long."""
        return bool(select.select([self._handle], [], [], within_s)[0])

    def kill(self) -> None:
        """Ends it, and returns when it has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        select.select([self._handle], [], [])

    def how(self) -> str | None:
        """How it ended: "exit code 1", "SIGKILL"; None where it has not, or nobody can say."""
        return self._how() if self.ended() else None

    def close(self) -> None:
        os.close(self._handle)


class Nursery:
    """The worker's end: started when it is first needed, and again where it has ended. For all threads of a worker."""

    def __init__(self, memory_limit_bytes: int | None = None) -> None:
        self._memory_limit_bytes = memory_limit_bytes or sandbox.default_memory_bytes()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def start(self, channel: int) -> Process:
        """Forks an attempt's process, which owns a copy of the descriptor `channel`.

        Raises:
            TransientError: the nursery does not start in time, or cannot fork.
        """
        with self._lock:
            for _ in range(2):  # one that ended unnoticed, and a fresh one
                answer, handle = self._asked(channel)
                if handle is not None:
                    return Process(handle, partial(self._ended_how, int(answer.removeprefix(FORKED))))
                if answer == REFUSED:  # the processes that there are live on
                    break
                self._end()
        raise TransientError("the process of an attempt cannot be started")

    def close(self) -> None:
        with self._lock:
            self._end()

    def _ended_how(self, pid: int) -> str | None:
        with self._lock:
            if self._socket is None:
                return None
            try:
                self._socket.send(HOW + b" %d" % pid)
                answer = self._socket.recv(READ)
            except OSError:
                self._end()
                return None
        if not answer or answer == UNKNOWN:
            return None
        status = int(answer)
        return f"exit code {status}" if status >= 0 else signal.Signals(-status).name

    def _asked(self, channel: int) -> tuple[bytes, int | None]:
        """The answer, and a pidfd; both empty from a nursery that is gone.

        Raises:
            TransientError: no answer in time. Who has none to give has forked nobody.
        """
        connection = self._socket or self._begin()
        try:
            socket.send_fds(connection, [b"fork"], [channel])
            answer, handles, _, _ = socket.recv_fds(connection, READ, 1)
        except TimeoutError:
            self._end()
            raise TransientError("the process of an attempt did not start in time") from None
        except OSError:
            return b"", None
        return answer, handles[0] if handles else None

    def _begin(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "worker.attempt.nursery", str(theirs.fileno()), str(self._memory_limit_bytes)],
                cwd=ROOT,
                env=plain_environment("CUDA_VISIBLE_DEVICES") | {"SCRIMP_ATTEMPT": "1"} | ATTEMPT_ENVIRONMENT,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        ours.settimeout(START_S)
        self._socket = ours
        return ours

    def _end(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._socket = self._process = None


def main(fd: int, memory_limit_bytes: int) -> None:
    """The nursery's process: forks until its worker is gone."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    LIBC.prctl(PR_SET_NAME, b"scrimp-nursery", 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the worker decides
    sandbox.sweep()
    from worker.attempt import child  # noqa: PLC0415  # seconds; what a fork is spared

    gc.collect()
    gc.freeze()  # what is loaded stays shared: no collection in a child writes to it
    asked, nursery = socket.socket(fileno=fd), os.getpid()
    ended: dict[int, int] = {}
    while True:
        _bury(ended)
        try:
            message, channels, _, _ = socket.recv_fds(asked, READ, 1)
        except ConnectionError:
            return
        if message.startswith(HOW):
            _bury(ended)
            status = ended.get(int(message.removeprefix(HOW)))
            with suppress(ConnectionError):
                asked.send(UNKNOWN if status is None else b"%d" % status)
            continue
        if not channels:
            return
        try:
            pid = os.fork()
        except OSError:
            pid = -1
        if pid == 0:
            _attempt(partial(child.main, memory_limit_bytes=memory_limit_bytes), asked, channels[0], nursery)
        os.close(channels[0])
        with suppress(ConnectionError):
            _answer(asked, pid)


def _answer(asked: socket.socket, pid: int) -> None:
    if pid < 0:
        asked.send(REFUSED)
        return
    handle = os.pidfd_open(pid)  # it is there, ended or not: its number is free only once it is buried
    try:
        socket.send_fds(asked, [FORKED + b" %d" % pid], [handle])
    finally:
        os.close(handle)


def _bury(ended: dict[int, int]) -> None:
    """Clears away the processes that have ended, and notes how. A pidfd says that they have, before and after."""
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            sandbox.leave(found[0])
            ended.pop(found[0], None)  # a number that was given out again
            ended[found[0]] = os.waitstatus_to_exitcode(found[1])
            while len(ended) > REMEMBERED:
                del ended[next(iter(ended))]


def _attempt(run: Callable[[int], int], asked: socket.socket, channel: int, nursery: int) -> NoReturn:
    """The child: without the nursery's socket, to its end. It dies with the nursery from its first moment on."""
    status = 1
    try:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != nursery:  # it was gone before the request reached the kernel
            os._exit(status)
        asked.close()
        LIBC.prctl(PR_SET_NAME, b"scrimp-attempt", 0, 0, 0)
        status = run(channel)
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
