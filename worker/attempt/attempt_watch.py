"""Alongside the conversation with an attempt's process: renews its lease, and ends a process that must end.

It runs in its own thread. So neither a process that freezes in the middle of a line nor a supervisor that waits for it
loses the lease or keeps it for ever.
"""

from __future__ import annotations

import contextvars
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from app.lifecycle.attempts import AttemptLog
from app.settings import Settings
from core.errors import StaleAttempt

logger = logging.getLogger(__name__)

TICK_S = 0.2
# A process may be silent for this many times its longest silence so far: one job's blocks take similar times.
SILENCES = 20

Ended = Literal["stopping", "told", "time-limit", "silent", "stale", "error"]


class Watch:
    """One attempt's lease and deadlines, from `with` to `stop` or the block's end.

    Args:
        end: ends the process; called at most once, from this thread. The supervisor then reads the connection's end,
            and `ended` says why.
        stopping: set when this worker is told to stop: an attempt in training has `drain_s` to its block's end.
        at_once: set when it is told so again.
        time_left_s: seconds that the job may still run.

    Attributes:
        told_at: when this thread saw the request to cancel or to pause; None if there is none.
        ended: why this thread ended the process; None if it did not.
        trains: the attempt has announced a block. Set by the supervisor.
        error: why the lease could not be renewed, if `ended` is "stale" or "error".
    """

    def __init__(
        self,
        log: AttemptLog,
        settings: Settings,
        end: Callable[[], None],
        stopping: threading.Event,
        at_once: threading.Event,
        time_left_s: float = math.inf,
    ) -> None:
        self._log, self._settings, self._end = log, settings, end
        self._stopping, self._at_once = stopping, at_once
        self._stopping_at: float | None = None
        self.trains = False
        self._deadline = time.monotonic() + time_left_s
        self.told_at: float | None = None
        self.ended: Ended | None = None
        self.error: Exception | None = None
        self._heard = self._renewed = time.monotonic()
        self._longest_s = 0.0
        self._next_beat = self._following_beat()  # the start message, made at once, renews the lease
        self._done = threading.Event()
        # In this thread's context, so that its log lines name the same attempt.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), name="attempt-watch", daemon=True)

    def is_late(self, at: float | None = None) -> bool:
        """Returns True if the job's time was over at `at` (monotonic; None: now), even before this thread checks."""
        return (time.monotonic() if at is None else at) > self._deadline

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stops heartbeats. Call before the last write, and never inside a transaction."""
        self._done.set()
        self._thread.join()

    @contextmanager
    def hearing(self) -> Iterator[None]:
        """Within this block a message from the process is recorded and answered.

        The process waits for us meanwhile, so a stalled database does not count as its silence. Its next silence begins
        after the block.
        """
        self._longest_s = max(self._longest_s, time.monotonic() - self._heard)
        self._heard = math.inf
        try:
            yield
        finally:
            self._heard = time.monotonic()

    def _run(self) -> None:
        while not self._done.is_set():
            self._beat()
            reason = self.ended or self._why_to_end()
            if reason is not None:
                self.ended = reason
                self._end()
                return
            self._done.wait(min(TICK_S, self._log.cadence.left_s() or TICK_S))

    def _beat(self) -> None:
        """Renews the lease, checks for a cancel or a pause, and publishes progress, at whole seconds whatever the
        process does.

        The lease itself needs this only every heartbeat_s.
        """
        if time.monotonic() < self._next_beat:
            return
        try:
            is_stopping = self._log.heartbeat()
        except StaleAttempt as error:
            self.ended, self.error = "stale", error
            return
        except Exception as error:
            # A short database outage costs no attempt; an outage as long as a lease loses it.
            logger.warning("cannot renew the lease of %s: %s", self._log.held.job_id, type(error).__name__)
            if time.monotonic() - self._renewed > self._settings.lease_s:
                self.ended, self.error = "error", error
            return
        finally:
            self._next_beat = self._following_beat()
        self._renewed = time.monotonic()
        if is_stopping and self.told_at is None:
            self.told_at = time.monotonic()

    def _following_beat(self) -> float:
        return time.monotonic() + min(self._settings.heartbeat_s, self._log.cadence.left_s() or 1.0)

    def _why_to_end(self) -> Ended | None:
        at = time.monotonic()
        if self._stopping.is_set():
            self._stopping_at = at if self._stopping_at is None else self._stopping_at
            drains = self.trains and at - self._stopping_at <= self._settings.drain_s
            if self._at_once.is_set() or not drains:
                return "stopping"
        if self.told_at is not None and at - self.told_at > self._settings.cancel_grace_s:
            return "told"
        if self.is_late(at):
            return "time-limit"
        if at - self._heard > max(self._settings.attempt_silence_s, SILENCES * self._longest_s):
            return "silent"
        return None
