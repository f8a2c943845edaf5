"""Sealed files: read like plain ones at any place, and found damaged wherever somebody changed them."""

from __future__ import annotations

import gzip
import io
import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.formats.parse import parse
from core.parts.blobs import open_blob
from core.parts.damage import DataDamagedError
from core.parts.layout import index_path
from core.parts.part_files import count_of, load_part, open_part, save_part
from core.parts.part_pieces import joined
from core.parts.part_reader import PartFile
from core.parts.sealed import (
    CHUNK_BYTES,
    HEADER_BYTES,
    PUBLIC_BYTES,
    STORED_BYTES,
    WRAP_BYTES,
    DataKey,
    Header,
    Kind,
    Pieces,
    content_of,
    content_size,
    create,
    finish,
    header_of,
    readable,
    sealed_size,
)
from tests.formats.files import KEYS, number_rows, parsed, spec, write
from tests.formats.test_part_files import KINDS, OLD, equal, part_of

KEY = DataKey(bytes(range(32)), b"w" * WRAP_BYTES)
OTHER = DataKey(bytes(32), b"v" * WRAP_BYTES)


def sealed(path: Path, content: bytes, key: DataKey = KEY, kind: Kind = "part") -> Path:
    with create(path, key, kind) as file:
        for start in range(0, len(content), 5000):
            file.write(content[start : start + 5000])
        assert file.tell() == len(content)
        finish(file)
    return path


def noise(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES, 100_001])
def test_what_was_sealed_is_read(tmp_path: Path, size: int) -> None:
    content = noise(size)
    path = sealed(tmp_path / "f", content)
    assert path.stat().st_size == sealed_size(size) and content_size(path) == size
    assert path.stat().st_mode & 0o777 == 0o600
    assert content_of(path, KEY.key) == content
    with readable(path, KEY.key).open("rb") as file:
        assert file.seek(0, io.SEEK_END) == size
        file.seek(size // 2)
        assert file.read(7) == content[size // 2 : size // 2 + 7]
    stored = path.read_bytes()
    assert not any(content[at : at + 16] in stored for at in range(0, size - 16, 16))
    assert (
        KEY.key not in stored and sealed(tmp_path / "g", content).read_bytes()[HEADER_BYTES:] != stored[HEADER_BYTES:]
    )


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 5000)), max_size=20))
def test_ranges_are_gathered_as_from_plaintext(tmp_path_factory: pytest.TempPathFactory, ranges: Any) -> None:
    """In words of 8 bytes; ranges may overlap, repeat, be empty, and lie over several chunks."""
    folder, content = tmp_path_factory.mktemp("ranges"), noise(14_000 * 8)
    (folder / "plain").write_bytes(content)
    blobs = [open_blob(folder / "plain", None), open_blob(sealed(folder / "sealed", content), KEY.key)]
    starts, lengths = (np.array([each[n] * 8 for each in ranges], dtype=np.int64) for n in range(2))
    found = []
    for blob in blobs:
        held, at = blob.gathered(starts, lengths)
        assert not (at % 8).any()
        pairs = zip(at, lengths, strict=True)
        found.append([held[start : start + length].tobytes() for start, length in pairs])
    assert found[0] == found[1] == [content[s : s + n] for s, n in zip(starts, lengths, strict=True)]


def changed(path: Path, **how: Any) -> None:
    """Changes a sealed file of three chunks as an attacker who can write to the disk would."""
    stored = bytearray(path.read_bytes())
    chunks = [stored[HEADER_BYTES + STORED_BYTES * n : HEADER_BYTES + STORED_BYTES * (n + 1)] for n in range(3)]
    head = stored[:HEADER_BYTES]
    if "bit" in how:
        stored[how["bit"]] ^= 1
    if "order" in how:
        stored = head + b"".join(chunks[n] for n in how["order"])
    if "cut" in how:
        stored = stored[: how["cut"]]
    path.write_bytes(bytes(stored))


@pytest.mark.parametrize(
    "how",
    [
        {"bit": 9},
        {"bit": PUBLIC_BYTES - 1},
        {"bit": HEADER_BYTES},
        {"bit": HEADER_BYTES + STORED_BYTES + 77},
        {"bit": -1},
        {"order": [1, 0, 2]},
        {"order": [0, 1]},
        {"order": [0, 2]},
        {"order": [0, 0, 2]},
        {"order": [0, 1, 2, 2]},
        {"order": []},
        {"cut": -1},
        {"cut": HEADER_BYTES + STORED_BYTES + 5},
        {"cut": HEADER_BYTES},
    ],
)
def test_a_change_of_any_byte_chunk_or_length_is_found(tmp_path: Path, how: dict[str, Any]) -> None:
    path = sealed(tmp_path / "f", noise(2 * CHUNK_BYTES + 99))
    changed(path, **how)
    with pytest.raises(DataDamagedError):
        content_of(path, KEY.key)


def test_a_file_that_was_cut_between_chunks_does_not_open(tmp_path: Path) -> None:
    """Whoever reads its first records alone would not notice otherwise."""
    path = sealed(tmp_path / "f", noise(3 * CHUNK_BYTES))
    changed(path, order=[0, 1])
    with pytest.raises(DataDamagedError):
        open_blob(path, KEY.key)


def test_chunks_of_another_file_of_the_same_key_do_not_open(tmp_path: Path) -> None:
    one, other = (sealed(tmp_path / str(n), noise(3 * CHUNK_BYTES, n)) for n in range(2))
    mixed = bytearray(one.read_bytes())
    place = slice(HEADER_BYTES + STORED_BYTES, HEADER_BYTES + 2 * STORED_BYTES)
    mixed[place] = other.read_bytes()[place]
    one.write_bytes(bytes(mixed))
    with pytest.raises(DataDamagedError):
        content_of(one, KEY.key)
    one.write_bytes(mixed[:PUBLIC_BYTES] + other.read_bytes()[PUBLIC_BYTES:])
    with pytest.raises(DataDamagedError):
        content_of(one, KEY.key)


def test_another_key_none_or_another_kind_opens_nothing(tmp_path: Path) -> None:
    path = sealed(tmp_path / "f", b"content")
    for key in (OTHER.key, None):
        with pytest.raises(DataDamagedError):
            content_of(path, key)
    raw = bytearray(path.read_bytes())
    raw[8] = 1  # its kind: a part is no file that arrived
    path.write_bytes(bytes(raw))
    with pytest.raises(DataDamagedError):
        content_of(path, KEY.key)


def test_a_file_without_its_last_chunk_does_not_open(tmp_path: Path) -> None:
    """Its writer died."""
    file = create(tmp_path / "f", KEY)
    file.write(noise(3 * CHUNK_BYTES))
    os.fsync(file.fileno())
    (tmp_path / "g").write_bytes((tmp_path / "f").read_bytes())
    file.close()
    with pytest.raises(DataDamagedError):
        content_of(tmp_path / "g", KEY.key)
    assert len(content_of(tmp_path / "f", KEY.key)) == 3 * CHUNK_BYTES


@pytest.mark.parametrize("cuts", [[1, 15, 16, 17, 33], [], [16, 32], [40]])
def test_a_file_in_pieces_is_read_as_it_was_sent(tmp_path: Path, cuts: list[int]) -> None:
    content, header = noise(50), Header.new("pieces", KEY.wrap)
    pieces, at = Pieces(header, KEY.key), [0, *cuts, 50]
    stored = bytes(header) + b"".join(pieces.turned(start, content[start:end]) for start, end in pairwise(at))
    (tmp_path / "f").write_bytes(stored)
    assert stored[HEADER_BYTES:] == pieces.turned(0, content) and content not in stored
    assert content_size(tmp_path / "f") == 50
    with readable(tmp_path / "f", KEY.key).open("rb") as file:
        file.seek(13)
        assert file.read() == content[13:]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [0, 700, 5000])
def test_a_sealed_part_is_read_like_a_plain_one(tmp_path: Path, kind: str, n: int) -> None:
    part = part_of(kind, n)
    sha256 = save_part(tmp_path / "plain", part)
    assert save_part(tmp_path / "sealed", part, KEY) == sha256, "its hash is its content's"
    assert equal(load_part(tmp_path / "sealed", sha256, KEY.key), part)
    assert count_of(tmp_path / "sealed", sha256, KEY.key) == (part.units, len(part.y))
    plain, found = open_part(tmp_path / "plain", sha256), open_part(tmp_path / "sealed", sha256, KEY.key)
    assert plain is not None and found is not None
    rng = np.random.default_rng(2)
    for numbers in (rng.integers(0, n, 3000), np.arange(n), rng.permutation(n)[:1]) if n else (np.empty(0, "i8"),):
        assert equal(found.rows(numbers.astype(np.int64)), plain.rows(numbers.astype(np.int64)))
    assert np.array_equal(found.column("y"), part.y)
    assert equal(joined(list(found.chunks())), part) if n else not list(found.chunks())
    for path in (tmp_path / "sealed", index_path(tmp_path / "sealed")):
        assert (
            header_of(path) is not None
            and b"ARROW1" not in path.read_bytes()
            and b"chunk_rows" not in path.read_bytes()
        )


def test_few_chunks_are_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = part_of("dense", 5000)  # 14 MB
    sha256 = save_part(tmp_path / "p", part, KEY)
    file, held = PartFile(tmp_path / "p", sha256, KEY.key), []
    gathered = type(file._blob).gathered

    def counted(blob: Any, *asked: Any) -> Any:
        found = gathered(blob, *asked)
        held.append(len(found[0]))
        return found

    monkeypatch.setattr(type(file._blob), "gathered", counted)
    assert equal(file.rows(np.arange(5000)), part)
    assert max(held) < 1024 * (2800 + 2 * CHUNK_BYTES) and max(held) < (tmp_path / "p").stat().st_size / 3


def test_a_sealed_part_in_another_s_place_is_found(tmp_path: Path) -> None:
    """Both files are whole and of the same key: the hash tells."""
    names = [save_part(tmp_path / str(n), part_of("dense", 300, n), KEY) for n in range(2)]
    (tmp_path / "1").replace(tmp_path / "0")
    with pytest.raises(DataDamagedError):
        load_part(tmp_path / "0", names[0], KEY.key)
    (tmp_path / "1.index").replace(tmp_path / "0.index")
    with pytest.raises(DataDamagedError):
        load_part(tmp_path / "0", names[0], KEY.key)


def test_a_part_of_before_is_read_sealed(tmp_path: Path) -> None:
    sha256 = json.loads((OLD / "sha256.json").read_text())["sparse"]
    sealed(tmp_path / "p.npz", (OLD / "sparse.npz").read_bytes())
    assert open_part(tmp_path / "p.npz", sha256, KEY.key) is None
    assert equal(load_part(tmp_path / "p.npz", sha256, KEY.key), load_part(OLD / "sparse.npz", sha256))


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet", "npz", "arrow", "csv.gz", "csv.zst"])
@pytest.mark.parametrize("kind", ["raw", "pieces"])
def test_a_sealed_file_of_any_format_is_parsed_like_a_plain_one(tmp_path: Path, format: str, kind: Kind) -> None:
    """With nothing in plaintext on the way: hashes, counts and records are the same."""
    name = format.partition(".")[0]
    file = write(tmp_path / "file", name, number_rows(3000))
    if format == "csv.gz":
        file.write_bytes(gzip.compress(file.read_bytes()))
    if format == "csv.zst":
        file.write_bytes(pa.Codec("zstd").compress(file.read_bytes(), asbytes=True))
    declared = spec(name, holdout={"kind": "split", "fraction": 0.25}, records=3000)
    answer, parts = parsed(tmp_path, declared, file)
    header = Header.new("pieces", KEY.wrap)
    if kind == "raw":
        sealed(tmp_path / "sealed", file.read_bytes(), KEY, "raw")
    else:
        (tmp_path / "sealed").write_bytes(bytes(header) + Pieces(header, KEY.key).turned(0, file.read_bytes()))
    out = tmp_path / "out"
    out.mkdir()
    request = {"spec": declared, "file": str(tmp_path / "sealed"), "holdout_file": None, "output_dir": str(out)}
    request |= {
        "keys": KEYS,
        "max_unpacked_bytes": 2**28,
        "max_unpack_ratio": 1e9,
        "reserve_bytes": 0,
        "opens": {"file": KEY.key.hex()},
    }
    found = parse(request | {"seal": {"key": OTHER.key.hex(), "wrap": OTHER.wrap.hex()}})
    assert found == answer
    for name, part in parts.items():
        assert equal(load_part(out / f"{name}.arrow", answer["parts"][name]["sha256"], OTHER.key), part)
    assert {each.name for each in out.iterdir()} == {
        f"{name}.arrow{of}" for name in ("train", "holdout") for of in ("", ".index")
    } | {"units"}
    assert all(header_of(each) is not None for each in out.iterdir())
