"""Parts on disk: Arrow files in hashed chunks; parts of before, as NPZ; what is damaged, and when that is noticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core import merkle
from core.parts.damage import DataDamagedError
from core.parts.layout import Index, Layout, index_path
from core.parts.part_files import count_of, load_part, open_part, remove_part, rename_part, save_part
from core.parts.part_pieces import chosen, cut, joined
from core.parts.part_reader import PartFile
from core.parts.part_writer import PartWriter
from core.parts.stored_records import Csr, Pairs, Sequences, StoredPart, Texts

OLD = Path(__file__).parent / "old_parts"
KINDS = ["dense", "of_users", "sparse", "pairs", "sequences", "texts"]


def part_of(kind: str, n: int, seed: int = 0) -> StoredPart:
    """n records of a kind."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    lengths = rng.integers(0, 5, n)
    ends, total = np.cumsum(lengths, dtype=np.int64), int(lengths.sum())
    if kind == "sparse":
        columns, values = rng.integers(0, 50, total).astype(np.int32), rng.standard_normal(total).astype(np.float32)
        return StoredPart(Csr(np.concatenate(([0], ends)), columns, values, (n, 50)), y)
    if kind == "pairs":
        users, items = (rng.integers(0, 9, n).astype(np.int32) for _ in range(2))
        return StoredPart(Pairs(users, items, (9, 9)), rng.standard_normal(n))
    if kind == "sequences":
        return StoredPart(Sequences(rng.integers(0, 9, total).astype(np.int32), ends, 9), np.zeros(n), np.arange(n))
    if kind == "texts":
        return StoredPart(Texts.of(["é" * int(length) + str(i) * (i % 2) for i, length in enumerate(lengths)]), y)
    user = rng.integers(0, 5, n) if kind == "of_users" else None
    return StoredPart(rng.standard_normal((n, 700)).astype(np.float32), y, user)


def equal(one: StoredPart, other: StoredPart) -> bool:
    """True if all numbers and types are the same."""

    def flat(part: StoredPart) -> list[object]:
        x = part.x
        numbers = [x] if isinstance(x, np.ndarray) else [getattr(x, name) for name in x.__dataclass_fields__]
        arrays = [np.asarray(each) for each in (*numbers, part.y, np.zeros(0) if part.user is None else part.user)]
        return [(each.dtype.str, each.shape, each.tobytes()) for each in arrays]

    return type(one.x) is type(other.x) and flat(one) == flat(other)


@pytest.mark.parametrize("name", [*KINDS, "empty"])
def test_parts_of_before_are_read_for_ever(name: str) -> None:
    """The files were written by the release before Arrow; their hashes are those that its data sets registered."""
    known = json.loads((OLD / "sha256.json").read_text())[name]
    part = load_part(OLD / f"{name}.npz", known)
    assert open_part(OLD / f"{name}.npz", known) is None
    rng = np.random.default_rng(7)
    x, y = rng.standard_normal((9, 4)).astype(np.float32), np.arange(9) % 3
    csr = Csr(np.array([0, 2, 2, 5]), np.array([1, 7, 0, 2, 3], "i4"), np.array([0.5, 0.25, 1, 2, 3], "f4"), (3, 8))
    items = Sequences(np.array([3, 1, 2, 0, 4], dtype=np.int32), np.array([2, 2, 5]), 5)
    expected = {
        "dense": StoredPart(x, y),
        "of_users": StoredPart(x[:5], np.linspace(0, 1, 5), np.array([0, 1, 0, 2, 1])),
        "sparse": StoredPart(csr, np.array([0, 1, 1])),
        "pairs": StoredPart(Pairs(np.array([0, 2], "i4"), np.array([1, 3], "i4"), (3, 4)), np.array([1.0, 5.0])),
        "sequences": StoredPart(items, np.zeros(3), np.arange(3)),
        "texts": StoredPart(Texts.of(["grüß", "", "two words"]), np.array([0, 1, 0])),
        "empty": StoredPart(np.zeros((0, 4), dtype=np.float32), np.zeros(0, dtype=np.int64)),
    }
    assert equal(part, expected[name])
    assert count_of(OLD / f"{name}.npz", known) == (expected[name].units, len(expected[name].y))
    with pytest.raises(DataDamagedError):
        load_part(OLD / f"{name}.npz", "0" * 64)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [0, 1, 700])
def test_what_is_written_is_read(tmp_path: Path, kind: str, n: int) -> None:
    part, path = part_of(kind, n), tmp_path / "p"
    sha256 = save_part(path, part)
    assert equal(load_part(path, sha256), part)
    assert count_of(path, sha256) == (part.units, len(part.y))
    assert all(each.stat().st_mode & 0o777 == 0o600 for each in (path, index_path(path)))
    file = PartFile(path, sha256)
    assert len(file) == n
    numbers = np.random.default_rng(1).integers(0, n, 2 * n) if n else np.empty(0, dtype=np.int64)
    found = file.rows(numbers)
    wanted = joined([cut(part, i, i + 1) for i in numbers.tolist()]) if n else part
    assert equal(found, wanted)
    chunks = list(file.chunks())
    assert equal(joined(chunks), part) if n else not chunks


@pytest.mark.parametrize("kind", KINDS)
def test_any_arrow_reader_reads_a_part(tmp_path: Path, kind: str) -> None:
    part = part_of(kind, 700)
    save_part(tmp_path / "p", part)
    table = pa.ipc.open_file(tmp_path / "p").read_all()
    table.validate(full=True)
    assert table.column("y").to_pylist() == part.y.tolist()
    if isinstance(part.x, Texts):
        assert table.column("text").to_pylist() == list(part.x.texts())
    if isinstance(part.x, np.ndarray):
        assert np.array_equal(np.array(table.column("x").to_pylist(), dtype=np.float32), part.x)


@settings(max_examples=30)
@given(st.sampled_from(KINDS), st.lists(st.integers(0, 400), max_size=8), st.integers(0, 2**20))
def test_the_hash_does_not_depend_on_how_records_arrive(
    tmp_path_factory: pytest.TempPathFactory, kind: str, cuts: list[int], seed: int
) -> None:
    folder, part = tmp_path_factory.mktemp("parts"), part_of(kind, 400, seed)
    with PartWriter(folder / "streamed", Layout.of(part)) as writer:
        places = [0, *sorted(cuts), 400]
        for start, end in pairwise(places):
            writer.add(cut(part, start, end))
        streamed = writer.close()
    assert streamed == save_part(folder / "whole", part)
    assert (folder / "streamed").read_bytes() == (folder / "whole").read_bytes()


def test_choosing_and_cutting_agree() -> None:
    mask = np.arange(90) % 3 == 1
    for kind in KINDS:
        part = part_of(kind, 90)
        one_by_one = [cut(part, i, i + 1) for i in np.flatnonzero(mask).tolist()]
        assert equal(chosen(part, mask), joined(one_by_one)), kind


def tree_hash(leaves: list[bytes]) -> bytes:
    """RFC 6962, section 2.1, as it is written there."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\x00" + leaves[0]).digest()
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return hashlib.sha256(b"\x01" + tree_hash(leaves[:k]) + tree_hash(leaves[k:])).digest()


@pytest.mark.parametrize("n", range(20))
def test_the_tree_is_that_of_rfc_6962(n: int) -> None:
    leaves = [bytes([i]) * i for i in range(n)]
    assert merkle.root_of(merkle.leaf(each) for each in leaves) == tree_hash(leaves)


def test_the_hash_is_the_root_over_header_and_chunks(tmp_path: Path) -> None:
    """As core/parts/layout.py states it, from the files alone."""
    sha256 = save_part(tmp_path / "p", part_of("dense", 100))
    header, _, rest = index_path(tmp_path / "p").read_bytes().partition(b"\n")
    content, row = (tmp_path / "p").read_bytes(), 8 * 3 + 4 + 8 * 2 + 32
    leaves = [header]
    for at in range(0, len(rest), row):
        offset, length = (int.from_bytes(rest[at + 8 * i : at + 8 * i + 8], "little") for i in range(2))
        leaves.append(rest[at : at + row - 32] + content[offset : offset + length])
    assert len(leaves) == 1 + -(-100 // 46)
    assert tree_hash(leaves).hex() == sha256


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_chunk_is_noticed_when_it_is_read(tmp_path: Path, kind: str) -> None:
    """Each byte of a chunk is covered; records of other chunks can still be read."""
    n = Layout.of(part_of(kind, 1)).chunk_rows + 1
    path = tmp_path / "p"
    sha256 = save_part(path, part_of(kind, n))
    row = Index.read(path, sha256).chunks[0]
    content = bytearray(path.read_bytes())
    for place in np.linspace(0, int(row["length"]) - 1, 9).astype(int).tolist():
        changed = bytearray(content)
        changed[int(row["offset"]) + place] ^= 1
        path.write_bytes(changed)
        file = PartFile(path, sha256)
        assert len(file.rows(np.array([n - 1])).y) == 1
        for read in (lambda: file.rows(np.array([0])), file.whole, lambda: list(file.chunks())):  # noqa: B023
            with pytest.raises(DataDamagedError):
                read()


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: index_path(path).unlink(),
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-9000]),
        lambda path: index_path(path).write_bytes(b""),
        lambda path: index_path(path).write_bytes(index_path(path).read_bytes()[:-1]),
        lambda path: index_path(path).write_bytes(index_path(path).read_bytes().replace(b'"rows":100', b'"rows":099')),
        lambda path: index_path(path).write_bytes(index_path(path).read_bytes().replace(b'"rows":100', b'"rows":101')),
        lambda path: index_path(path).write_bytes(index_path(path).read_bytes()[:-200] + bytes(200)),
        lambda path: index_path(path).write_bytes(b"[]\n"),
        lambda path: index_path(path).write_bytes(b"\xff" * 5000),
    ],
)
def test_a_damaged_index_is_noticed_at_once(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    sha256 = save_part(tmp_path / "p", part_of("dense", 100))
    damage(tmp_path / "p")
    with pytest.raises(DataDamagedError):
        load_part(tmp_path / "p", sha256)


def test_a_chunk_put_in_anothers_place_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "p"
    sha256 = save_part(path, part_of("dense", 100))
    index = Index.read(path, sha256)
    swapped = index.chunks.copy()
    swapped["offset"][[0, 1]] = swapped["offset"][[1, 0]]
    index_path(path).write_bytes(Index(index.layout, index.rows, swapped).to_bytes())
    file = PartFile(path, sha256)
    with pytest.raises(DataDamagedError):
        file.rows(np.array([0]))


def test_a_record_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    file = PartFile(tmp_path / "p", save_part(tmp_path / "p", part_of("dense", 5)))
    for number in (-1, 5):
        with pytest.raises(IndexError):
            file.rows(np.array([number]))


def test_a_part_is_renamed_and_removed_with_its_index(tmp_path: Path) -> None:
    sha256 = save_part(tmp_path / "p", part_of("dense", 5))
    rename_part(tmp_path / "p", tmp_path / "q")
    assert len(load_part(tmp_path / "q", sha256).y) == 5
    remove_part(tmp_path / "q")
    remove_part(tmp_path / "q")
    assert not list(tmp_path.iterdir())


def test_records_of_another_layout_are_refused(tmp_path: Path) -> None:
    with (
        PartWriter(tmp_path / "p", Layout.of(part_of("dense", 5))) as writer,
        pytest.raises(ValueError, match="layout"),
    ):
        writer.add(part_of("sparse", 5))
