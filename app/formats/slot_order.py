"""Private parts that stay on disk: records in the order of secret, uniformly random slots.

A part's n records take n of its N public slots, by a uniformly random injection that is drawn once, from the system's
random bits, and serves all jobs (docs/theorems.md, "A record has a place of its own"). Records are stored in the order
of their slots, so a full batch reads the file from its begin to its end. Empty slots are not stored.

An injection is a set of n slots and an order of n records. Both are drawn, independently and uniformly: the set by
`random_slots`, the order by sorting the records by random keys. A key's first bits divide the records into buckets on
disk, again and again until a bucket fits in memory, where 128 further bits sort it. Bits are independent, so they are
drawn when they are needed, and forgotten then: no file holds a key. Rao (1961) and Sandelius (1962) shuffle so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from core.disk import Room
from core.parts.layout import Layout
from core.parts.part_files import remove_part
from core.parts.part_pieces import cut, joined, taken
from core.parts.part_reader import PartFile
from core.parts.part_writer import PartWriter
from core.parts.sealed import DataKey
from core.parts.stored_records import SlotColumn, StoredPart

Source = Callable[[int], bytes]  # so many random bytes, independent and uniform

BUCKETS = 64  # of one division: it divides 256, so a byte's remainder is uniform
SORTED_BYTES = 2**25  # a bucket up to this size is sorted in memory, which takes a few times as much
DRAWN = 2**20  # slots that are drawn, or read from a mask, at once
FEW = 1 / 16  # of the slots: a smaller share of occupied ones is drawn without a mask of all slots


class RandomSlots:
    """A uniformly random set of `count` of the slots, ascending: each set with probability 1 / C(slots, count).

    Slots are drawn independently and uniformly until `count` different ones have come up: no round draws more than
    lack, so none is left over. A permutation of all slots changes no probability of these draws, nor when they end. So
    sets of one size, which are permuted into each other, are equally likely. If most slots are occupied, the empty ones
    are drawn. All numbers are integers, and `_uniform` is exact.

    In memory: a byte a slot; or, of few, 8 bytes a record, and a few times that while they are drawn.

    Args:
        count: n ≤ slots.
        source: the random bytes.
    """

    def __init__(self, count: int, slots: int, source: Source = os.urandom) -> None:
        if not 0 <= count <= slots:
            raise ValueError("there are more records than slots")
        self._mask, self._at = np.zeros(0, dtype=np.bool_), 0
        self._ready = np.empty(0, dtype=np.int64)
        if count < FEW * slots:
            while len(self._ready) < count:
                drawn = _uniform(count - len(self._ready), slots, source)
                self._ready = np.union1d(self._ready, drawn)
            return
        self._mask, fewest = np.zeros(slots, dtype=np.bool_), min(count, slots - count)
        while lack := fewest - int(np.count_nonzero(self._mask)):
            self._mask[_uniform(min(lack, DRAWN), slots, source)] = True
        if fewest != count:
            np.logical_not(self._mask, out=self._mask)

    def next(self, count: int) -> NDArray[np.int64]:
        """The following slots, as many as there are records. Raises ValueError if fewer are left."""
        while len(self._ready) < count:
            if self._at >= len(self._mask):
                raise ValueError("there are more records than slots")
            drawn = np.flatnonzero(self._mask[self._at : self._at + DRAWN]) + self._at
            self._ready = np.concatenate([self._ready, drawn])
            self._at += DRAWN
        following, self._ready = self._ready[:count], self._ready[count:]
        return following


def random_slots(count: int, slots: int, source: Source = os.urandom) -> NDArray[np.int64]:
    """All of `RandomSlots` at once.

    >>> random_slots(3, 3)
    array([0, 1, 2])
    """
    return RandomSlots(count, slots, source).next(count)


def _uniform(count: int, below: int, source: Source) -> NDArray[np.int64]:
    """`count` independent numbers, each exactly uniform on 0 … below − 1: remainders of 64 random bits below the
    largest multiple of `below` ≤ 2⁶⁴; others are drawn again."""
    last = np.uint64(2**64 - 2**64 % below - 1)
    words = np.empty(0, dtype=np.uint64)
    while len(words) < count:
        words_drawn = np.frombuffer(source(8 * (count - len(words))), dtype="<u8")
        words = np.concatenate([words, words_drawn[words_drawn <= last]])
    return (words % np.uint64(below)).astype(np.int64)


def random_order(count: int, source: Source = os.urandom) -> NDArray[np.int64]:
    """Returns a uniformly random permutation of 0 … count − 1: numbers sorted by 128 random bits each.

    Two of them tie with a probability below count²/2¹²⁹: below 2⁻⁶⁵ for 2³² records. The last 64 bits decide between
    numbers whose first 64 are equal, and are drawn for no other.
    """
    first = np.frombuffer(source(8 * count), dtype="<u8")
    order = np.argsort(first)
    ordered = first[order]
    if not np.any(ordered[1:] == ordered[:-1]):
        return order
    second = np.frombuffer(source(8 * count), dtype="<u8")
    return np.lexsort((second, first))


@dataclass(frozen=True)
class Bucket:
    """Records in a temporary part."""

    path: Path
    sha256: str

    def open(self, key: DataKey | None) -> PartFile:
        """The records."""
        return PartFile(self.path, self.sha256, None if key is None else key.key)


class SlotWriter:
    """A new part whose records are stored in the order of their slots. Used as a PartWriter.

    In memory are at most BUCKETS times what a PartWriter holds back, a few times SORTED_BYTES, and what RandomSlots
    says. On disk the records are there once more until they are sorted, sealed as the part is.

    Args:
        path: a new file. Temporary files next to it begin with its name.
        layout: what every added piece must be, without slots.
        slots: N, public. Of more records than slots none gets a slot: they are stored without, and a registration
            refuses them.
        room, key: see PartWriter.
        source: the random bytes.

    Raises:
        OSError, StorageFull: see PartWriter.
    """

    def __init__(
        self,
        path: Path,
        layout: Layout,
        slots: int,
        *,
        room: Room | None = None,
        key: DataKey | None = None,
        source: Source = os.urandom,
    ) -> None:
        self._path, self._layout, self._slots = path, layout, slots
        self._room, self._key, self._source = room, key, source
        self.rows = 0
        self._buckets = self._division(path)
        self._pending: list[StoredPart] = []  # a division of many records costs little more than one of few
        self._pending_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for bucket in self._buckets:
            bucket.__exit__(kind, error, trace)

    def add(self, part: StoredPart) -> None:
        """Adds records in any order. Raises as PartWriter.add."""
        self.rows += len(part.y)
        self._pending.append(part)
        self._pending_bytes += part.nbytes
        if self._pending_bytes >= SORTED_BYTES // 4:
            self._divide_pending()

    def close(self) -> str:
        """Writes the part. Returns its hash."""
        self._divide_pending()
        slots = RandomSlots(self.rows, self._slots, self._source) if self.rows <= self._slots else None
        layout = replace(self._layout, slots=None if slots is None else self._slots)
        with PartWriter(self._path, layout, room=self._room, key=self._key) as writer:
            for part in self._ordered(self._closed(self._path, self._buckets)):
                column = None if slots is None else SlotColumn(slots.next(len(part.y)), self._slots)
                writer.add(replace(part, slot=column))
            return writer.close()

    def _ordered(self, buckets: Iterable[Bucket]) -> Iterator[StoredPart]:
        """All records of the buckets, each bucket's in random order. Removes each bucket once it is in memory."""
        for bucket in buckets:
            file = bucket.open(self._key)
            if bucket.path.stat().st_size <= SORTED_BYTES or len(file) <= 1:
                part = taken(file.whole(), random_order(len(file), self._source))
                remove_part(bucket.path)
                yield part
                continue
            smaller = self._division(bucket.path)
            for part in file.chunks():
                self._divide(part, smaller)
            remove_part(bucket.path)
            yield from self._ordered(self._closed(bucket.path, smaller))

    def _division(self, path: Path) -> list[PartWriter]:
        return [PartWriter(each, self._layout, room=self._room, key=self._key, temporary=True) for each in _names(path)]

    def _divide_pending(self) -> None:
        if self._pending:
            self._divide(joined(self._pending), self._buckets)
            self._pending, self._pending_bytes = [], 0

    def _divide(self, part: StoredPart, buckets: list[PartWriter]) -> None:
        """Adds each record to a uniformly random bucket."""
        bucket = np.frombuffer(self._source(len(part.y)), dtype=np.uint8) % BUCKETS
        by_bucket = taken(part, np.argsort(bucket, kind="stable"))
        ends = np.cumsum(np.bincount(bucket, minlength=BUCKETS))
        for writer, start, end in zip(buckets, np.append(0, ends), ends, strict=False):
            writer.add(cut(by_bucket, int(start), int(end)))

    def _closed(self, path: Path, buckets: list[PartWriter]) -> list[Bucket]:
        return [Bucket(name, each.close()) for name, each in zip(_names(path), buckets, strict=True)]


def _names(path: Path) -> list[Path]:
    """The buckets of a file."""
    return [path.with_name(f"{path.name}.{number}") for number in range(BUCKETS)]
