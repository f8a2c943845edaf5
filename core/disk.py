"""Writes that survive a power cut, and that leave the service some space."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from core.errors import StorageFull
from core.ids import new_id

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
RESERVE_BYTES = 2**30
LOOK_BYTES = 2**22  # so often a writer looks for room: 128 writers at once stay above half the reserve


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


@dataclass(frozen=True)
class Room:
    """What data files may take of a disk: what is free, less a reserve, less what is kept free for open uploads.

    The reserve is for what cannot be refused: the database, messages, results of jobs. Readiness asks for half of it.

    Attributes:
        reserve_bytes: left free.
        promised: counts the bytes that are kept free for open uploads.
    """

    reserve_bytes: int = RESERVE_BYTES
    promised: Callable[[], int] = int

    @property
    def set_aside(self) -> int:
        """The bytes that stay free as things are."""
        return self.reserve_bytes + self.promised()

    def available(self, folder: Path) -> int:
        """The bytes that data files may take of a folder's disk; negative where the reserve is taken already."""
        return shutil.disk_usage(folder).free - self.set_aside

    def require(self, folder: Path, needed_bytes: int = 0) -> None:
        """Checks that so many bytes fit on a folder's disk.

        Raises:
            StorageFull: they do not.
        """
        if self.available(folder) < needed_bytes:
            raise StorageFull("the service's disk has no room for this: an operator has to free some space")
