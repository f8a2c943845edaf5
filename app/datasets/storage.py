"""The layout of data sets under the storage root; with a bucket that of files that arrive, under its `arrivals`. Files
arrive there completely or not at all.

staging/<random>/     a file and the parts parsed from it; gone when the request ends, whatever happened
                      `file`, `holdout_file`, `edges_file`: as they arrived; with the ending .sealed they are sealed
                      (core.parts.sealed)
reading/<id>/         the files of a registration that is read in the background; gone when that ends
uploads/              files that arrive in pieces (app.datasets.resumable)
datasets/<id>/        the parts of a registered data set, never changed (app.storage.parts; with a bucket they lie
there)
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from app.datasets import class_folders
from app.storage.seals import Seals
from core.disk import LOOK_BYTES, Room
from core.errors import InvalidRequest, too_large
from core.ids import new_id
from core.parts.sealed import DataKey, create

PARTS = "parts"
SEALED = ".sealed"
COPY_BYTES = 1 << 20


@contextmanager
def staging(root: Path) -> Iterator[Path]:
    """A folder that only this process can read, removed at the end."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    (root / "staging").mkdir(mode=0o700, exist_ok=True)
    folder = root / "staging" / new_id("in")
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def place(folder: Path, name: str, *, sealed: bool) -> Path:
    """Where a file that arrives is put. Its name tells that it is sealed, since whoever sends it chooses its bytes."""
    return folder / (name + SEALED if sealed else name)


def arrived(folder: Path, name: str) -> Path:
    """Where a file that arrived lies; where it would lie in plaintext, if it did not."""
    named_file = place(folder, name, sealed=True)
    return named_file if named_file.exists() else place(folder, name, sealed=False)


def names(folder: Path) -> set[str]:
    """The names of the files that arrived."""
    return {each.name.removesuffix(SEALED) for each in folder.iterdir()}


def key_of(seals: Seals, file: Path) -> bytes | None:
    """The data key of a file that arrived; None if it is in plaintext.

    Raises:
        KeyMissing, DataDamagedError: as `Seals.key_of`.
    """
    key = seals.key_of(file) if file.name.endswith(SEALED) else None
    return None if key is None else key.key


def copy_from_data_root(
    data_root: Path | None,
    path: str,
    pointer: str,
    target: Path,
    limit_bytes: int,
    room: Room,
    key: DataKey | None = None,
) -> None:
    """Copies a regular file from under the data root. Follows links that stay inside the root.

    A copy, so that hashing, parsing and storing use one content even if the original changes meanwhile.

    Args:
        room: what the copy leaves of the disk.
        key: seals the copy.

    Raises:
        InvalidRequest: there is no data root, or no such file under it. The error is the same for files outside.
        TooLarge: it is larger than `limit_bytes`.
        StorageFull: the disk has no room for it; known before the copy unless others write.
    """
    with _original(data_root, path, pointer) as original:
        room.require(target.parent, _size(original, limit_bytes))
        _copy(original, target, limit_bytes, room, key)


def size_under_data_root(data_root: Path | None, path: str, pointer: str, limit_bytes: int) -> int:
    """The bytes of a file that `copy_from_data_root` would copy. Raises like it, but for StorageFull."""
    with _original(data_root, path, pointer) as original:
        return _size(original, limit_bytes)


def pack_from_data_root(
    data_root: Path | None,
    path: str,
    pointer: str,
    target: Path,
    limit_bytes: int,
    room: Room,
    key: DataKey | None = None,
) -> None:
    """Packs a folder of folders of files into a tar archive; otherwise like `copy_from_data_root`."""
    folder = folder_under_data_root(data_root, path)
    if folder is None:
        raise InvalidRequest.at(pointer, "there is no such folder under the data root")
    room.require(target.parent, class_folders.size(folder, limit_bytes))
    with create(target, key, "raw") as archive:
        class_folders.pack(folder, archive, limit_bytes)


def folder_under_data_root(data_root: Path | None, path: str) -> Path | None:
    """The folder under the data root with this path; None if there is none."""
    if data_root is None:
        return None
    root = data_root.resolve()
    try:
        folder = (root / path).resolve(strict=True)
        return folder if folder != root and folder.is_relative_to(root) and folder.is_dir() else None
    except (OSError, ValueError, RuntimeError):
        return None


def _original(data_root: Path | None, path: str, pointer: str) -> BinaryIO:
    if data_root is None:
        raise InvalidRequest.at(pointer, "this service has no data root and reads no files by path: upload the file")
    root = data_root.resolve()
    try:
        file = (root / path).resolve(strict=True)
        if not file.is_relative_to(root):
            raise FileNotFoundError
        return open(file, "rb", opener=_opener)  # Path.open takes no opener
    except (OSError, ValueError, RuntimeError):
        raise InvalidRequest.at(pointer, "there is no such file under the data root") from None


def _size(original: BinaryIO, limit_bytes: int) -> int:
    size = os.fstat(original.fileno()).st_size
    if size > limit_bytes:
        raise too_large(limit_bytes)
    return size


def _copy(original: BinaryIO, target: Path, limit_bytes: int, room: Room, key: DataKey | None) -> None:
    """Copies a file that may grow meanwhile, while other writers take the disk's space too."""
    with create(target, key, "raw") as copy:
        copied = 0
        while block := original.read(COPY_BYTES):
            copied += len(block)
            if copied > limit_bytes:
                raise too_large(limit_bytes)
            if copied % LOOK_BYTES < len(block):
                room.require(target.parent)
            copy.write(block)


def _opener(path: str, flags: int) -> int:
    """Opens a regular file. Refuses links put in place since the path was resolved, and does not wait on a pipe."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError
    return descriptor
