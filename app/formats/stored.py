"""A parsed part of a data set on disk: one NPZ file without pickle, written once; its hash is checked at each load.

    dense     x float32 (n, d), y (n,)
    sparse    CSR: indptr int64 (n + 1,), indices int32, data float32, shape int64 (2,), y (n,)
    pairs     users int32 (n,), items int32 (n,), sizes int64 (2,): how many of both are declared; y (n,)
    sequences items int32 (rows,), ends int64 (n,): where each record ends, size int64 (1,): how many items are declared
    texts     utf8 uint8 (bytes,), ends int64 (n,): where each text ends; y (n,)

y is the int64 index of the class, or a float64 target; 0 for a sequence, which is its own label. Where users are
protected, `user` int64 (n,) is the number of each record's user. A part may hold no record at all: its number of
records is private. Only numpy is needed here: the worker loads parts with this module.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import PermanentError


class DataDamagedError(PermanentError):
    """A stored part is missing or differs from the registered one."""

    code = "data-damaged"


@dataclass(frozen=True)
class Csr:
    """Rows of (indices, data) between consecutive entries of indptr."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    data: NDArray[np.float32]
    shape: tuple[int, int]


@dataclass(frozen=True)
class Pairs:
    """The row of each record's user and of its item, in lists of `sizes` rows."""

    users: NDArray[np.int32]
    items: NDArray[np.int32]
    sizes: tuple[int, int]

    @property
    def shape(self) -> tuple[int, int]:
        """(records, users + items): a pair is a vector with two ones."""
        return (len(self.users), sum(self.sizes))


@dataclass(frozen=True)
class Sequences:
    """The rows of each record's items, in order, in a list of `size` rows; one record after the other."""

    items: NDArray[np.int32]
    ends: NDArray[np.int64]
    size: int

    @property
    def shape(self) -> tuple[int, int]:
        """(records, items)."""
        return (len(self.ends), self.size)


@dataclass(frozen=True)
class Texts:
    """Texts one after the other, read by an extractor. Each counts as one feature."""

    utf8: NDArray[np.uint8]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Sequence[str]) -> Texts:
        """Packs texts into one array of UTF-8 bytes."""
        encoded = [text.encode() for text in texts]
        ends = np.cumsum([len(each) for each in encoded], dtype=np.int64)
        return cls(np.frombuffer(b"".join(encoded), dtype=np.uint8), ends)

    @property
    def shape(self) -> tuple[int, int]:
        """(records, 1)."""
        return (len(self.ends), 1)

    def texts(self) -> Iterator[str]:
        """The texts in the order of the records."""
        start = 0
        for end in self.ends.tolist():
            yield self.utf8[start:end].tobytes().decode()
            start = end


Features = NDArray[np.float32] | Csr | Pairs | Sequences | Texts


@dataclass(frozen=True)
class StoredPart:
    """Records in the order of the file. All of it is private if the data set is."""

    x: Features
    y: NDArray[np.int64] | NDArray[np.float64]
    user: NDArray[np.int64] | None = None

    @property
    def units(self) -> int:
        """The number of protected units: records, or users."""
        return len(self.y) if self.user is None else len(np.unique(self.user))

    @property
    def sparse(self) -> bool:
        """Returns True if the features are stored sparsely."""
        return isinstance(self.x, Csr | Pairs | Sequences)

    @property
    def shape(self) -> tuple[int, int]:
        """(records, features)."""
        return (int(self.x.shape[0]), int(self.x.shape[1]))


def save_part(path: Path, part: StoredPart) -> str:
    """Writes a new file of mode 0600, synced to disk. Returns its SHA-256."""
    arrays = _arrays(part.x)
    if part.user is not None:
        arrays["user"] = part.user
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b") as file:
        np.savez(file, allow_pickle=False, **arrays, y=part.y)
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()


def _arrays(x: Features) -> dict[str, NDArray[Any]]:
    if isinstance(x, Csr):
        shape = np.asarray(x.shape, dtype=np.int64)
        return {"indptr": x.indptr, "indices": x.indices, "data": x.data, "shape": shape}
    if isinstance(x, Pairs):
        return {"users": x.users, "items": x.items, "sizes": np.asarray(x.sizes, dtype=np.int64)}
    if isinstance(x, Sequences):
        return {"items": x.items, "ends": x.ends, "size": np.asarray([x.size], dtype=np.int64)}
    if isinstance(x, Texts):
        return {"utf8": x.utf8, "ends": x.ends}
    return {"x": x}


def load_part(path: Path | str, sha256: str) -> StoredPart:
    """Loads a part that `save_part` wrote; checks its hash before interpreting a byte.

    Raises:
        DataDamagedError: the file is missing or does not have this SHA-256.
    """
    try:
        with Path(path).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                raise DataDamagedError("a stored part of the data set differs from the registered one")
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                found = dict(arrays)
                return replace(_assembled(found), user=found.get("user"))
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
