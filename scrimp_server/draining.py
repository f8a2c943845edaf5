"""`scrimp worker --drain`: tells this machine's workers of a home to stop, and waits until they have.

Each `scrimp worker` holds a lock on HOME/workers/<host>:<pid> as long as it lives. So a file tells if its worker lives,
whatever process has its pid now.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

FOLDER = "workers"


def present(home: Path) -> int:
    """Says that this process is a worker of the home, until it ends, also as another program. Returns the lock's
    descriptor."""
    folder = home / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{socket.gethostname()}:{os.getpid()}"
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.set_inheritable(lock, True)  # exec keeps it; children that are started close it
    return lock


def terminate(home: Path) -> dict[int, int]:
    """Sends SIGTERM to the living workers of this host. Returns the lock that each pid holds until its end.

    A worker lets its job's block come to its end, saves the job's state and gives it back (SCRIMP_DRAIN_S).
    """
    locks: dict[int, int] = {}
    for path in sorted((home / FOLDER).glob(f"{socket.gethostname()}:*")):
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = int(path.name.rpartition(":")[2])
            with suppress(ProcessLookupError):  # it ended just now
                os.kill(pid, signal.SIGTERM)
            locks[pid] = lock
            continue
        path.unlink(missing_ok=True)
        os.close(lock)
    return locks


def wait_for(locks: Mapping[int, int]) -> None:
    """Waits for their ends."""
    for lock in locks.values():
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.close(lock)
