"""A folder of class folders of files, as one tar archive: what is hashed, parsed and stored is then one content.

Entries are sorted by name and have no times or owners, so the same files always make the same archive.
"""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from core.errors import InvalidRequest, too_large

MAX_FILES = 5_000_000
BLOCK = tarfile.BLOCKSIZE
READ_ONLY = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


def size(folder: Path, limit_bytes: int) -> int:
    """The bytes of a folder's archive, at most.

    Raises:
        InvalidRequest: it holds too many files.
        TooLarge: they are larger than `limit_bytes`.
    """
    total = 2 * tarfile.RECORDSIZE
    for _name, descriptor in _files(folder):
        total += os.fstat(descriptor).st_size + 2 * BLOCK
        if total > limit_bytes:
            raise too_large(limit_bytes)
    return total


def pack(folder: Path, archive: BinaryIO, limit_bytes: int) -> None:
    """Writes the archive. Files that change meanwhile are packed as they are found. Raises like `size`."""
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.GNU_FORMAT) as packed:
        for name, descriptor in _files(folder):
            with os.fdopen(os.dup(descriptor), "rb") as file:
                member = tarfile.TarInfo(name)
                member.size = os.fstat(descriptor).st_size
                packed.addfile(member, file)
            packed.members = []  # type: ignore[attr-defined] # it would keep millions
            if archive.tell() > limit_bytes:
                raise too_large(limit_bytes)


def _files(folder: Path) -> Iterator[tuple[str, int]]:
    """Each regular file of each folder in this one, with a descriptor. Links are left out, and so is the rest."""
    count = 0
    with _opened(str(folder), os.O_DIRECTORY) as top:
        for group in sorted(os.listdir(top)):  # noqa: PTH208 - of a descriptor
            if not stat.S_ISDIR(os.stat(group, dir_fd=top, follow_symlinks=False).st_mode):
                continue
            with _opened(group, os.O_DIRECTORY, top) as inside:
                for name in sorted(os.listdir(inside)):  # noqa: PTH208
                    if not stat.S_ISREG(os.stat(name, dir_fd=inside, follow_symlinks=False).st_mode):
                        continue
                    count += 1
                    if count > MAX_FILES:
                        raise InvalidRequest.at("/path", f"this folder holds more than {MAX_FILES} files")
                    with _opened(name, 0, inside) as descriptor:
                        yield f"{group}/{name}", descriptor


@contextmanager
def _opened(name: str, flags: int, folder: int | None = None) -> Iterator[int]:
    try:
        descriptor = os.open(name, READ_ONLY | flags, dir_fd=folder)
    except OSError:  # it was removed or exchanged for a link since it was listed
        raise InvalidRequest.at("/path", "this folder changed while it was read: try again") from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)
