"""Stored parts as files: written as Arrow (core.parts.layout), read as Arrow or, from before, as NPZ.

A part of before is one NPZ file without pickle, and its hash is the file's SHA-256:

    dense     x float32 (n, d), y (n,)
    sparse    CSR: indptr int64 (n + 1,), indices int32, data float32, shape int64 (2,), y (n,)
    pairs     users int32 (n,), items int32 (n,), sizes int64 (2,): how many of both are declared; y (n,)
    sequences items int32 (rows,), ends int64 (n,): where each record ends, size int64 (1,): how many items are declared
    texts     utf8 uint8 (bytes,), ends int64 (n,): where each text ends; y (n,)
"""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.parts.damage import DataDamagedError
from core.parts.layout import ARROW, Layout, index_path
from core.parts.part_reader import PartFile
from core.parts.sealed import DataKey, Named, header_of, readable, require
from core.parts.stored_records import Csr, Pairs, Sequences, StoredPart, Texts


def save_part(path: Path, part: StoredPart, key: DataKey | None = None) -> str:
    """Writes a new file of mode 0600, and its index next to it, synced to disk. Returns the part's hash."""
    from core.parts.part_writer import PartWriter  # noqa: PLC0415 - pyarrow, for writing alone

    with PartWriter(path, Layout.of(part), key=key) as writer:
        writer.add(part)
        return writer.close()


def open_part(path: Path | str, sha256: str, key: bytes | None = None, *, again: bool = False) -> PartFile | None:
    """A part whose records are read on demand; None for one of before.

    Args:
        key: the data key, if it may be sealed.
        again: see PartFile.

    Raises:
        DataDamagedError: it is missing, or its index is not the registered one.
    """
    return PartFile(Path(path), sha256, key, again=again) if _is_arrow(Path(path), key) else None


def load_part(path: Path | str, sha256: str, key: bytes | None = None) -> StoredPart:
    """Loads a whole part; checks hashes before interpreting a record.

    Raises:
        DataDamagedError: the file is missing or does not have this hash; or it is sealed under another key.
    """
    part = open_part(path, sha256, key)
    return _from_npz(Path(path), sha256, key) if part is None else part.whole()


def count_of(path: Path | str, sha256: str, key: bytes | None = None) -> tuple[int, int]:
    """The numbers of a part's protected units and of its records, without loading it where its index tells. Raises
    like `load_part`."""
    part = open_part(path, sha256, key)
    if part is not None:
        return part.units, len(part)
    old = _from_npz(Path(path), sha256, key)
    return old.units, len(old.y)


def rename_part(path: Path, to: Path) -> None:
    """Renames a part within a folder. The index first: a part is there once its Arrow file is."""
    index_path(path).replace(index_path(to))
    path.replace(to)


def remove_part(path: Path) -> None:
    """Removes a part and its index, if they are there."""
    path.unlink(missing_ok=True)
    index_path(path).unlink(missing_ok=True)


def _is_arrow(path: Path, key: bytes | None) -> bool:
    try:
        with _readable(path, key).open("rb") as file:
            return file.read(len(ARROW)) == ARROW
    except OSError:
        raise DataDamagedError("a stored part of the data set cannot be read") from None


def _readable(path: Path, key: bytes | None) -> Named:
    return path if header_of(path) is None else readable(path, require(key))


def _from_npz(path: Path, sha256: str, key: bytes | None) -> StoredPart:
    try:
        with _readable(path, key).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                raise DataDamagedError("a stored part of the data set differs from the registered one")
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                columns = dict(arrays)
                return replace(_assembled(columns), user=columns.get("user"))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        raise DataDamagedError("a stored part of the data set cannot be read") from None


def _assembled(arrays: dict[str, NDArray[Any]]) -> StoredPart:
    y = arrays["y"]
    if "x" in arrays:
        return StoredPart(x=arrays["x"], y=y)
    if "utf8" in arrays:
        return StoredPart(x=Texts(arrays["utf8"], arrays["ends"]), y=y)
    if "ends" in arrays:
        return StoredPart(x=Sequences(arrays["items"], arrays["ends"], int(arrays["size"][0])), y=y)
    if "users" in arrays:
        users, items = (int(size) for size in arrays["sizes"])
        return StoredPart(x=Pairs(arrays["users"], arrays["items"], (users, items)), y=y)
    rows, columns = (int(size) for size in arrays["shape"])
    return StoredPart(x=Csr(arrays["indptr"], arrays["indices"], arrays["data"], (rows, columns)), y=y)
