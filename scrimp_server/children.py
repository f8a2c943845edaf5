"""The processes of `scrimp serve`: started, watched, restarted with back-off, stopped, never left behind."""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import IO

PR_SET_PDEATHSIG = 1
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0
# A log larger than this is moved aside; this many old logs are kept.
LOG_BYTES, LOGS_KEPT = 16 * 2**20, 3
STEADY_S = 60.0  # a child that lived this long restarts without a wait
ROOT = Path(__file__).resolve().parents[1]
LIBC = ctypes.CDLL(None, use_errno=True)


class Child:
    """One process of the service.

    Args:
        name: its name on the terminal and in the log file.
        arguments: its command line.
        log: the file to which its output is appended; None: our own output.
        keep: file descriptors that it inherits.
        settings: its environment, besides ours.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        log: Path | None,
        keep: Sequence[int] = (),
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.name, self.arguments, self.log, self.keep = name, list(arguments), log, tuple(keep)
        self.settings = dict(settings)
        self.failed_starts = 0  # ends by an exit code, one after the other, each soon after the start
        self._wait_s = FIRST_WAIT_S
        self._process: subprocess.Popen[bytes] | None = None
        self._began = self._start_at = 0.0

    @property
    def pid(self) -> int | None:
        """The running process' id; None if it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def tend(self) -> str | None:
        """Starts it if it is not running and its back-off is over; returns a sentence for the terminal
        if it has died."""
        self._rotate()
        if self._process is not None and self._process.poll() is not None:
            return self._mourn(self._process.returncode)
        if self._process is None and time.monotonic() >= self._start_at:
            self._process = self._start()
            self._began = time.monotonic()
        return None

    def terminate(self) -> None:
        """Asks it to end."""
        if self.pid is not None and self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """Ends it and all that it started in its session, at once."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def last_words(self) -> str:
        """The last lines of its log."""
        return "" if self.log is None else "\n".join(self.log.read_text(errors="replace").splitlines()[-12:])

    def _rotate(self) -> None:
        """log → log.1 → log.2 → …: copied and truncated, because the process keeps writing to the same open file. Lines
        written between copy and truncation are lost: one or so in 16 MiB."""
        if self.log is None or not self.log.exists() or self.log.stat().st_size < LOG_BYTES:
            return
        older = [self.log.with_name(f"{self.log.name}.{number}") for number in range(1, LOGS_KEPT + 1)]
        for newer, old in reversed(list(itertools.pairwise(older))):
            if newer.exists():
                newer.replace(old)
        shutil.copy(self.log, older[0])  # with its mode
        os.truncate(self.log, 0)

    def _mourn(self, status: int) -> str:
        self._process = None
        self.failed_starts += status >= 0
        if time.monotonic() - self._began >= STEADY_S:
            self._wait_s, self.failed_starts = FIRST_WAIT_S, 0
        wait, self._wait_s = self._wait_s, min(2 * self._wait_s, LONGEST_WAIT_S)
        self._start_at = time.monotonic() + wait
        reason = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"
        place = "" if self.log is None else f" (see {self.log})"
        return f"{self.name} {reason}; starting again in {wait:g} s{place}"

    def _start(self) -> subprocess.Popen[bytes]:
        parent = os.getpid()
        # Our own packages, whatever folder the service starts in: `app` is a common name.
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        with self._output() as log:
            return subprocess.Popen(
                self.arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=None if log is None else subprocess.STDOUT,
                env=os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"} | self.settings,
                pass_fds=self.keep,
                # A Ctrl-C in the terminal reaches `scrimp serve` alone, which then stops its children in order.
                start_new_session=True,
                # Set between fork and exec: safe, because this process has one thread; the kernel sends the signal when
                # it ends.
                preexec_fn=lambda: _die_with(parent),  # noqa: PLW1509
            )

    @contextmanager
    def _output(self) -> Iterator[IO[bytes] | None]:
        if self.log is None:
            yield None
            return
        with os.fdopen(os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as log:
            yield log


def _die_with(parent: int) -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent died before the request reached the kernel
        os._exit(1)


def stop(children: Sequence[Child], timeout_s: float) -> None:
    """Asks all to end; ends those that have not within `timeout_s`. A job that a worker leaves is queued again."""
    for child in children:
        child.terminate()
    deadline = time.monotonic() + timeout_s
    while any(child.pid for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    for child in children:
        child.kill()
