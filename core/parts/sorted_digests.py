"""Sorts keyed digests out of core: a run in memory at a time, the runs on disk, merged by ranges of digests.

Digests are uniform, so a range of them holds its share of the different ones. A run holds each of its digests once,
with its count: however often a record is repeated, no range is larger than its share of all runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from core.disk import Room
from core.native.ascending import ascending
from core.parts.damage import DataDamagedError
from core.parts.sealed import DataKey, create, readable

RUN_ROWS = 2**19  # digests that are sorted together, at most 100 bytes each meanwhile
RANGE_BITS = 10  # the first bits of a digest name its range
RANGES = 2**RANGE_BITS
MERGED_ROWS = 2**17  # neighbouring ranges are merged together up to so many rows
STARTS = np.arange(RANGES, dtype=np.uint64) << np.uint64(64 - RANGE_BITS)
ROW_BYTES = 24  # a digest and its count


@dataclass(frozen=True)
class Ascending:
    """Different digests in ascending order.

    Attributes:
        digests: (n, 2) words.
        counts: int64 (n,), how often each one was added.
    """

    digests: NDArray[np.uint64]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, digests: NDArray[np.uint64], counts: NDArray[np.int64] | None = None) -> Ascending:
        """Sorts digests (n, 2), and adds the counts of equal ones; without counts, each one is counted once."""
        return cls(*ascending(digests, counts))

    def repeated(self) -> NDArray[np.uint64]:
        """(n, 2): each digest as often as it was added."""
        return np.repeat(self.digests, self.counts, axis=0)


class SortedDigests:
    """Digests that are added in any order, and read in ascending order.

    In memory are RUN_ROWS digests, 8 KiB a run, and, while they are read, 24 bytes × n / RANGES of one range or
    MERGED_ROWS rows, a few times. On disk are 24 bytes a digest, sealed as the parts are.

    Args:
        path: a new file, if there is more than one run; `remove` removes it.
        room: what to leave of the disk.
        key: seals the file.
    """

    def __init__(self, path: Path, *, room: Room | None = None, key: DataKey | None = None) -> None:
        self._path, self._room, self._key = path, room, key
        self._pending: list[NDArray[np.uint64]] = []
        self._waiting = 0
        self._bounds: list[NDArray[np.int64]] = []  # of each run in the file
        self._rows = 0
        self._file: BinaryIO | None = None
        self._last = Ascending.of(np.empty((0, 2), dtype=np.uint64))  # the run that stays in memory

    def add(self, digests: NDArray[np.uint64]) -> None:
        """Adds digests (n, 2).

        Raises:
            StorageFull: the disk's reserve begins.
        """
        self._pending.append(digests)
        self._waiting += len(digests)
        if self._waiting >= RUN_ROWS:
            self._write(self._run())

    def close(self) -> None:
        """Ends what is added; from here on it is read."""
        self._last = self._run()
        if self._file is not None:
            self._file.close()

    def remove(self) -> None:
        """Removes the file, if there is one."""
        if self._file is not None:
            self._file.close()
            self._path.unlink(missing_ok=True)

    def __iter__(self) -> Iterator[Ascending]:
        """All digests, a range at a time; after `close`, as often as wanted.

        Raises:
            DataDamagedError: the file was changed.
        """
        if self._file is None:
            yield self._last
            return
        bounds = np.array([*self._bounds, _bounds(self._last)])
        rows = np.cumsum(np.diff(bounds, axis=1).sum(axis=0))
        with readable(self._path, None if self._key is None else self._key.key).open("rb") as file:
            first = 0
            while first < RANGES:
                previous = rows[first - 1] if first else 0
                end = max(first + 1, int(np.searchsorted(rows, previous + MERGED_ROWS, side="right")))
                yield self._merged(file, bounds[:, first], bounds[:, end])
                first = end

    def _run(self) -> Ascending:
        run = Ascending.of(np.concatenate([np.empty((0, 2), dtype=np.uint64), *self._pending]))
        self._pending, self._waiting = [], 0
        return run

    def _write(self, run: Ascending) -> None:
        if self._file is None:
            self._file = create(self._path, self._key)
        if self._room is not None:
            self._room.require(self._path.parent)
        self._bounds.append(_bounds(run) + self._rows)
        self._rows += len(run.digests)
        self._file.write(np.column_stack([run.digests, run.counts.astype(np.uint64)]).tobytes())

    def _merged(self, file: BinaryIO, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Ascending:
        """The rows of a range: those of each run on disk, and of the last one."""
        parts = [np.column_stack([self._last.digests, self._last.counts.astype(np.uint64)])[starts[-1] : ends[-1]]]
        for start, end in zip(starts[:-1].tolist(), ends[:-1].tolist(), strict=True):
            file.seek(start * ROW_BYTES)
            content = file.read((end - start) * ROW_BYTES)
            if len(content) != (end - start) * ROW_BYTES:
                raise DataDamagedError("a temporary file was changed")
            parts.append(np.frombuffer(content, dtype=np.uint64).reshape(-1, 3))
        rows = np.concatenate(parts)
        return Ascending.of(rows[:, :2], rows[:, 2].astype(np.int64))


def _bounds(run: Ascending) -> NDArray[np.int64]:
    """(RANGES + 1,): where each range begins in a run, and its end."""
    return np.append(np.searchsorted(run.digests[:, 0], STARTS), len(run.digests))


def common(some: Iterable[Ascending], more_digests: Iterable[Ascending]) -> int:
    """How many of some digests are among others; repeated ones count as often as they are."""
    count, remaining = 0, iter(more_digests)
    other = next(remaining, None)
    for block in some:
        start = 0
        while other is not None and start < len(block.digests):
            if not len(other.digests):
                other = next(remaining, None)
                continue
            last = _as_bytes(other.digests[-1:])
            end = int(np.searchsorted(_as_bytes(block.digests), last, side="right")[0])
            same = np.isin(_as_bytes(block.digests[start:end]), _as_bytes(other.digests))
            count += int(np.sum(block.counts[start:end][same]))
            start = max(start, end)
            if start < len(block.digests):
                other = next(remaining, None)
    return count


def squares(sorted_digests: Iterable[Ascending]) -> int:
    """Σ (class size)² over classes of equal digests."""
    return sum(int(np.sum(block.counts**2)) for block in sorted_digests)


def _as_bytes(digests: NDArray[np.uint64]) -> NDArray[np.bytes_]:
    """Digests (n, 2) as byte strings, whose order is that of the words."""
    return np.frombuffer(digests.astype(">u8").tobytes(), dtype="S16")
