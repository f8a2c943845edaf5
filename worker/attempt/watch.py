"""Beside the conversation with an attempt's process: its lease is renewed, and a process that must end is ended.

In a thread of its own, so that a process that is frozen in the middle of a line, or a supervisor that waits for it,
neither loses the lease nor keeps it for ever.
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

from app.errors import StaleAttempt
from app.lifecycle.attempts import AttemptLog
from app.settings import Settings

logger = logging.getLogger(__name__)

TICK_S = 0.2
# How much longer than its longest silence so far a process may be silent: blocks of one job are of like length.
SILENCES = 20

Ended = Literal["stopping", "cancelled", "time-limit", "silent", "stale", "error"]


class Watch:
    """One attempt's lease and deadlines, from `with` to `stop` or the end of the block.

    Args:
        end: ends the process; called at most once, from this thread. The supervisor then meets the end of the
            connection, and `ended` says why.
        stopping: set when this worker is told to stop.
        time_left_s: how long the job may still run.

    Attributes:
        cancelled_at: when a person's wish to cancel was seen; None: not.
        ended: why this thread ended the process; None: it did not.
        error: what kept the lease from being renewed, where `ended` is "stale" or "error".
    """

    def __init__(
        self,
        log: AttemptLog,
        settings: Settings,
        end: Callable[[], None],
        stopping: threading.Event,
        time_left_s: float = math.inf,
    ) -> None:
        self._log, self._settings, self._end, self._stopping = log, settings, end, stopping
        self._deadline = time.monotonic() + time_left_s
        self.cancelled_at: float | None = None
        self.ended: Ended | None = None
        self.error: Exception | None = None
        self._heard = self._renewed = time.monotonic()
        self._next_beat = 0.0
        self._longest_s = 0.0
        self._done = threading.Event()
        # In the context of this thread: what it logs is about the same attempt.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), name="attempt-watch", daemon=True)

    def is_late(self, at: float | None = None) -> bool:
        """Whether the job's time was over at `at` (monotonic; None: now), if this thread has looked since or not."""
        return (time.monotonic() if at is None else at) > self._deadline

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """No heartbeat after this: called before the last write, and never inside a transaction."""
        self._done.set()
        self._thread.join()

    @contextmanager
    def hearing(self) -> Iterator[None]:
        """The process said something, which is written down and answered in this block.

        Meanwhile it waits for us: a database that stands still does not make it silent. Its next silence begins after.
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
            why = self.ended or self._why_to_end()
            if why is not None:
                self.ended = why
                self._end()
                return
            self._done.wait(min(TICK_S, self._log.cadence.left_s() or TICK_S))

    def _beat(self) -> None:
        """Renews the lease, looks for a cancel and tells the news: at whole seconds, whatever the process is doing. The
        lease itself would need it every heartbeat_s."""
        if time.monotonic() < self._next_beat:
            return
        try:
            cancelling = self._log.heartbeat()
        except StaleAttempt as error:
            self.ended, self.error = "stale", error
            return
        except Exception as error:
            # A database that is away for a moment costs no attempt; one that is away for a lease has lost it.
            logger.warning("the lease of %s is not renewed: %s", self._log.held.job_id, type(error).__name__)
            if time.monotonic() - self._renewed > self._settings.lease_s:
                self.ended, self.error = "error", error
            return
        finally:
            self._next_beat = time.monotonic() + min(self._settings.heartbeat_s, self._log.cadence.left_s() or 1.0)
        self._renewed = time.monotonic()
        if cancelling and self.cancelled_at is None:
            self.cancelled_at = time.monotonic()

    def _why_to_end(self) -> Ended | None:
        at = time.monotonic()
        if self._stopping.is_set():
            return "stopping"
        if self.cancelled_at is not None and at - self.cancelled_at > self._settings.cancel_grace_s:
            return "cancelled"
        if self.is_late(at):
            return "time-limit"
        if at - self._heard > max(self._settings.attempt_silence_s, SILENCES * self._longest_s):
            return "silent"
        return None
