"""Parts in the order of secret slots: the law of slots and orders, what is stored, and what does not depend on it."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from app.formats import slot_order
from app.formats.slot_order import RandomSlots, SlotWriter, Source, random_order, random_slots
from core.contracts import memory
from core.contracts.slots import PartSlots, Slots
from core.parts import part_writer
from core.parts.layout import Layout, index_path
from core.parts.part_files import count_of, load_part, remove_part, save_part
from core.parts.part_pieces import cut, joined, taken
from core.parts.part_reader import PartFile
from core.parts.sealed import WRAP_BYTES, DataKey, header_of
from core.parts.stored_records import SlotColumn, StoredPart
from tests.formats.files import TEXT, parsed, spec, write
from tests.formats.test_part_files import KINDS, equal, part_of
from tests.formats.test_streaming import USERS, rows_of

KEY = DataKey(bytes(range(32)), b"w" * WRAP_BYTES)


def seeded(seed: int) -> Source:
    """Random bytes that a test can repeat."""
    return np.random.default_rng(seed).bytes


def write_sorted(
    path: Path, part: StoredPart, slots: int, source: Source = os.urandom, key: DataKey | None = None, at_once: int = 97
) -> str:
    """Writes a part in the order of slots, in small additions. Returns its hash."""
    with SlotWriter(path, Layout.of(part), slots, key=key, source=source) as writer:
        for start in range(0, max(1, len(part.y)), at_once):
            writer.add(cut(part, start, min(start + at_once, len(part.y))))
        return writer.close()


def numbered(n: int) -> StoredPart:
    """Records whose label is their number in the file."""
    return StoredPart(np.arange(2 * n, dtype=np.float32).reshape(n, 2), np.arange(n))


# --- The law ---


@pytest.mark.parametrize(("count", "slots"), [(0, 5), (1, 40), (2, 7), (3, 6), (5, 7), (7, 7), (2, 40), (0, 0)])
def test_each_set_of_slots_is_equally_likely(count: int, slots: int) -> None:
    """Also where few, half, or nearly all slots are occupied: each is drawn in its own way."""
    source, sets = seeded(count), list(combinations(range(slots), count))
    found = Counter(tuple(random_slots(count, slots, source).tolist()) for _ in range(15 * len(sets)))
    assert set(found) <= set(sets)
    if len(sets) > 1:
        assert stats.chisquare([found[each] for each in sets]).pvalue > 1e-6


def test_slots_ascend_and_differ_and_the_system_draws_others_each_time() -> None:
    for count, slots in ((1000, 1100), (1000, 10**4), (1000, 525_000_000), (20, 10**13)):
        one, other = random_slots(count, slots), random_slots(count, slots)
        assert len(one) == count and (np.diff(one) > 0).all() and one[0] >= 0 and one[-1] < slots
        assert one.tolist() != other.tolist()
    with pytest.raises(ValueError, match="more records than slots"):
        random_slots(8, 7)


@pytest.mark.parametrize("below", [3, 2**32, 2**63 - 25])
def test_numbers_are_uniform_to_the_last_bit(below: int) -> None:
    """A word beyond the last multiple is drawn again, and no other: each number has as many words as each other."""
    last = 2**64 // below * below
    words = [last - 1, last, 2**64 - 1, 0, below, 5] if last < 2**64 else [2**64 - 1, 0, below, 5]
    stream = np.array(words, dtype="<u8").tobytes() + bytes(64)
    place = 0

    def source(size: int) -> bytes:
        nonlocal place
        place += size
        return stream[place - size : place]

    found = slot_order._uniform(len(words), below, source)
    wanted = [word % below for word in words if word < last]
    assert found.tolist() == wanted + [0] * (len(words) - len(wanted))


def test_each_order_is_equally_likely() -> None:
    source = seeded(1)
    found = Counter(tuple(random_order(4, source).tolist()) for _ in range(24 * 40))
    assert len(found) == 24 and stats.chisquare(list(found.values())).pvalue > 1e-6


def test_numbers_that_tie_are_ordered_by_further_bits() -> None:
    """Each order is equally likely although the first 64 bits of all numbers are one of two."""
    random, calls = seeded(4), 0

    def source(size: int) -> bytes:
        nonlocal calls
        calls += 1
        words = np.frombuffer(random(size), dtype="<u8")
        return (words % np.uint64(2)).astype("<u8").tobytes() if calls % 2 else words.tobytes()

    found = Counter[tuple[int, ...]]()
    for _ in range(24 * 40):
        calls = 0
        found[tuple(random_order(4, source).tolist())] += 1
        assert calls == 2  # of four numbers of one bit two are equal
    assert len(found) == 24 and stats.chisquare(list(found.values())).pvalue > 1e-6
    calls = 1
    random_order(1000, source)
    assert calls == 2  # no further bits where none tie


@pytest.mark.parametrize(("count", "slots"), [(0, 9), (3, 7), (900, 1000), (500, 1000), (1000, 1000), (5, 1000)])
def test_slots_in_pieces_are_those_of_one_draw(count: int, slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_order, "DRAWN", 64)
    whole, pieces = random_slots(count, slots, seeded(7)), RandomSlots(count, slots, seeded(7))
    found = [pieces.next(min(11, count - start)) for start in range(0, count, 11)]
    assert np.concatenate([*found, pieces.next(0)]).tolist() == whole.tolist()
    assert len(np.unique(whole)) == count and (count == 0 or (whole[0] >= 0 and whole[-1] < slots))
    with pytest.raises(ValueError, match="more records than slots"):
        pieces.next(1)


def test_each_set_of_slots_is_equally_likely_in_small_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_order, "DRAWN", 2)
    source, sets = seeded(8), list(combinations(range(7), 3))
    found = Counter(tuple(random_slots(3, 7, source).tolist()) for _ in range(40 * len(sets)))
    assert set(found) == set(sets) and stats.chisquare(list(found.values())).pvalue > 1e-6


def test_slots_take_a_byte_each() -> None:
    """Not 8 bytes a record, while a part is written."""
    n = 4 * slot_order.DRAWN
    tracemalloc.start()
    slots = RandomSlots(n, n + n // 20)
    for _ in range(0, n, 2**16):
        slots.next(2**16)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.05 * n + 4 * 8 * slot_order.DRAWN + 2**20


def test_each_injection_is_equally_likely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All 24 of 3 records into 4 slots, where the file is divided until each record is alone: 15 of each expected."""
    monkeypatch.setattr(slot_order, "SORTED_BYTES", 0)
    monkeypatch.setattr(slot_order, "BUCKETS", 2)
    source, part, found = seeded(2), numbered(3), Counter[tuple[int, ...]]()
    for number in range(24 * 15):
        found[tuple(slots_of(tmp_path / str(number), part, 4, source).tolist())] += 1
    assert len(found) == 24 and stats.chisquare(list(found.values())).pvalue > 1e-6


def slots_of(path: Path, part: StoredPart, slots: int, source: Source) -> NDArray[np.int64]:
    """The slot of each record of `numbered`, in the file's order."""
    stored = load_part(path, write_sorted(path, part, slots, source))
    assert stored.slot is not None
    return stored.slot.numbers[np.argsort(stored.y)]


# --- What is stored ---


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [0, 1, 700])
@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "sealed"])
def test_all_records_are_stored_once_with_their_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, n: int, key: DataKey | None
) -> None:
    """Divided more than once. Nothing else is left in the folder, and what is there meanwhile is sealed as the part."""
    removed: list[Path] = []

    def checked(path: Path) -> None:
        assert (header_of(path) is not None) is (key is not None)
        removed.append(path)
        remove_part(path)

    monkeypatch.setattr(slot_order, "remove_part", checked)
    monkeypatch.setattr(slot_order, "BUCKETS", 4)
    monkeypatch.setattr(slot_order, "SORTED_BYTES", 30_000 if kind in ("dense", "of_users") else 3000)
    part = part_of(kind, n)
    before = replace(part, user=np.arange(n)) if part.user is not None else replace(part, y=np.arange(n))
    sha256 = write_sorted(tmp_path / "p", before, 2 * n + 64, key=key)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["p", "p.index"]
    opened = None if key is None else key.key
    stored = load_part(tmp_path / "p", sha256, opened)
    assert stored.slot is not None and stored.slot.slots == 2 * n + 64 and (np.diff(stored.slot.numbers) > 0).all()
    names = stored.y if stored.user is None else stored.user
    assert equal(taken(replace(stored, slot=None), np.argsort(names)), before)
    assert n < 100 or (len(removed) > 4 and names.tolist() != list(range(n)))
    assert count_of(tmp_path / "p", sha256, opened) == (before.units, n)
    file = PartFile(tmp_path / "p", sha256, opened)
    assert file.column("slot").tolist() == stored.slot.numbers.tolist()
    assert n == 0 or np.array_equal(joined(list(file.chunks())).slot.numbers, stored.slot.numbers)  # type: ignore[union-attr]
    some = np.arange(0, n, 3)
    assert np.array_equal(file.rows(some).slot.numbers, stored.slot.numbers[some])  # type: ignore[union-attr]


def test_empty_slots_are_not_stored(tmp_path: Path) -> None:
    """1,000 records in 525 million slots take the room of 1,000 records, and memory for them alone."""
    part = part_of("dense", 1000)
    plain, path = tmp_path / "plain", tmp_path / "p"
    save_part(plain, part)
    tracemalloc.start()
    sha256 = write_sorted(path, part, 525_000_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    size = path.stat().st_size
    assert size < plain.stat().st_size + 16 * 1000 + 4096 and peak < 8 * size
    assert load_part(path, sha256).slot.numbers[-1] > 2**28  # type: ignore[union-attr]


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """24 MB are sorted in a quarter of that: a few times a bucket, and what the buckets' writers hold back."""
    monkeypatch.setattr(slot_order, "BUCKETS", 8)
    monkeypatch.setattr(slot_order, "SORTED_BYTES", 2**19)
    monkeypatch.setattr(part_writer, "PENDING_BYTES", 2**14)
    x, n = np.random.default_rng(0).standard_normal((500, 100)).astype(np.float32), 60_000
    tracemalloc.start()
    with SlotWriter(tmp_path / "p", Layout(kind="dense", sizes=(100,), labels="int64", users=False), 2 * n) as writer:
        for start in range(0, n, 500):
            writer.add(StoredPart(x, np.arange(start, start + 500)))
        sha256 = writer.close()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * n * 100 / 4
    assert sorted(PartFile(tmp_path / "p", sha256).column("y").tolist()) == list(range(n))


def test_more_records_than_slots_have_none(tmp_path: Path) -> None:
    """A registration refuses them by their number; until then they are stored without slots, all of them."""
    stored = load_part(tmp_path / "p", write_sorted(tmp_path / "p", numbered(50), 49))
    assert stored.slot is None and sorted(stored.y.tolist()) == list(range(50))


def test_the_hash_covers_slots_and_their_number(tmp_path: Path) -> None:
    """And a part without slots has the header that it always had."""
    hashes = set()
    for name, column in (
        ("none", None),
        ("some", SlotColumn(np.array([1, 3]), 5)),
        ("others", SlotColumn(np.array([1, 4]), 5)),
        ("more", SlotColumn(np.array([1, 3]), 6)),
    ):
        hashes.add(save_part(tmp_path / name, replace(numbered(2), slot=column)))
    assert len(hashes) == 4
    header = json.loads(index_path(tmp_path / "none").read_bytes().partition(b"\n")[0])
    assert sorted(header) == ["chunk_rows", "kind", "labels", "rows", "sizes", "users", "version"]


# --- Registrations ---

CASES = {
    "csv": (spec("csv", classes=[0, 1, 2], records=3000), None),
    "split": (spec("jsonl", classes=[0, 1, 2], holdout={"kind": "split", "fraction": 0.3}, records=3000), None),
    "users": (spec("parquet", classes=[0, 1, 2], holdout={"kind": "split", "fraction": 0.3}, records=700), USERS),
    "texts": (spec("csv", features={"kind": "text", "column": "t"}, classes=[0, 1, 2], records=3000), None),
    "words": (spec("csv", features=TEXT, classes=[0, 1, 2], records=3000), None),
}


def registered(
    folder: Path, case: str, monkeypatch: pytest.MonkeyPatch, order: NDArray[np.int64] | None = None, limit: int = 0
) -> tuple[dict[str, Any], dict[str, StoredPart]]:
    """A file of 3,000 records, parsed; `limit`: larger parts are stored in the order of slots."""
    document, users = CASES[case]
    document = document | {"privacy": document["privacy"] | (users or {})}
    rows = rows_of()
    rows = rows if order is None else [rows[number] for number in order.tolist()]
    names = [*(("t",) if document["features"].get("column") else ("a", "b")), "y", *(("u",) if users else ())]
    file = write(
        folder / f"d{len(list(folder.iterdir()))}", document["format"], [{n: r[n] for n in names} for r in rows]
    )
    slots = Slots(train=PartSlots(units=6000, rows=9000), holdout=PartSlots(units=6000, rows=8000))
    monkeypatch.setattr(memory, "IN_MEMORY_BYTES", limit)
    return parsed(folder, document, file, slots=slots.model_dump())


def lines(part: StoredPart) -> list[Any]:
    """A part's records, in an order of their content alone, without users' numbers."""
    pieces = (cut(replace(part, slot=None, user=None), at, at + 1) for at in range(len(part.y)))
    return sorted(b"".join(np.asarray(value).tobytes() for value in (*_numbers(each), each.y)) for each in pieces)


def _numbers(part: StoredPart) -> list[Any]:
    return [part.x] if isinstance(part.x, np.ndarray) else list(vars(part.x).values())


@pytest.mark.parametrize("case", CASES)
def test_all_that_is_told_and_compared_does_not_depend_on_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Counts, warnings, hashes of contents and of units, and each record's side are those of the file's order; also
    where the file's records come in another order."""
    known, plain = registered(tmp_path, case, monkeypatch, limit=2**40)
    shuffled = np.random.default_rng(3).permutation(3000)
    for order in (None, shuffled):
        found, parts = registered(tmp_path, case, monkeypatch, order)
        for name in ("counts", "warnings", "features", "outputs", "sparse", "units_sha256"):
            numbered = name == "units_sha256" and case == "users" and order is not None  # in the file's order
            assert found[name] == known[name] or numbered
        assert [each for each in found["contents"] if each["kind"] == "records"] == [
            each for each in known["contents"] if each["kind"] == "records"
        ]
        assert parts.keys() == plain.keys()
        for name, part in parts.items():
            assert plain[name].slot is None and part.slot is not None
            assert part.slot.slots == {"train": 9000, "holdout": 8000}[name]
            assert lines(part) == lines(plain[name])
            assert (part.user is None) == (plain[name].user is None) and part.units == plain[name].units
            if part.user is not None and order is None:  # users are numbered in the file's order
                assert np.array_equal(np.sort(part.user), np.sort(plain[name].user))  # type: ignore[arg-type]


def test_public_data_and_parts_that_are_loaded_whole_keep_the_file_s_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Public sizes decide: 9,000 slots of two features are 72,000 bytes, whatever the file holds."""
    for limit, is_sorted in ((71_999, True), (72_000, False)):
        _, parts = registered(tmp_path, "csv", monkeypatch, limit=limit)
        assert (parts["train"].slot is not None) is is_sorted
    document = CASES["csv"][0]
    public = document | {"privacy": {"sensitivity": "public"}}
    file = write(tmp_path / "public", "csv", [{name: row[name] for name in ("a", "b", "y")} for row in rows_of()])
    assert parsed(tmp_path, public, file, slots=None)[1]["train"].slot is None
