"""Keyed digests of records: they decide each record's side of the hold-out split, and detect content seen before.

A whole file's content is named by the sum of its records' elements (`MultisetHash`), which needs no memory of them.
Decision 39 has its theorem.

A record's digest is a keyed BLAKE2b of its own content (features and label) and of nothing else. Equal records
therefore fall on one side, whatever the other data and the order: changing one record changes one part by one record,
and the parts compose in parallel. Without the key nobody can compute a side or aim for it.
"""

from __future__ import annotations

import hashlib
import math
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.native import blake2b, record_columns
from core.parts.sealed import Named

DIGEST_BYTES = 16
ELEMENT_BYTES = 64
HASHED_BYTES = 2**20
RECORD, RECORDS, FILE = b"scrimp/record", b"scrimp/records", b"scrimp/file"
ELEMENT, MULTISET, SHA256 = b"scrimp/element", b"scrimp/multiset", b"scrimp/sha256"


@dataclass(frozen=True)
class Keys:
    """Derived from the service's data key for these purposes alone."""

    split: bytes
    content: bytes


@dataclass(frozen=True)
class Messages:
    """Byte strings, one after the other.

    Attributes:
        content: uint8, all of them.
        ends: int64 (n,): where each one ends.
    """

    content: NDArray[np.uint8]
    ends: NDArray[np.int64]

    @classmethod
    def joined(cls, messages: Iterable[bytes]) -> Messages:
        """Those of an iterable."""
        parts = list(messages)
        ends = np.cumsum(np.fromiter(map(len, parts), dtype=np.int64, count=len(parts)), dtype=np.int64)
        return cls(np.frombuffer(b"".join(parts), dtype=np.uint8), ends)

    def __iter__(self) -> Iterator[bytes]:
        start, content = 0, self.content.tobytes()
        for end in self.ends.tolist():
            yield content[start:end]
            start = end


def record_digests(messages: Messages, key: bytes) -> NDArray[np.uint64]:
    """(n, 2) big-endian words: each record's digest under a key, from its content. Private."""
    return keyed_digests(messages, key, RECORD)


def keyed_digests(messages: Messages, key: bytes, person: bytes) -> NDArray[np.uint64]:
    """(n, 2) big-endian words: each message's digest of DIGEST_BYTES."""
    digests = blake2b.keyed(messages.content, messages.ends, key=key, person=person, size=DIGEST_BYTES)
    return digests.view(">u8").astype(np.uint64)


def text_contents(texts: Sequence[str], labels: Iterable[bytes]) -> Iterator[bytes]:
    """The text as it is, before its n-grams are hashed."""
    for text, label in zip(texts, labels, strict=True):
        encoded = text.encode()
        yield b"t" + struct.pack("<Q", len(encoded)) + encoded + label


def number_contents(matrix: NDArray[Any], names: Sequence[str] | None, labels: Labels) -> Messages:
    """Little-endian float64 in the order of the columns' names: neither format nor order of columns matters.

    A tensor's features have no names and stay in their own order.
    """
    width = matrix.shape[1]
    order = np.argsort(np.array(names), kind="stable") if names else np.arange(width)
    numbers = matrix if matrix.dtype in (np.float32, np.float64) else matrix.astype(np.float64)
    begin = b"n" + struct.pack("<Q", width)
    return Messages(*record_columns.contents(numbers, order, begin, labels.padded, labels.lengths))


@dataclass(frozen=True)
class Labels:
    """What records' contents end with.

    Attributes:
        padded: uint8 (n, width), each label's bytes and zeros after them.
        lengths: int64 (n,), without the zeros.
    """

    padded: NDArray[np.uint8]
    lengths: NDArray[np.int64]

    def __iter__(self) -> Iterator[bytes]:
        for row, length in zip(self.padded, self.lengths.tolist(), strict=True):
            yield row[:length].tobytes()


def label_contents(targets: NDArray[Any], classes: Sequence[str] | None) -> Labels:
    """The class's text, because its index depends on the order of declaration; or float64."""
    if classes is not None:
        encoded = [b"c" + name.encode() for name in classes]
        lengths = np.array([len(each) for each in encoded], dtype=np.int64)
        width = int(lengths.max())
        table = np.frombuffer(b"".join(each.ljust(width, b"\0") for each in encoded), dtype=np.uint8)
        return Labels(table.reshape(-1, width)[targets], lengths[targets])
    values = np.ascontiguousarray(targets.astype("<f8") + 0.0).view(np.uint8).reshape(-1, 8)
    begin = np.full((len(values), 1), ord("r"), dtype=np.uint8)
    return Labels(np.hstack([begin, values]), np.full(len(values), 9, dtype=np.int64))


def in_holdout(split: NDArray[np.uint64], fraction: float) -> NDArray[np.bool_]:
    """True with probability `fraction`, over the key, for each distinct record of digests (n, 2):
    digest / 2⁶⁴ < fraction."""
    threshold = math.floor(Fraction(fraction) * 2**64)
    return split[:, 0] < np.uint64(threshold)


class MultisetHash:
    """One keyed hash of all records, in any order and in any pieces, repetitions counted. In memory: 64 bytes.

    With F(d) = BLAKE2b-512 of a record's digest d under the key, an integer below 2⁵¹²:

        H = BLAKE2b-256 under the key of (Σ F(d) mod 2⁵¹², n)

    Equal multisets of records have equal hashes, always: registered content is found again without any assumption.
    Others have equal ones with a probability below n·2⁻⁵¹² for a random F (decision 39). The sum stays in this process.
    """

    def __init__(self, key: bytes) -> None:
        self._key, self._sum, self.count = key, 0, 0

    def add(self, digests: NDArray[np.uint64]) -> None:
        """Adds records by their digests (n, 2)."""
        content = digests.astype(">u8").reshape(-1).view(np.uint8)
        ends = np.arange(1, len(digests) + 1, dtype=np.int64) * DIGEST_BYTES
        elements = blake2b.keyed(content, ends, key=self._key, person=ELEMENT, size=ELEMENT_BYTES)
        self.count += len(digests)
        self._sum = (self._sum + record_columns.sum_512(elements)) % 2 ** (8 * ELEMENT_BYTES)

    def hmac(self) -> str:
        """The hash, in hex."""
        content = self._sum.to_bytes(ELEMENT_BYTES, "little") + self.count.to_bytes(8, "little")
        return hashlib.blake2b(content, digest_size=32, key=self._key, person=MULTISET).hexdigest()


def records_hmac(ascending: Iterable[NDArray[np.uint64]], key: bytes) -> str:
    """What registrations before decision 39 stored in place of a `MultisetHash`: one keyed hash of all digests (n, 2)
    in ascending order, repetitions counted."""
    digest = hashlib.blake2b(digest_size=32, key=key, person=RECORDS)
    for digests in ascending:
        digest.update(digests.astype(">u8").tobytes())
    return digest.hexdigest()


@contextmanager
def file_sha256(path: Named) -> Iterator[Callable[[], str]]:
    """SHA-256 of a file's bytes: an un-noised function of the data, for the owner alone.

    Another thread computes it within the block, without Python's lock, and gives up at the block's end.

    The function waits for it. It raises OSError, or DataDamagedError where the file is sealed.
    """
    over = threading.Event()

    def digest() -> str:
        sha256 = hashlib.sha256()
        with path.open("rb") as file:
            while not over.is_set() and (block := file.read(HASHED_BYTES)):
                sha256.update(block)
        return sha256.hexdigest()

    with ThreadPoolExecutor(1, "hashes") as hasher:
        hashed = hasher.submit(digest)
        try:
            yield hashed.result
        finally:
            over.set()


def keyed_sha256(sha256: str, keys: Keys) -> str:
    """The name of a file's content by its hash."""
    return hashlib.blake2b(bytes.fromhex(sha256), digest_size=32, key=keys.content, person=SHA256).hexdigest()


def file_hmac(path: Named, keys: Keys) -> str:
    """What registrations before decision 39 stored in place of a `keyed_sha256`: one keyed hash of all bytes."""
    keyed = hashlib.blake2b(digest_size=32, key=keys.content, person=FILE)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            keyed.update(block)
    return keyed.hexdigest()
