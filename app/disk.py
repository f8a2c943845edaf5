"""Writes that survive a power cut, and that leave the service some space."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from app.errors import StorageFull

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
RESERVE_BYTES = 512 * 2**20  # what data files leave free: twice what readiness asks for (app.system.health)


def sync(folder: Path) -> None:
    """Returns once a folder's entries are on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_full(error: BaseException) -> bool:
    """Returns True if a write failed for lack of space."""
    return isinstance(error, OSError) and error.errno in FULL


def require_room(folder: Path, needed_bytes: int = 0) -> None:
    """Checks that so many bytes fit on a folder's disk and leave RESERVE_BYTES.

    Raises:
        StorageFull: they do not.
    """
    if shutil.disk_usage(folder).free < needed_bytes + RESERVE_BYTES:
        raise StorageFull("the service's disk is full: an operator has to free some space")
