"""What a process of the service does again and again, in a thread of its own or in its main one, until a signal."""

from __future__ import annotations

import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from types import FrameType
from typing import Generic, Protocol, TypeVar

from app.logs import kind_of

logger = logging.getLogger(__name__)
LONGEST_WAIT_S = 5.0
T = TypeVar("T", bound=Hashable)


class Due(Protocol):
    """Knows without work that there is nothing to do (app.db.changes)."""

    def due(self) -> bool:
        """False if there is nothing to do."""
        ...

    def rest(self, stop: threading.Event, poll_s: float) -> bool:
        """Waits until there may be; True once `stop` is set."""
        ...

    def close(self) -> None:
        """Ends it."""
        ...


class Round(Generic[T]):
    """Goes over all that is due, for a bounded time at once, so that other work comes between.

    What failed is not tried again before all others were.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.tried: set[T] = set()

    @property
    def goes_on(self) -> bool:
        """True if the time was over before the last one."""
        return bool(self.tried)

    def over(self, due: Sequence[T]) -> Iterator[T]:
        """Those of what is due that the round has not come to, until the time is over; at least one."""
        ends = time.monotonic() + self.seconds
        waiting = [each for each in due if each not in self.tried]
        if not waiting:  # what is left has failed in this round: the next one begins
            self.tried.clear()
        for number, item in enumerate(waiting or due):
            if number and time.monotonic() >= ends:
                return
            self.tried.add(item)
            yield item
        self.tried.clear()


def told_to_stop(*numbers: signal.Signals) -> threading.Event:
    """An event that each of these signals sets from now on, in a thread of its own. Call it in the main thread.

    Setting it in a handler could hang: Python calls handlers once the main thread wakes, and a signal that came while
    the process stood still mostly wakes another one; and `set` waits for a lock that the interrupted `wait` may hold.
    """
    stop, (reader, writer) = threading.Event(), socket.socketpair()
    writer.setblocking(False)

    def hear() -> None:
        while received := reader.recv(1):
            if received[0] in numbers:
                stop.set()

    def note(number: int, _frame: FrameType | None) -> None:
        with suppress(BlockingIOError):  # so much is there to be read
            writer.send(bytes([number]))

    threading.Thread(target=hear, name="signals", daemon=True).start()
    # Python writes to it at once, in whichever thread; the handler, later, should another library have taken its place.
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, note)
    return stop


def repeat(action: Callable[[], object], stop: threading.Event, poll_s: float, watch: Due | None = None) -> None:
    """Calls `action` until told to stop: at once again where it returned something true, else after `poll_s`.

    Args:
        watch: has calls left out. It is not asked while `action` has failed, or says that there is more.
    """
    wait = poll_s
    busy: object = False
    first = True

    def rests() -> bool:
        if watch is None or first or busy or wait > poll_s:
            return stop.wait(0 if busy else wait)
        return watch.rest(stop, poll_s)

    while not rests():
        try:
            is_due = watch is None or watch.due() or first or busy or wait > poll_s
            busy = action() if is_due else False
            wait, first = poll_s, False
        except Exception as error:  # it outlives a broker or database that is away for a while
            logger.error("%s; trying again", kind_of(error), exc_info=error)
            busy, wait = False, min(wait * 2, LONGEST_WAIT_S)
    if watch is not None:
        watch.close()


def in_thread(
    name: str, action: Callable[[], object], stop: threading.Event, poll_s: float, watch: Due | None = None
) -> threading.Thread:
    """A thread that repeats `action` until told to stop."""
    thread = threading.Thread(target=repeat, args=(action, stop, poll_s, watch), name=name, daemon=True)
    thread.start()
    return thread
