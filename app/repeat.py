"""What a process of the service does again and again, in a thread of its own or in its main one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from app.logs import kind_of

logger = logging.getLogger(__name__)
LONGEST_WAIT_S = 5.0


def repeat(what: Callable[[], object], stop: threading.Event, poll_s: float) -> None:
    """Calls `what` until told to stop: at once again where it returned something true, else after `poll_s`."""
    wait = poll_s
    busy: object = False
    while not stop.wait(0 if busy else wait):
        try:
            busy = what()
            wait = poll_s
        except Exception as error:  # it outlives a broker or database that is away for a while
            logger.error("%s; trying again", kind_of(error), exc_info=error)
            busy, wait = False, min(wait * 2, LONGEST_WAIT_S)


def in_thread(name: str, what: Callable[[], object], stop: threading.Event, poll_s: float) -> threading.Thread:
    """A thread that repeats `what` until told to stop."""
    thread = threading.Thread(target=repeat, args=(what, stop, poll_s), name=name, daemon=True)
    thread.start()
    return thread
