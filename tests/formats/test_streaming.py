"""Files are read in pieces: what is stored, split, counted and hashed is what reading them whole gave."""

from __future__ import annotations

import csv
import gzip
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.formats import parse as parse_module
from app.formats import reader_records as records_module
from core import disk
from core.errors import InvalidRequest, StorageFull
from core.parts import part_writer
from core.parts.stored_records import Texts
from core.parts.unit_digests import FIRST_NUMBER
from tests.formats.files import KEYS, Rows, parsed, spec, write
from tests.formats.test_part_files import equal

N = 3000
KNOWN = json.loads((Path(__file__).parent / "known_parses.json").read_text())
USERS = {"unit": "user", "user_column": "u", "max_records_per_user": 4, "records": 700}


def rows_of(n: int = N) -> Rows:
    """Records with users and texts, some of them twice."""
    rows = [
        {
            "u": f"u{i * i % 701}",
            "a": i * 0.37 % 5 - 2,
            "b": float(i % 91),
            "t": f"word{i % 40} tail{i % 7}",
            "y": i % 3,
        }
        for i in range(n - 5)
    ]
    return rows + rows[:5]


def cases() -> Iterator[tuple[str, dict[str, Any], Rows]]:
    """Names, declarations and rows."""
    for format in ("csv", "jsonl", "parquet", "npz"):
        for holdout in (None, {"kind": "split", "fraction": 0.3}):
            for users in (False, True):
                document = spec(format, classes=[0, 1, 2], holdout=holdout, records=N)
                if users:
                    document["privacy"] = document["privacy"] | USERS
                names = ["a", "b", "y", *(("u",) if users else ())]
                rows = [{name: row[name] for name in names} for row in rows_of()]
                yield f"{format} {holdout is not None} {users}", document, rows
    for kind in ("text", "hashed_text"):
        features = {"kind": kind, "column": "t"} | ({"buckets": 64} if kind == "hashed_text" else {})
        document = spec("csv", features=features, classes=[0, 1, 2], holdout={"kind": "split", "fraction": 0.3})
        yield kind, document, [{name: row[name] for name in ("t", "y")} for row in rows_of()]


def file_of(path: Path, document: dict[str, Any], rows: Rows) -> Path:
    if document["format"] != "npz":
        return write(path, document["format"], rows)
    arrays = {"x": np.array([[row["a"], row["b"]] for row in rows]), "y": np.array([row["y"] for row in rows])}
    if "u" in rows[0]:
        arrays["u"] = np.array([row["u"] for row in rows])
    with path.open("wb") as file:
        np.savez(file, **arrays)
    return path


def summary(answer: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    """What must not change, without the hashes of files whose bytes a library may choose."""
    import hashlib

    flat = {}
    for name, part in parts.items():
        x = part.x
        arrays = [x] if isinstance(x, np.ndarray) else [getattr(x, each) for each in sorted(x.__dataclass_fields__)]
        arrays += [part.y] if part.user is None else [part.y, part.user - FIRST_NUMBER]  # numbers began with 0
        content = b"".join(np.asarray(each).astype(np.float64).tobytes() for each in arrays)
        flat[name] = hashlib.sha256(content).hexdigest()
    records = [each["hmac"] for each in answer["contents"] if each["kind"] == "records"]
    kept = {name: answer[name] for name in ("counts", "warnings", "features", "outputs", "sparse")}
    return kept | {"parts": flat, "records": records}


@pytest.mark.parametrize("name", sorted(KNOWN))
@pytest.mark.parametrize("held", [1 << 20, 700])
def test_pieces_give_what_whole_files_gave(
    tmp_path: Path, name: str, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """known_parses.json was written by the release that read files whole."""
    monkeypatch.setattr(records_module, "HELD", held)
    document, rows = next((document, rows) for each, document, rows in cases() if each == name)
    file = file_of(tmp_path / "d", document, rows)
    found = summary(*parsed(tmp_path, document, file, earlier_hashes=True))
    assert json.loads(json.dumps(found)) == KNOWN[name]


def arrow_file(path: Path, table: pa.Table, *, stream: bool, compression: str | None = None) -> Path:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as sink, make(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=1000)
    return path


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_arrow_files_are_read_as_parquet_is(tmp_path: Path, stream: bool, compression: str | None) -> None:
    document = spec("parquet", classes=[0, 1, 2], holdout={"kind": "split", "fraction": 0.3}, records=N)
    document["privacy"] = document["privacy"] | USERS
    table = pa.Table.from_pylist(rows_of())
    pq.write_table(table, tmp_path / "p")
    known, parts = parsed(tmp_path, document, tmp_path / "p")
    table = table.set_column(0, "u", table.column("u").dictionary_encode())
    file = arrow_file(tmp_path / "a", table, stream=stream, compression=compression)
    found, same = parsed(tmp_path, document | {"format": "arrow"}, file)
    assert all(equal(parts[name], same[name]) for name in ("train", "holdout"))
    for name in ("counts", "warnings", "features"):
        assert found[name] == known[name]
    assert found["contents"][1] == known["contents"][1], "the same records, whatever the format"


@pytest.mark.parametrize("stream", [False, True])
def test_damaged_arrow_files_are_refused(tmp_path: Path, stream: bool) -> None:
    """Whatever a byte is changed to: the file is read, or refused with a clear error that quotes no cell."""
    rows = [{name: row[name] for name in ("t", "a", "b", "y")} for row in rows_of(300)]
    content = arrow_file(tmp_path / "a", pa.Table.from_pylist(rows), stream=stream).read_bytes()
    document = spec("arrow", features={"kind": "text", "column": "t"}, classes=[0, 1, 2])
    rng = np.random.default_rng(0)
    for _ in range(150):
        changed = bytearray(content)
        for place in rng.integers(0, len(content), 3):
            changed[place] = rng.integers(256)
        (tmp_path / "d").write_bytes(changed[: int(rng.integers(len(content) // 2, len(content) + 1))])
        try:
            parsed(tmp_path, document, tmp_path / "d")
        except InvalidRequest as refused:
            assert "word" not in str(refused.members)


def test_an_arrow_file_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    table = pa.table({"a": np.zeros(2**20), "b": np.zeros(2**20), "y": np.zeros(2**20)})
    file = arrow_file(tmp_path / "a", table, stream=False, compression="zstd")
    assert file.stat().st_size < 2**20
    with pytest.raises(InvalidRequest, match="unpacks to"):
        parsed(tmp_path, spec("arrow"), file, max_unpacked_bytes=2**23)


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_archives_of_texts(tmp_path: Path, format: str) -> None:
    rows = [{name: row[name] for name in ("a", "b", "y")} for row in rows_of()]
    document = spec(format, classes=[0, 1, 2], records=N)
    plain = write(tmp_path / "d", format, rows).read_bytes()
    _, known = parsed(tmp_path, document, tmp_path / "d")
    archives = {"gz": gzip.compress(plain), "zst": pa.compress(plain, "zstd", asbytes=True)}
    for name, content in archives.items():
        (tmp_path / name).write_bytes(content)
        _, found = parsed(tmp_path, document, tmp_path / name)
        assert equal(found["train"], known["train"]), name
        (tmp_path / name).write_bytes(content[: len(content) // 2])
        with pytest.raises(InvalidRequest, match="intact"):
            parsed(tmp_path, document, tmp_path / name)
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InvalidRequest, match="unpacks to more"):
            parsed(tmp_path, document, tmp_path / name, max_unpacked_bytes=len(plain) // 2)


@pytest.mark.parametrize("kind", ["gz", "zst", "parquet"])
def test_a_small_archive_that_unpacks_to_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """10 MB that unpacked to 3 GB held the only reader for 13 minutes."""
    rows = [{"a": 1.0, "b": 1.0, "y": 0.5}] * 20_000
    document = spec("parquet" if kind == "parquet" else "csv", records=20_000)
    plain = write(tmp_path / "plain", document["format"], rows).read_bytes()
    packed = {"gz": gzip.compress(plain), "zst": pa.compress(plain, "zstd", asbytes=True), "parquet": plain}[kind]
    (tmp_path / "d").write_bytes(packed)
    parsed(tmp_path, document, tmp_path / "d", max_unpack_ratio=1.01), "small in all: whatever the ratio"
    monkeypatch.setattr(parse_module, "UNPACKED_FREELY_BYTES", len(packed) // 4)
    parsed(tmp_path, document, tmp_path / "d", max_unpack_ratio=1e4)
    with pytest.raises(InvalidRequest, match="unpacks to"):
        parsed(tmp_path, document, tmp_path / "d", max_unpack_ratio=0.5)


def test_an_unusable_cell_at_the_end_refuses_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces before it were written already; counts are of the whole file."""
    monkeypatch.setattr(records_module, "HELD", 100)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["a", "b", "y"])
    writer.writerows([[1.5, 2, i % 2] for i in range(500)] + [["x", "", 7]] + [["x", 1, 1]] * 300)
    (tmp_path / "d").write_text(text.getvalue())
    with pytest.raises(InvalidRequest) as refused:
        parsed(tmp_path, spec("csv", classes=[0, 1]), tmp_path / "d")
    errors = refused.value.members["errors"]
    details = [each["detail"] for each in errors if "row" not in each]
    assert details == [
        "column 'a': 301 not a number",
        "column 'b': 1 missing",
        "column 'y': 1 not a declared class",
    ]
    assert errors[3]["detail"] == "row 501, column 'a': 'x' is not a number" and len(errors) == 3 + 10


def test_an_array_in_fortrans_order_is_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_module, "HELD", 64)
    x, y = np.random.default_rng(0).standard_normal((500, 3, 2)), np.arange(500.0)
    for name, array in (("c", x), ("f", np.asfortranarray(x))):
        with (tmp_path / name).open("wb") as file:
            np.savez(file, x=array, y=y)
    one, other = (parsed(tmp_path, spec("npz", records=500), tmp_path / name)[1] for name in "cf")
    assert equal(one["train"], other["train"]) and np.array_equal(one["train"].x, x.reshape(500, 6).astype("f4"))


def test_texts_of_any_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_module, "HELD", 300)
    texts = ["é" * (i * i % 1000) for i in range(200)]
    rows = [{"t": text, "y": i % 2} for i, text in enumerate(texts)]
    document = spec("jsonl", features={"kind": "text", "column": "t"}, classes=[0, 1], records=200)
    _, parts = parsed(tmp_path, document, write(tmp_path / "d", "jsonl", rows))
    assert isinstance(parts["train"].x, Texts) and list(parts["train"].x.texts()) == texts


@pytest.mark.parametrize("format", ["csv", "parquet", "arrow", "npz"])
def test_a_full_disk_is_a_clear_error(tmp_path: Path, format: str) -> None:
    """In a process whose files may not grow further. What was written stays in the folder, which the caller removes."""
    rows = [{"a": float(i), "b": 1.0, "y": 0.5} for i in range(20_000)]
    request = {
        "spec": spec(format, records=20_000),
        "file": str(write(tmp_path / "d", format, rows)),
        "holdout_file": None,
        "output_dir": str(tmp_path / "out"),
        "keys": KEYS,
        "max_unpacked_bytes": 2**30,
        "max_unpack_ratio": 1e9,
        "reserve_bytes": 0,
        "opens": {},
        "seal": None,
    }
    (tmp_path / "out").mkdir()
    program = (
        "import json, resource, sys; from core.errors import StorageFull; from app.formats.parse import parse\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try: parse(json.loads(sys.argv[1]))\n"
        "except StorageFull as error: print(error.status)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, json.dumps(request)], capture_output=True, text=True, timeout=300, check=False
    )
    assert (ran.stdout, ran.stderr) == ("507\n", "")


def test_parts_leave_the_disk_a_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that begins while there is room, and ends where the reserve begins."""
    monkeypatch.setattr(part_writer, "LOOK_BYTES", 2**17)
    rows = [{"a": float(i), "b": 1.0, "y": 0.5} for i in range(60_000)]
    data = write(tmp_path / "d", "csv", rows)
    free = iter([2**40, 2**40])

    def usage(_: Path) -> SimpleNamespace:
        return SimpleNamespace(free=next(free, disk.RESERVE_BYTES - 1))

    monkeypatch.setattr(disk.shutil, "disk_usage", usage)
    with pytest.raises(StorageFull):
        parsed(tmp_path, spec("csv", records=60_000), data, reserve_bytes=disk.RESERVE_BYTES)
    (part,) = tmp_path.glob("out*/train.arrow")
    assert 2**17 < part.stat().st_size < 2**20, "it was refused while it was written"


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet", "npz", "arrow"])
def test_a_disk_without_room_is_no_damaged_file(tmp_path: Path, format: str) -> None:
    rows = [{"a": 1.0, "b": 1.0, "y": 0.5}] * 3
    with pytest.raises(StorageFull):
        parsed(tmp_path, spec(format, records=3), write(tmp_path / "d", format, rows), reserve_bytes=2**62)


@pytest.mark.parametrize("new", [pa.ipc.new_file, pa.ipc.new_stream])
def test_only_needed_columns_of_arrow_count_and_a_shared_dictionary_once(tmp_path: Path, new: Any) -> None:
    """20 batches that share 100 KB of texts, next to 4 MB that nobody asked for."""
    texts = pa.array([f"{i:05}" * 20 for i in range(1000)])
    label = pa.DictionaryArray.from_arrays(pa.array(np.arange(2000) % 1000, pa.int32()), texts)
    numbers = pa.array(np.arange(2000, dtype=np.float64))
    table = pa.table({"more": ["x" * 2000] * 2000, "b": numbers, "y": label, "a": numbers})
    with new(tmp_path / "d", table.schema) as sink:
        sink.write_table(table, max_chunksize=100)
    document = spec("arrow", records=2000, classes=[f"{i:05}" * 20 for i in range(1000)])
    answer, parts = parsed(tmp_path, document, tmp_path / "d", max_unpacked_bytes=200_000)
    assert answer["counts"]["records"] == 2000 and parts["train"].x[:, 0].tolist() == list(range(2000))
    with pytest.raises(InvalidRequest, match="unpacks to more than"):
        parsed(tmp_path, document, tmp_path / "d", max_unpacked_bytes=120_000)


def test_each_new_dictionary_of_arrow_counts(tmp_path: Path) -> None:
    tables = [
        pa.table(
            {
                "a": np.zeros(10),
                "b": np.zeros(10),
                "y": pa.array([str(i) * 100 + str(number) for i in range(10)]).dictionary_encode(),
            }
        )
        for number in range(20)
    ]
    with pa.ipc.new_stream(tmp_path / "d", tables[0].schema) as sink:
        for table in tables:
            sink.write_table(table)
    document = spec("arrow", records=200, classes=["0", "1"])
    with pytest.raises(InvalidRequest, match="unpacks to more than"):
        parsed(tmp_path, document, tmp_path / "d", max_unpacked_bytes=5000)
