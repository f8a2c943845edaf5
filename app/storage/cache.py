"""Copies of data sets on this machine, shared by its processes: bounded, and the least recently used are evicted.

    <root>/<data set>/             what is kept of a data set; a copy that is not whole yet ends in .part
    <root>/.locks/<data set>.use   held (flock) shared while a process uses it, alone while it is evicted; its time of
                                   change is that of the last use
    <root>/.locks/<data set>.fetch held by who fetches for it
    <root>/.locks/room             held by who counts the bytes

The end of a process gives its locks back.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from core.disk import Room
from core.errors import StorageFull

LOCKS = ".locks"
PARTIAL = ".part"


class PartCache:
    """One machine's copies. Safe for any number of threads and processes.

    Args:
        root: the folder; made when needed.
        limit_bytes: what all copies may take, with what is being fetched.
        room: what they leave of the disk.
    """

    def __init__(self, root: Path, limit_bytes: int, room: Room = Room()) -> None:
        self._root, self._limit, self._room = root, limit_bytes, room

    @contextmanager
    def using(self, dataset_id: str) -> Iterator[Path]:
        """The folder of a data set, which is not evicted within the block."""
        with self._locked(f"{dataset_id}.use", fcntl.LOCK_SH) as lock:
            os.utime(lock)
            folder = self._root / dataset_id
            folder.mkdir(mode=0o700, exist_ok=True)
            yield folder

    @contextmanager
    def fetching(self, dataset_id: str) -> Iterator[None]:
        """No other process fetches for this data set within the block. Call it within `using`, and look again."""
        with self._locked(f"{dataset_id}.fetch", fcntl.LOCK_EX):
            yield

    @contextmanager
    def new(self, path: Path, size: int) -> Iterator[Path]:
        """A file of so many bytes to be filled within the block, which then has its place. Call it within `fetching`.

        Raises:
            StorageFull: what is in use leaves too little of the limit, or of the disk.
        """
        partial = path.with_name(path.name + PARTIAL)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial.unlink(missing_ok=True)  # left by a process that died
        with self._locked("room", fcntl.LOCK_EX):
            self._make_room(size)
            self._room.require(self._root, size)
            with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.truncate(size)  # counted from now on
        try:
            yield partial
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    def datasets(self) -> list[str]:
        """The data sets with copies here."""
        return sorted(path.name for path in self._root.glob("[!.]*") if path.is_dir())

    def forget(self, dataset_id: str) -> bool:
        """Removes a data set's copies. Returns False if a process uses them."""
        lock = self._open(f"{dataset_id}.use")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(self._root / dataset_id, ignore_errors=True)
        except BlockingIOError:
            return False
        finally:
            os.close(lock)
        return True

    def discard(self, dataset_id: str) -> None:
        """Removes a data set's copies, also while they are used: a file that is open stays."""
        if self.forget(dataset_id):
            return
        for path in (self._root / dataset_id).rglob("*"):
            if path.is_file():
                path.unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        sizes = {each: _size(self._root / each) for each in self.datasets()}
        taken = sum(sizes.values())
        for part in sorted(sizes, key=self._last_use):
            if taken + size <= self._limit:
                return
            if self.forget(part):
                taken -= sizes[part]
        if taken + size > self._limit:
            raise StorageFull(
                f"a part of {size} bytes does not fit: running jobs use {taken} of the {self._limit} bytes that this "
                "machine may keep (SCRIMP_CACHE_BYTES)"
            )

    def _last_use(self, dataset_id: str) -> float:
        try:
            return (self._root / LOCKS / f"{dataset_id}.use").stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def _open(self, name: str) -> int:
        folder = self._root / LOCKS
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @contextmanager
    def _locked(self, name: str, kind: int) -> Iterator[int]:
        lock = self._open(name)
        try:
            fcntl.flock(lock, kind)
            yield lock
        finally:
            os.close(lock)


def _size(folder: Path) -> int:
    size = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # removed meanwhile
            size += path.stat().st_size if path.is_file() else 0
    return size
