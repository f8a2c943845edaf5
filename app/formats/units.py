"""The keyed digests of a file's protected units (app.datasets.unit_files): a later block must have none of them.

A unit is a record, named by its content, or a user, named by its id. The file holds each unit once, 16 bytes, sorted:
it tells as much of the data as the parts do to somebody with the key, and without it how many units there are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from app.formats.damage import DataDamagedError
from app.formats.digests import DIGEST_BYTES, Keys
from app.formats.sealed import DataKey, Named, create, finish

USER = b"scrimp/user"
DIGEST = np.dtype(f"S{DIGEST_BYTES}")  # compared and sorted as bytes, which is the order of the words
AT_ONCE = 2**16  # digests in memory, of each of two files
UNREADABLE = "the units of a block cannot be read"
CHANGED = "the units of a block differ from the registered ones"


def of_users(users: Iterable[str], keys: Keys) -> NDArray[np.uint64]:
    """(users, 2): each user's digest under the key for contents."""
    joined = b"".join(
        hashlib.blake2b(user.encode(), digest_size=DIGEST_BYTES, key=keys.content, person=USER).digest()
        for user in users
    )
    return np.frombuffer(joined, dtype=">u8").astype(np.uint64).reshape(-1, 2)


def save(path: Path, words: NDArray[np.uint64], key: DataKey | None = None) -> str:
    """Writes digests (n, 2) as a new file of mode 0600, synced to disk. Returns the SHA-256 of its content.

    Args:
        key: seals it.
    """
    content = np.unique(words, axis=0).astype(">u8").tobytes()
    with create(path, key) as file:
        file.write(content)
        finish(file)
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class Saved:
    """A file of digests, as `save` wrote it."""

    file: Named
    sha256: str


def shared(some: Saved, others: Saved) -> int:
    """How many digests two files have in common: a merge of two sorted files, in memory of a few blocks of `AT_ONCE`.

    Raises:
        DataDamagedError: one is missing or differs from the registered one.
    """
    with _Sorted(some) as one, _Sorted(others) as other:
        found = 0
        while len(mine := one.front()) and len(theirs := other.front()):
            last = min(mine[-1], theirs[-1])
            mine, theirs = one.take(last), other.take(last)
            found += _common(mine, theirs)
        for each in (one, other):
            each.finish()
    return found


def _common(some: NDArray[np.bytes_], others: NDArray[np.bytes_]) -> int:
    """How many of some sorted digests are among other sorted ones."""
    if len(others) == 0:
        return 0
    places = np.minimum(np.searchsorted(others, some), len(others) - 1)
    return int(np.count_nonzero(others[places] == some))


class _Sorted:
    """A file's digests in their order, a block at a time; its hash is compared at its end."""

    def __init__(self, saved: Saved) -> None:
        self._sha256, self._hashed = saved.sha256, hashlib.sha256()
        self._block = self._last = np.empty(0, dtype=DIGEST)
        try:
            self._file = saved.file.open("rb")
        except OSError:
            raise DataDamagedError(UNREADABLE) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def front(self) -> NDArray[np.bytes_]:
        """The digests that were read and not taken; empty at the end of the file."""
        if len(self._block) == 0:
            try:
                content = self._file.read(AT_ONCE * DIGEST_BYTES)
            except OSError:
                raise DataDamagedError(UNREADABLE) from None
            self._hashed.update(content)
            if len(content) % DIGEST_BYTES:
                raise DataDamagedError(CHANGED)
            self._block = np.frombuffer(content, dtype=DIGEST)
            self._check_order()
        return self._block

    def _check_order(self) -> None:
        """Raises DataDamagedError unless the digests ascend: else a merge would not end."""
        ordered = np.append(self._last, self._block)
        if np.any(ordered[1:] <= ordered[:-1]):
            raise DataDamagedError(CHANGED)
        self._last = ordered[-1:]

    def take(self, last: np.bytes_) -> NDArray[np.bytes_]:
        """Takes the digests in front up to this one."""
        count = int(np.searchsorted(self._block, last, side="right"))
        taken, self._block = self._block[:count], self._block[count:]
        return taken

    def finish(self) -> None:
        """Reads the rest, and compares the hash of all.

        Raises:
            DataDamagedError: it differs.
        """
        while len(self.front()):
            self._block = self._block[:0]
        if self._hashed.hexdigest() != self._sha256:
            raise DataDamagedError(CHANGED)
