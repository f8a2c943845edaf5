"""Keyed BLAKE2b of many messages: compiled, several at once, or by hashlib, to the same bits."""

from __future__ import annotations

import ctypes
import hashlib

import numpy as np
from numpy.typing import NDArray

from core.native.library import INSTALLED, Library

BLOCK_BYTES, MOST_BYTES, PERSON_BYTES = 128, 64, 16  # of a block, a key or a digest, a person


class Blake2b:
    """The compiled digests of one library. Threads may share it; calls release the interpreter's lock."""

    def __init__(self, library: Library) -> None:
        self._path, self._digests = library.number, library.opened.scrimp_blake2b
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self._digests.argtypes = [
            ctypes.c_int, ctypes.c_char_p, number, ctypes.c_char_p, pointer, pointer, number, number, pointer
        ]  # fmt: skip
        self._digests.restype = number

    def digests(
        self, content: NDArray[np.uint8], ends: NDArray[np.int64], key: bytes, person: bytes, size: int
    ) -> NDArray[np.uint8]:
        """As `keyed`."""
        content, ends = np.ascontiguousarray(content), np.ascontiguousarray(ends)
        out = np.empty((len(ends), size), dtype=np.uint8)
        padded = key.ljust(BLOCK_BYTES, b"\0"), len(key), person.ljust(PERSON_BYTES, b"\0")
        messages = content.ctypes.data, ends.ctypes.data, len(ends)
        if self._digests(self._path, *padded, *messages, size, out.ctypes.data) < 0:
            raise ValueError("the library lacks this path")
        return out


COMPILED = None if INSTALLED is None else Blake2b(INSTALLED)


def keyed(
    content: NDArray[np.uint8], ends: NDArray[np.int64], *, key: bytes, person: bytes, size: int
) -> NDArray[np.uint8]:
    """(n, size): the digests of messages, as hashlib.blake2b computes each.

    Args:
        content: uint8, all messages, one after the other.
        ends: int64 (n,), ascending: where each one ends.
        key, person, size: of hashlib.blake2b; a key has 1 to 64 bytes.

    Raises:
        ValueError: the ends do not ascend within the content, or a parameter has another length.
    """
    if content.dtype != np.uint8 or ends.dtype != np.int64 or content.ndim != 1 or ends.ndim != 1:
        raise ValueError("messages are bytes and where each one ends")
    if len(ends) and (ends[0] < 0 or ends[-1] > len(content) or np.any(np.diff(ends) < 0)):
        raise ValueError("messages end one after the other, within the content")
    if not (0 < len(key) <= MOST_BYTES and len(person) <= PERSON_BYTES and 0 < size <= MOST_BYTES):
        raise ValueError("a key has 1 to 64 bytes, a digest too, and a person at most 16")
    if COMPILED is not None:
        return COMPILED.digests(content, ends, key, person, size)
    return by_hashlib(content, ends, key, person, size)


def by_hashlib(
    content: NDArray[np.uint8], ends: NDArray[np.int64], key: bytes, person: bytes, size: int
) -> NDArray[np.uint8]:
    """As `keyed`, a message at a time."""
    begun, content_bytes, out, start = (
        hashlib.blake2b(digest_size=size, key=key, person=person),
        content.tobytes(),
        [],
        0,
    )
    for end in ends.tolist():
        message = begun.copy()  # half the time of a new one
        message.update(content_bytes[start:end])
        out.append(message.digest())
        start = end
    return np.frombuffer(b"".join(out), dtype=np.uint8).reshape(-1, size)
