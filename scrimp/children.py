"""The processes of `scrimp serve`: started, watched, started again with back-off, stopped, never left behind."""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0
# A log that grows past this is moved aside; so many of them are kept.
LOG_BYTES, LOGS_KEPT = 16 * 2**20, 3
STEADY_S = 60.0  # a child that lived this long starts again without a wait
ROOT = Path(__file__).resolve().parents[1]
LIBC = ctypes.CDLL(None, use_errno=True)


class Child:
    """One process of the service.

    Args:
        name: what the terminal and the log file call it.
        arguments: its command line.
        log: where its output is appended.
        keep: file descriptors it inherits.
    """

    def __init__(self, name: str, arguments: Sequence[str], log: Path, keep: Sequence[int]) -> None:
        self.name, self.arguments, self.log, self.keep = name, list(arguments), log, tuple(keep)
        self.deaths = 0
        self._wait_s = FIRST_WAIT_S
        self._process: subprocess.Popen[bytes] | None = None
        self._began = self._start_at = 0.0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def tend(self) -> str | None:
        """Start it where it is not running and its back-off is over; a sentence for the terminal if it has died."""
        self._rotate()
        if self._process is not None and self._process.poll() is not None:
            return self._mourn(self._process.returncode)
        if self._process is None and time.monotonic() >= self._start_at:
            self._process = self._start()
            self._began = time.monotonic()
        return None

    def terminate(self) -> None:
        if self.pid is not None and self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """End it and what it started in its session, at once."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def last_words(self, lines: int = 12) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _rotate(self) -> None:
        """log → log.1 → log.2 → …: copied and emptied, as the process goes on writing into the same open file. What it
        writes between the two is lost: a line or so in 16 MiB."""
        if not self.log.exists() or self.log.stat().st_size < LOG_BYTES:
            return
        older = [self.log.with_name(f"{self.log.name}.{number}") for number in range(1, LOGS_KEPT + 1)]
        for newer, old in reversed(list(itertools.pairwise(older))):
            if newer.exists():
                newer.replace(old)
        shutil.copy(self.log, older[0])  # with its mode
        os.truncate(self.log, 0)

    def _mourn(self, status: int) -> str:
        self._process = None
        self.deaths += 1
        if time.monotonic() - self._began >= STEADY_S:
            self._wait_s = FIRST_WAIT_S
        wait, self._wait_s = self._wait_s, min(2 * self._wait_s, LONGEST_WAIT_S)
        self._start_at = time.monotonic() + wait
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"
        return f"{self.name} {how}; starting again in {wait:g} s (see {self.log})"

    def _start(self) -> subprocess.Popen[bytes]:
        parent = os.getpid()
        # Our own packages, whatever folder the service is started in: `app` is a common name.
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        with os.fdopen(os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as log:
            return subprocess.Popen(
                self.arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
                pass_fds=self.keep,
                # A Ctrl-C in the terminal reaches `scrimp serve` alone, which then stops its children in order.
                start_new_session=True,
                # Set between fork and exec: safe, as this process has one thread, at whose end the kernel sends it.
                preexec_fn=lambda: _die_with(parent),  # noqa: PLW1509
            )


def _die_with(parent: int) -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was gone before the request reached the kernel
        os._exit(1)


def stop(children: Sequence[Child], timeout_s: float) -> None:
    """Ask all to end; end those that have not within `timeout_s`. A job that a worker leaves is taken up again."""
    for child in children:
        child.terminate()
    deadline = time.monotonic() + timeout_s
    while any(child.pid for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    for child in children:
        child.kill()
