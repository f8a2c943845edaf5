"""The keyed digests of a file's protected units (app.datasets.unit_files): a later block must have none of them.

A unit is a record, named by its content, or a user, named by its id. The file holds each unit once, 16 bytes, sorted:
it tells as much of the data as the parts do to somebody with the key, and without it how many units there are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.formats.damage import DataDamagedError
from app.formats.digests import DIGEST_BYTES, Keys
from app.formats.sealed import DataKey, content_of, create, finish

USER = b"scrimp/user"


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


def load(path: Path, sha256: str, key: bytes | None = None) -> NDArray[np.uint64]:
    """The digests of a file, (n, 2).

    Args:
        key: the data key, if it may be sealed.

    Raises:
        DataDamagedError: it is missing or differs from the registered one; or it is sealed under another key.
    """
    try:
        content = content_of(path, key)
    except OSError:
        raise DataDamagedError("the units of a block cannot be read") from None
    return of_bytes(content, sha256)


def of_bytes(content: bytes, sha256: str) -> NDArray[np.uint64]:
    """The digests in a file's content, (n, 2). Raises DataDamagedError if it differs from the registered one."""
    if hashlib.sha256(content).hexdigest() != sha256:
        raise DataDamagedError("the units of a block differ from the registered ones")
    return np.frombuffer(content, dtype=">u8").astype(np.uint64).reshape(-1, 2)
