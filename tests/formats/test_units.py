"""Digests of units are compared in a bounded memory, whatever their number, and never without their hash."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from core.parts import unit_digests
from core.parts.damage import DataDamagedError
from core.parts.sorted_digests import Ascending
from core.parts.unit_digests import Saved

VALUES = np.array([0, 1, 256, 2**56, 2**64 - 1], dtype=np.uint64)


def saved(folder: Path, name: str, words: NDArray[np.uint64]) -> Saved:
    return Saved(folder / name, unit_digests.save(folder / name, [Ascending.of(words)]))


def drawn(count: int, seed: int) -> NDArray[np.uint64]:
    return np.random.default_rng(seed).integers(0, 2**64, size=(count, 2), dtype=np.uint64)


@pytest.mark.parametrize("at_once", [1, 2, 3, 7, 2**16])
def test_common_digests_are_counted_whatever_the_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Few values, so that neighbours and ends of blocks are equal; bytes of zero at both ends of a digest."""
    monkeypatch.setattr(unit_digests, "AT_ONCE", at_once)
    draw = np.random.default_rng(at_once)
    for number in range(12):
        some, others = (draw.choice(VALUES, size=(size, 2)) for size in draw.integers(0, 30, 2))
        one, other = saved(tmp_path, f"{number}-some", some), saved(tmp_path, f"{number}-others", others)
        expected = len({*map(tuple, some.tolist())} & {*map(tuple, others.tolist())})
        assert unit_digests.shared(one, other) == unit_digests.shared(other, one) == expected


def test_memory_does_not_grow_with_the_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_digests, "AT_ONCE", 2**10)
    peaks = []
    for count in (20_000, 80_000):
        words = drawn(count, 0)
        some = saved(tmp_path, f"some-{count}", words)
        others = saved(tmp_path, f"others-{count}", np.concatenate([drawn(count // 2, 1), words[: count // 2]]))
        tracemalloc.start()
        assert unit_digests.shared(some, others) == count // 2
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks) < 16 * 16 * 2**10, "a few blocks of each file"
    assert peaks[1] < 1.2 * peaks[0]


def people(folder: Path, name: str, words: NDArray[np.uint64], numbers: list[int], kept: list[int]) -> Saved:
    path = folder / name
    return Saved(path, unit_digests.save_people(path, words, np.array(numbers, dtype=int), np.array(kept, dtype=int)))


@pytest.mark.parametrize("at_once", [1, 2, 3, 7, 2**16])
def test_people_are_looked_up_in_all_earlier_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """The number that the first file gave, and the sum of what all keep; also where digests end in zeros."""
    monkeypatch.setattr(unit_digests, "AT_ONCE", at_once)
    draw = np.random.default_rng(at_once)
    world = np.unique(np.concatenate([drawn(30, at_once), draw.choice(VALUES, size=(20, 2))]), axis=0)
    for trial in range(6):
        files, numbers, kept = list[Saved](), np.full(len(world), -1), np.zeros(len(world), dtype=int)
        for place in range(3):
            some = draw.permutation(len(world))[: draw.integers(0, len(world))]
            numbers[some] = np.where(numbers[some] < 0, place * 1000 + np.arange(len(some)), numbers[some])
            counts = draw.integers(0, 4, len(some))
            kept[some] += counts
            name = f"{trial}-{place}"
            files.append(people(tmp_path, name, world[some], numbers[some].tolist(), counts.tolist()))
        asked = draw.permutation(len(world))[: draw.integers(1, len(world))]
        found = unit_digests.known(world[asked], files)
        assert (found.numbers.tolist(), found.kept.tolist()) == (numbers[asked].tolist(), kept[asked].tolist())
        plain = saved(tmp_path, f"{trial}-plain", world[asked])
        assert unit_digests.shared(plain, files[0]) == unit_digests.shared(files[0], plain), (
            "a file of people beside one of units"
        )


def test_people_are_never_taken_from_another_file(tmp_path: Path) -> None:
    words = drawn(50, 0)
    good = people(tmp_path, "people", words, list(range(50)), [1] * 50)
    content = (tmp_path / "people").read_bytes()
    flipped = bytearray(content)
    flipped[-1] ^= 1
    for damaged in (content[:-32], content[:-5], bytes(flipped), b"", content[16:], content + content[-32:]):
        (tmp_path / "people").write_bytes(damaged)
        with pytest.raises(DataDamagedError):
            unit_digests.known(words[:3], [good])
    with pytest.raises(DataDamagedError, match="differ"):
        unit_digests.known(words[:3], [saved(tmp_path, "plain", words)])
    (tmp_path / "people").unlink()
    with pytest.raises(DataDamagedError, match="cannot be read"):
        unit_digests.known(words[:3], [good])


@pytest.mark.parametrize("which", ["some", "others"])
def test_a_changed_file_is_found_wherever_the_merge_ends(tmp_path: Path, which: str) -> None:
    """One file ends before the other is read: its rest counts too."""
    files = {"some": saved(tmp_path, "some", drawn(500, 0)), "others": saved(tmp_path, "others", drawn(3, 1))}
    path = tmp_path / which
    content = path.read_bytes()
    for damaged in (content[:-16], content[:-1] + bytes([content[-1] ^ 1]), content[:-3], b"", content + bytes(16)):
        path.write_bytes(damaged)
        with pytest.raises(DataDamagedError, match="differ"):
            unit_digests.shared(files["some"], files["others"])
    path.unlink()
    with pytest.raises(DataDamagedError, match="cannot be read"):
        unit_digests.shared(files["some"], files["others"])
