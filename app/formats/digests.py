"""Keyed digests of records: they decide each record's side of the hold-out split, and detect content seen before.

A record's digest is a keyed BLAKE2b of its own content (features and label) and of nothing else. Equal records
therefore fall on one side, whatever the other data and the order: changing one record changes one part by one record,
and the parts compose in parallel. Without the key nobody can compute a side or aim for it.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.formats.columns import chunks
from app.formats.sealed import Named

DIGEST_BYTES = 16
SORTED_AT_ONCE = 2**20
PAIR = np.dtype([("first", "u8"), ("second", "u8")])
RECORD, RECORDS, FILE = b"scrimp/record", b"scrimp/records", b"scrimp/file"


@dataclass(frozen=True)
class Keys:
    """Derived from the service's data key for these purposes alone."""

    split: bytes
    content: bytes


@dataclass(frozen=True)
class RecordDigests:
    """(n, 2) big-endian words each, in the order of the records. Private."""

    split: NDArray[np.uint64]
    content: NDArray[np.uint64]


def record_digests(contents: Iterable[bytes], keys: Keys) -> RecordDigests:
    """The keyed digests of each record's content."""
    split, content = bytearray(), bytearray()
    first, second = _keyed(keys.split), _keyed(keys.content)
    for record in contents:
        split += first(record)
        content += second(record)
    return RecordDigests(_words(split), _words(content))


def content_digests(contents: Iterable[bytes], keys: Keys) -> NDArray[np.uint64]:
    """(n, 2): what tells records apart by their content."""
    return _words(bytearray().join(map(_keyed(keys.content), contents)))


def _keyed(key: bytes) -> Callable[[bytes], bytes]:
    """A record's digest under a key."""
    begun = hashlib.blake2b(digest_size=DIGEST_BYTES, key=key, person=RECORD)

    def digest(record: bytes) -> bytes:
        found = begun.copy()  # half the time of a new one
        found.update(record)
        return found.digest()

    return digest


def text_contents(texts: Sequence[str], labels: Sequence[bytes]) -> Iterator[bytes]:
    """The text as it is, before its n-grams are hashed."""
    for text, label in zip(texts, labels, strict=True):
        encoded = text.encode()
        yield b"t" + struct.pack("<Q", len(encoded)) + encoded + label


def number_contents(matrix: NDArray[Any], names: Sequence[str] | None, labels: Sequence[bytes]) -> Iterator[bytes]:
    """Little-endian float64 in the order of the columns' names: neither format nor order of columns matters.

    A tensor's features have no names and stay in their own order.
    """
    order = np.argsort(np.array(names), kind="stable") if names else slice(None)
    rest = iter(labels)
    width = 8 * matrix.shape[1]
    begin = b"n" + struct.pack("<Q", matrix.shape[1])
    for rows in chunks(matrix):
        content = (rows[:, order].astype("<f8") + 0.0).tobytes()  # −0 is 0
        for start in range(0, len(content), width):
            yield begin + content[start : start + width] + next(rest)


def label_contents(targets: NDArray[Any], classes: Sequence[str] | None) -> list[bytes]:
    """The class's text, because its index depends on the order of declaration; or float64."""
    if classes is not None:
        encoded = [b"c" + name.encode() for name in classes]
        return [encoded[i] for i in targets.tolist()]
    return [b"r" + struct.pack("<d", value + 0.0) for value in targets.tolist()]


def in_holdout(digests: RecordDigests, fraction: float) -> NDArray[np.bool_]:
    """True with probability `fraction`, over the key, for each distinct record: digest / 2⁶⁴ < fraction."""
    threshold = math.floor(Fraction(fraction) * 2**64)
    return digests.split[:, 0] < np.uint64(threshold)


def records_hmac(content: NDArray[np.uint64], keys: Keys) -> str:
    """One keyed hash of all records' content digests (n, 2) in any order, repetitions counted."""
    order = np.lexsort((content[:, 1], content[:, 0]))
    found = hashlib.blake2b(digest_size=32, key=keys.content, person=RECORDS)
    for start in range(0, len(order), SORTED_AT_ONCE):
        found.update(content[order[start : start + SORTED_AT_ONCE]].astype(">u8").tobytes())
    return found.hexdigest()


def squared_classes(content: NDArray[np.uint64]) -> int:
    """Σ (class size)² over classes of equal digests (n, 2), which a split puts on one side. Private.

    Digests are told apart by their first word.
    """
    words = np.sort(content[:, 0])
    starts = np.flatnonzero(np.concatenate(([True], words[1:] != words[:-1])))
    return int(np.sum(np.diff(np.append(starts, len(words))) ** 2))


def common(some: NDArray[np.uint64], others: NDArray[np.uint64]) -> int:
    """How many of some digests (n, 2) are among others."""
    one, other = (np.ascontiguousarray(words).view(PAIR)[:, 0] for words in (some, others))
    return int(np.count_nonzero(np.isin(one, other)))


def file_digests(path: Named, keys: Keys) -> tuple[str, str]:
    """SHA-256 (an un-noised function of the data: for the owner alone) and keyed hash of a file's bytes."""
    plain, keyed = hashlib.sha256(), hashlib.blake2b(digest_size=32, key=keys.content, person=FILE)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            plain.update(block)
            keyed.update(block)
    return plain.hexdigest(), keyed.hexdigest()


def _words(digests: bytearray) -> NDArray[np.uint64]:
    return np.frombuffer(digests, dtype=">u8").astype(np.uint64).reshape(-1, 2)
