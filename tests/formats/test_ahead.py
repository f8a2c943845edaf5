"""The kernel is told what is read next: the right ranges, few of them, and nothing changes in what is read."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.parts import read_ahead
from core.parts.blobs import Mapped, Unsealed, stored_ranges
from core.parts.part_files import save_part
from core.parts.part_reader import PartFile
from core.parts.read_ahead import GAP_BYTES, MOST_BYTES, MOST_RANGES, merged
from core.parts.sealed import CHUNK_BYTES, HEADER_BYTES, STORED_BYTES, DataKey
from tests.formats.test_part_files import KINDS, equal, part_of
from tests.formats.test_sealed import KEY

Ranges = list[tuple[int, int]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Ranges:
    """The ranges that the kernel is told."""
    found: Ranges = []

    def advise(descriptor: int, start: int, length: int, advice: int) -> None:
        assert os.fstat(descriptor).st_size >= start and advice == os.POSIX_FADV_WILLNEED
        found.append((start, start + length))

    monkeypatch.setattr(read_ahead.os, "posix_fadvise", advise)
    return found


def within(ranges: Ranges, wanted: Ranges) -> bool:
    """Whether each wanted range is in one of the others."""
    return all(any(a <= start and end <= b for a, b in ranges) for start, end in wanted)


def places(*of: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(of, dtype=np.int64)


def test_near_ranges_are_one_and_others_are_not() -> None:
    assert merged(places(), places()) == []
    assert merged(places(7), places(0)) == []
    assert merged(places(10 + GAP_BYTES, 0), places(5, 10)) == [(0, 15 + GAP_BYTES)]
    assert merged(places(11 + GAP_BYTES, 0), places(5, 10)) == [(0, 10), (11 + GAP_BYTES, 5)]
    assert merged(places(0, 5), places(100, 5)) == [(0, 100)], "one range within another"


def test_calls_and_bytes_are_bounded() -> None:
    many = np.arange(MOST_RANGES + 5, dtype=np.int64) * (GAP_BYTES + 2)
    assert merged(many, np.ones_like(many)) == [(start, 1) for start in many[:MOST_RANGES].tolist()]
    half = MOST_BYTES // 2
    three = np.arange(3, dtype=np.int64) * 2 * MOST_BYTES
    assert merged(three, np.full(3, half)) == [(0, half), (2 * MOST_BYTES, half)]


def test_ranges_of_content_lie_in_these_sealed_chunks() -> None:
    starts, lengths = stored_ranges(places(0, CHUNK_BYTES - 1, 5), places(CHUNK_BYTES, 2, 0))
    assert starts.tolist() == [HEADER_BYTES] * 3 and lengths.tolist() == [STORED_BYTES, 2 * STORED_BYTES, 0]


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "sealed"])
@pytest.mark.parametrize("kind", KINDS)
def test_all_that_is_read_is_announced(
    tmp_path: Path, told: Ranges, monkeypatch: pytest.MonkeyPatch, kind: str, key: DataKey | None
) -> None:
    """Chunks before they are checked; in a part that may be larger than the cache, then each place."""
    monkeypatch.setattr(read_ahead, "GAP_BYTES", 0)
    part, path = part_of(kind, 3000), tmp_path / "p"
    file = PartFile(path, save_part(path, part, key), key and key.key, again=True)
    numbers = np.random.default_rng(3).permutation(3000)[:40]
    file.announce(numbers)
    chunks = file._chunks[np.unique(numbers // file.layout.chunk_rows)]
    content = (chunks["offset"].astype(np.int64), chunks["length"].astype(np.int64))
    starts, lengths = content if key is None else stored_ranges(*content)
    assert told and within(told, list(zip(starts.tolist(), (starts + lengths).tolist(), strict=True)))
    first = file.rows(numbers)
    told.clear()
    file.announce(numbers)
    if key is None:  # a sealed chunk holds many places
        assert sum(end - start for start, end in told) < int(lengths.sum()), "places alone"

    asked: Ranges = []
    of: type[Mapped | Unsealed] = type(file._blob)
    gathered = of.gathered

    def noted(blob: Any, at: Any, sizes: Any) -> Any:
        sizes = np.broadcast_to(sizes, at.shape)
        begins, spans = (at, sizes) if key is None else stored_ranges(at, sizes)
        asked.extend(zip(begins[spans > 0].tolist(), (begins + spans)[spans > 0].tolist(), strict=True))
        assert within(told, asked), "read before it was announced"
        return gathered(blob, at, sizes)

    monkeypatch.setattr(of, "gathered", noted)
    assert equal(file.rows(numbers), first) and len(asked) >= len(numbers)


def test_in_a_part_that_fits_only_new_chunks_are_announced(tmp_path: Path, told: Ranges) -> None:
    part, path = part_of("dense", 3000), tmp_path / "p"
    file = PartFile(path, save_part(path, part))
    file.announce(np.arange(3000))
    assert len(told) == 1, "chunks in a row are one range"
    file.rows(np.arange(3000))
    file.announce(np.arange(3000))
    file.announce(np.empty(0, dtype=np.int64))
    assert len(told) == 1


def test_a_file_system_may_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: int) -> None:
        raise OSError(errno.EINVAL, "no")

    monkeypatch.setattr(read_ahead.os, "posix_fadvise", refused)
    part, path = part_of("dense", 10), tmp_path / "p"
    file = PartFile(path, save_part(path, part))
    file.announce(np.arange(10))
    assert equal(file.rows(np.arange(10)), part)
