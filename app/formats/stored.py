"""A parsed part of a data set on disk: one NPZ file without pickle, written once, its hash checked when it is loaded.

    dense     x float32 (n, d), y (n,)
    sparse    CSR: indptr int64 (n + 1,), indices int32, data float32, shape int64 (2,), y (n,)

y is the int64 index of the class, or a float64 target. A part may hold no record at all: how many it holds is private.
Only numpy is needed here: the worker loads parts with this module.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import PermanentError


class DataDamagedError(PermanentError):
    """A stored part is missing or is not what was registered."""

    code = "data-damaged"


@dataclass(frozen=True)
class Csr:
    """Rows of (indices, data) between consecutive entries of indptr."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    data: NDArray[np.float32]
    shape: tuple[int, int]


@dataclass(frozen=True)
class StoredPart:
    """Records in the order of the file. Everything in it is private where the data set is."""

    x: NDArray[np.float32] | Csr
    y: NDArray[np.int64] | NDArray[np.float64]

    @property
    def sparse(self) -> bool:
        return isinstance(self.x, Csr)

    @property
    def shape(self) -> tuple[int, int]:
        """(records, features)."""
        return (int(self.x.shape[0]), int(self.x.shape[1]))


def save_part(path: Path, part: StoredPart) -> str:
    """Write a new file of mode 0600, synced to disk. Returns its SHA-256."""
    if isinstance(part.x, Csr):
        shape = np.asarray(part.x.shape, dtype=np.int64)
        arrays: dict[str, Any] = {
            "indptr": part.x.indptr,
            "indices": part.x.indices,
            "data": part.x.data,
            "shape": shape,
        }
    else:
        arrays = {"x": part.x}
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b") as file:
        np.savez(file, allow_pickle=False, **arrays, y=part.y)
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_part(path: Path | str, sha256: str) -> StoredPart:
    """The part that `save_part` wrote, hashed before a byte of it is interpreted.

    Raises:
        DataDamagedError: the file is missing or does not have this SHA-256.
    """
    try:
        with Path(path).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                raise DataDamagedError("a stored part of the data set is not what was registered")
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                return _assembled(dict(arrays))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        raise DataDamagedError("a stored part of the data set can not be read") from None


def _assembled(arrays: dict[str, NDArray[Any]]) -> StoredPart:
    y = arrays["y"]
    if "x" in arrays:
        return StoredPart(x=arrays["x"], y=y)
    rows, columns = (int(size) for size in arrays["shape"])
    return StoredPart(x=Csr(arrays["indptr"], arrays["indices"], arrays["data"], (rows, columns)), y=y)
