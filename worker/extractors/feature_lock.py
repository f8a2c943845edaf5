"""One process makes a part's features, and the others wait for them: a lock file next to the cached files.

Correctness never depends on the lock: features have the same bits whoever makes them, and a file's name contains its
hash. So a lock that is taken over too early costs time and nothing else. The holder touches the file while it works.
Who sees no touch for LEASE_S, by its own clock, takes the work over.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

TOUCH_S, LOOK_S, LEASE_S = 5.0, 0.5, 60.0

Poll = Callable[[], None]


@contextmanager
def turn(lock: Path, poll: Poll, is_ready: Callable[[], bool]) -> Iterator[Poll]:
    """Waits until nobody else works, or until the work is done.

    Args:
        lock: the lock's path, in a folder that exists.
        poll: called often while waiting; may raise to stop.
        is_ready: returns True if the result is there: nothing is left to wait for.

    Yields:
        A function to call often during the work, in place of `poll`.
    """
    acquired = _acquired(lock, poll, is_ready)
    touched = time.monotonic()

    def alive() -> None:
        nonlocal touched
        poll()
        if acquired and time.monotonic() >= touched + TOUCH_S:
            touched = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(lock)

    try:
        yield alive
    finally:
        if acquired:
            lock.unlink(missing_ok=True)


def _acquired(lock: Path, poll: Poll, is_ready: Callable[[], bool]) -> bool:
    """Returns True once the lock is ours; False if the result is there, or the folder takes no locks."""
    seen, since = -1, time.monotonic()
    while True:
        try:
            os.close(os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            return True
        except FileExistsError:
            pass
        except OSError:  # a full disk: everyone works for itself
            return False
        if is_ready():
            return False
        poll()
        touched = _touched(lock)
        if touched != seen:
            seen, since = touched, time.monotonic()
        elif time.monotonic() >= since + LEASE_S:
            _take_away(lock)
            continue
        time.sleep(LOOK_S)


def _touched(lock: Path) -> int:
    try:
        return lock.stat().st_mtime_ns
    except OSError:
        return -1


def _take_away(lock: Path) -> None:
    """Removes a lock whose holder is gone. Of several waiters one renames it; the others find another lock, or none."""
    taken = lock.with_name(f"{secrets.token_hex(8)}.part")
    with contextlib.suppress(OSError):
        lock.rename(taken)
        taken.unlink()
