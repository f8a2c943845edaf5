"""Writes that survive a power cut, and that leave the service some space."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from app.errors import StorageFull
from app.ids import new_id

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
RESERVE_BYTES = 512 * 2**20  # what data files leave free: twice what readiness asks for (app.system.health)


def sync(folder: Path) -> None:
    """Returns once a folder's entries are on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def keep(storage_root: Path, folder: Path, name: str, kind: str) -> None:
    """Moves a folder to its final place, <kind>/<name>; it is on disk before this returns.

    What an earlier attempt left there without its row in the database goes to staging/, where a sweep finds it.
    """
    final = storage_root / kind
    final.mkdir(mode=0o700, exist_ok=True)
    sync(folder)
    if (final / name).exists():
        (storage_root / "staging").mkdir(mode=0o700, exist_ok=True)
        (final / name).rename(storage_root / "staging" / new_id("left"))
    folder.rename(final / name)
    sync(final)


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
