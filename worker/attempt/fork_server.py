"""The fork server: one process that has loaded torch and forks each attempt's process.

Loading torch takes seconds of processor time for every attempt. A fork of a process that has it loaded takes
milliseconds, which matters for studies with short trials and for retries. The fork server starts with a plain
environment, understands only "fork" and "how", and receives neither a job nor a key, so its forks are as clean as fresh
processes. It runs no torch kernel itself, so forks inherit no torch threads and no CUDA context. It ends with its
worker (by the kernel's rule, with the thread that started it), and its children end with it.

`python -m worker.attempt.fork_server FD BYTES [UID GID]`: each message on the socket FD carries the descriptor of an
attempt's channel, and of its ring if it has one. The answer carries the forked process's pidfd and its pid, or neither
if the machine cannot fork.
Each process may use BYTES of memory (worker.attempt.confined) and becomes that user's (worker.attempt.second_user). To
"how" it answers with a process's exit status, which the kernel tells only a parent.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from app import logs
from app.sandbox import kernel
from app.sandbox.processes import ATTEMPT_ENVIRONMENT, loading, plain_environment
from core.contracts.base import complete
from core.contracts.devices import Device
from core.errors import TransientError, WorkerError
from worker.attempt import confined
from worker.attempt.device_survey import processor, visible
from worker.attempt.second_user import User

PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36
START_S = 120.0  # loading torch takes twenty seconds on a slow, busy machine
FORKED, REFUSED, HOW, UNKNOWN = b"forked", b"refused", b"how", b"unknown"
REMEMBERED = 64  # exit statuses kept
READ = 32
EXITED = "exit code "  # how a process ended that no signal did
COMMAND = (sys.executable, "-m", "worker.attempt.fork_server")
LOGS = {"SCRIMP_LOG_FORMAT": "text", "SCRIMP_LOG_LEVEL": "INFO"}
LIBC = ctypes.CDLL(None, use_errno=True)
ROOT = Path(__file__).resolve().parents[2]


class StartError(WorkerError):
    """The fork server's process dies at its start: this counts as a crash of the attempt that needed it."""

    code = "worker-crashed"


class Process:
    """A process that is not our child, by its pidfd: unlike a pid, it is never reused."""

    def __init__(self, handle: int, describe: Callable[[], str | None] = lambda: None) -> None:
        self._handle, self._how = handle, describe

    def ended(self, within_s: float = 0.0) -> bool:
        """Returns True if the process has ended, waiting up to `within_s` seconds."""
        return bool(select.select([self._handle], [], [], within_s)[0])

    def kill(self) -> None:
        """Kills the process and returns once it has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        select.select([self._handle], [], [])

    def how(self) -> str | None:
        """How it ended, such as "exit code 1" or "SIGKILL"; None if it still runs or its status is unknown."""
        return self._how() if self.ended() else None

    def close(self) -> None:
        """Closes the pidfd."""
        os.close(self._handle)


class ForkServer:
    """The worker's client of the fork server. Starts it on first use, and again if it ended. Thread-safe.

    Args:
        memory_limit_bytes: of each forked process; None: nine tenths of the machine's.
        device: the only GPU that they may see; None or the processor: they see none.
        user: of each forked process, once it knows its files; None: the worker's.

    Attributes:
        device: the same.
    """

    def __init__(
        self, memory_limit_bytes: int | None = None, device: Device | None = None, user: User | None = None
    ) -> None:
        self._memory_limit_bytes = memory_limit_bytes or confined.default_memory_bytes()
        self.device, self._visible = device, visible(device or processor())
        self._user = user
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def start(self, channel: int, *ring: int) -> Process:
        """Forks an attempt's process, which owns copies of the descriptors: `channel`, and where ranks run on other
        machines too, `ring`, which leads to them.

        Raises:
            TransientError: the fork server does not start in time, or cannot fork.
            StartError: it ends before it forks.
        """
        with self._lock:
            for _ in range(2):  # the first may have ended unnoticed; the second is fresh
                answer, handle = self._asked(channel, *ring)
                if handle is not None:
                    return Process(handle, partial(self._ended_how, int(answer.removeprefix(FORKED))))
                if answer == REFUSED:  # running attempts go on
                    raise TransientError("the attempt's process cannot be started")
                self._end()
        raise StartError("the fork server's process ends before it can fork: see what it wrote to the worker's output")

    def close(self) -> None:
        """Ends the fork server and its children."""
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
        return f"{EXITED}{status}" if status >= 0 else signal.Signals(-status).name

    def _asked(self, *channels: int) -> tuple[bytes, int | None]:
        """The answer and a pidfd; both empty if the fork server is gone.

        Raises:
            TransientError: no answer in time. Without an answer, nothing was forked.
        """
        connection = self._socket or self._begin()
        try:
            socket.send_fds(connection, [b"fork"], channels)
            answer, handles, _, _ = socket.recv_fds(connection, READ, 1)
        except TimeoutError:
            self._end()
            raise TransientError("the attempt's process did not start in time") from None
        except OSError:
            return b"", None
        return answer, handles[0] if handles else None

    def _begin(self) -> socket.socket:
        own_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with child_end:
            self._process = subprocess.Popen(
                [
                    *COMMAND,
                    str(child_end.fileno()),
                    str(self._memory_limit_bytes),
                    *(self._user.arguments if self._user else ()),
                ],
                cwd=ROOT,
                env=plain_environment(*LOGS) | {"SCRIMP_ATTEMPT": "1"} | ATTEMPT_ENVIRONMENT | self._visible,
                pass_fds=[child_end.fileno()],
                stdin=subprocess.DEVNULL,
            )
        own_end.settimeout(START_S)
        self._socket = own_end
        return own_end

    def _end(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._socket = self._process = None


def main(fd: int, memory_limit_bytes: int, user: User | None = None) -> None:
    """The fork server's process: forks until its worker is gone."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    LIBC.prctl(PR_SET_NAME, b"scrimp-forks", 0, 0, 0)
    LIBC.prctl(
        PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0
    )  # ranks of an attempt that was killed become children, and are reaped
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the worker decides
    # What libraries say before an attempt is silent (worker.attempt.child).
    logs.configure("attempt", *(os.environ.get(name, default) for name, default in LOGS.items()))
    confined.sweep(user)
    if user is None:  # otherwise each attempt asks as that user
        kernel.offers_namespaces()  # finds out in a fork, which is cheaper now; attempts inherit the answer
    with loading():  # loaded objects stay shared: no garbage collection in a child writes to them
        from worker.attempt import child, code_release  # noqa: PLC0415  # takes seconds, once for all forks
        from worker.native import gpu  # noqa: PLC0415

        complete()
        code_release.packages(), code_release.code(*code_release.OWN)  # attempts inherit the answers
        gpu.compile_ahead()
    control, fork_server = socket.socket(fileno=fd), os.getpid()
    ended: dict[int, int] = {}
    while True:
        _bury(ended, user)
        try:
            message, channels, _, _ = socket.recv_fds(control, READ, 2)
        except ConnectionError:
            return
        if message.startswith(HOW):
            _bury(ended, user)
            status = ended.get(int(message.removeprefix(HOW)))
            with suppress(ConnectionError):
                control.send(UNKNOWN if status is None else b"%d" % status)
            continue
        if not channels:
            return
        try:
            pid = os.fork()
        except OSError:
            pid = -1
        if pid == 0:
            run = partial(child.main, memory_limit_bytes=memory_limit_bytes, user=user)
            _attempt(run, control, channels, fork_server)
        for channel in channels:
            os.close(channel)
        with suppress(ConnectionError):
            _answer(control, pid)


def _answer(control: socket.socket, pid: int) -> None:
    if pid < 0:
        control.send(REFUSED)
        return
    handle = os.pidfd_open(pid)  # valid even if it has ended: its pid is free only after the wait
    try:
        socket.send_fds(control, [FORKED + b" %d" % pid], [handle])
    finally:
        os.close(handle)


def _bury(ended: dict[int, int], user: User | None) -> None:
    """Reaps processes that have ended and notes their exit status. Their pidfds report the end before and after."""
    with suppress(ChildProcessError):
        while (status := os.waitpid(-1, os.WNOHANG))[0]:
            confined.leave(status[0], user)
            ended.pop(status[0], None)  # a reused pid
            ended[status[0]] = os.waitstatus_to_exitcode(status[1])
            while len(ended) > REMEMBERED:
                del ended[next(iter(ended))]


def _attempt(run: Callable[..., int], control: socket.socket, channels: Sequence[int], fork_server: int) -> NoReturn:
    """The child: runs without the fork server's socket, and never returns. It always dies with the fork server."""
    status = 1
    try:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != fork_server:  # the fork server ended before the request reached the kernel
            os._exit(status)
        control.close()
        LIBC.prctl(PR_SET_NAME, b"scrimp-attempt", 0, 0, 0)
        status = run(*channels)
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), User.parsed(sys.argv[3:]))
