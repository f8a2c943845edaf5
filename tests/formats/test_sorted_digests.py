"""Digests that are sorted out of core, and the sum that names all records: as an answer in memory says."""

from __future__ import annotations

import hashlib
import tracemalloc
from collections import Counter
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from core.parts import sorted_digests
from core.parts.digests import Messages, MultisetHash, label_contents, number_contents, record_digests
from core.parts.sealed import WRAP_BYTES, DataKey
from core.parts.sorted_digests import SortedDigests, common, squares

KEY = b"k" * 32
SEAL = DataKey(bytes(32), bytes(WRAP_BYTES))
DIGESTS, COUNTS = attrgetter("digests"), attrgetter("counts")


def drawn(count: int, different: int, seed: int) -> NDArray[np.uint64]:
    """Digests of which some share their first word, and with it their range."""
    draw = np.random.default_rng(seed)
    pool = draw.integers(0, 2**64, size=(different, 2), dtype=np.uint64)
    pool[: different // 3, 0] = pool[0, 0]
    return pool[draw.integers(0, different, count)]


def added(path: Path, digests: NDArray[np.uint64], key: DataKey | None = None) -> SortedDigests:
    found = SortedDigests(path, key=key)
    for start in range(0, len(digests), 37):
        found.add(digests[start : start + 37])
    found.close()
    return found


@pytest.mark.parametrize(("run", "merged"), [(40, 1), (100, 150), (10**6, 10**6)])
@pytest.mark.parametrize("different", [1, 3, 50, 5000])
@pytest.mark.parametrize("key", [None, SEAL], ids=["plain", "sealed"])
def test_runs_on_disk_give_what_memory_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: int, merged: int, different: int, key: DataKey | None
) -> None:
    monkeypatch.setattr(sorted_digests, "RUN_ROWS", run)
    monkeypatch.setattr(sorted_digests, "MERGED_ROWS", merged)
    digests, others = drawn(1500, different, 1), drawn(300, 7, 2)
    others[::2] = digests[:150]
    counts = Counter(map(tuple, digests.tolist()))
    some, other = added(tmp_path / "some", digests, key), added(tmp_path / "other", others, key)
    for _ in range(2):  # it is read as often as wanted
        blocks = list(some)
        rows, numbers = ([row for block in blocks for row in part(block).tolist()] for part in (DIGESTS, COUNTS))
        found = [(*row, count) for row, count in zip(rows, numbers, strict=True)]
        assert found == [(*digest, counts[digest]) for digest in sorted(counts)]
    assert squares(some) == sum(count**2 for count in counts.values())
    assert common(some, other) == sum(tuple(each) in set(map(tuple, others.tolist())) for each in digests.tolist())
    assert common(other, some) == sum(tuple(each) in counts for each in others.tolist())
    some.remove()
    other.remove()
    assert not list(tmp_path.iterdir())


def test_nothing_is_sorted_too(tmp_path: Path) -> None:
    empty, some = added(tmp_path / "e", drawn(0, 1, 0)), added(tmp_path / "s", drawn(5, 5, 0))
    assert (common(empty, some), common(some, empty), squares(empty)) == (0, 0, 0)


@pytest.mark.parametrize("different", [1, 200, 10**6])
def test_memory_does_not_grow_with_the_digests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, different: int) -> None:
    monkeypatch.setattr(sorted_digests, "RUN_ROWS", 2000)
    monkeypatch.setattr(sorted_digests, "MERGED_ROWS", 2000)
    peaks = []
    for count in (20_000, 80_000):
        digests = drawn(count, different, 3)
        digests[:, 0] = digests[:, 1]  # a range each again
        tracemalloc.start()
        found = added(tmp_path / f"{count}", digests)
        assert sum(int(each.counts.sum()) for each in found) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    runs = 80_000 // 2000
    assert peaks[1] < 1.2 * peaks[0] + runs * 8 * (sorted_digests.RANGES + 1) * 3, "8 KiB a run"


def element(digest: bytes) -> int:
    hashed = hashlib.blake2b(digest, digest_size=64, key=KEY, person=b"scrimp/element").digest()
    return int.from_bytes(hashed, "little")


@given(st.lists(st.binary(max_size=4), max_size=12), st.integers(1, 5), st.randoms(use_true_random=False))
def test_the_sum_names_a_multiset(records: list[bytes], pieces: int, random: object) -> None:
    """In any order and in any pieces; by Python's integers."""
    expected = sum(
        element(hashlib.blake2b(each, digest_size=16, key=KEY, person=b"scrimp/record").digest()) for each in records
    )
    content = (expected % 2**512).to_bytes(64, "little") + len(records).to_bytes(8, "little")
    hmac = hashlib.blake2b(content, digest_size=32, key=KEY, person=b"scrimp/multiset").hexdigest()
    random.shuffle(records)  # type: ignore[attr-defined]
    found = MultisetHash(KEY)
    for start in range(0, len(records), pieces):
        found.add(record_digests(Messages.joined(records[start : start + pieces]), KEY))
    assert found.hmac() == hmac
    more = MultisetHash(KEY)
    more.add(record_digests(Messages.joined([*records, b"one more"]), KEY))
    assert more.hmac() != hmac


def test_labels_of_several_lengths_leave_no_padding() -> None:
    labels = label_contents(np.array([0, 2, 1]), ["a", "bcd", ""])
    assert list(labels) == [b"ca", b"c", b"cbcd"]
    matrix = np.array([[1.0, -0.0], [2.0, np.nan], [3.0, 4.0]])
    found = list(number_contents(matrix, ["z", "b"], labels))
    assert found[0] == b"n" + (2).to_bytes(8, "little") + np.array([0.0, 1.0]).tobytes() + b"ca"
    assert found[1].endswith(np.array([2.0]).tobytes() + b"c") and found[2].endswith(b"cbcd")
    assert not list(number_contents(matrix[:0], None, label_contents(np.array([]), None)))
