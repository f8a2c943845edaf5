"""Files made to harm: bombs, pickles, sizes that lie. They are refused, and the service's process never notices."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.sandbox.limited import run_limited
from core.errors import InvalidRequest, LimitError
from tests.formats.files import KEYS, TEXT, number_rows, parsed, spec, write

MIB = 2**20


class Exploit:
    """Unpickling it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


def refuse(folder: Path, document: dict[str, Any], path: Path, **changes: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parsed(folder, document, path, **changes)
    return caught.value


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def archive(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def test_no_pickle_is_loaded(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    exploit = np.array([Exploit(mark)], dtype=object)
    np.savez(tmp_path / "d.npz", x=exploit, y=np.ones(1))
    assert "pickle" in str(refuse(tmp_path, spec("npz"), tmp_path / "d.npz"))
    (tmp_path / "p.npz").write_bytes(pickle.dumps(Exploit(mark)))
    refuse(tmp_path, spec("npz"), tmp_path / "p.npz")
    refuse(
        tmp_path,
        spec("npz"),
        archive(tmp_path / "q.npz", {"x.npy": pickle.dumps(Exploit(mark)), "y.npy": npy(np.ones(1))}),
    )
    assert not mark.exists()


def test_a_zip_bomb_is_refused_by_what_it_claims(tmp_path: Path) -> None:
    path = archive(tmp_path / "d", {"x.npy": npy(np.zeros((MIB, 16))), "y.npy": npy(np.zeros(MIB))})
    assert path.stat().st_size < MIB
    assert "unpacks to" in str(refuse(tmp_path, spec("npz"), path, max_unpacked_bytes=64 * MIB))


def test_a_zip_that_claims_less_than_it_holds_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "d", {"x.npy": npy(np.zeros((MIB, 16))), "y.npy": npy(np.zeros(MIB))})
    content = bytearray(path.read_bytes())
    place = content.index(b"PK\x01\x02") + 24
    content[place : place + 4] = struct.pack("<I", 1000)
    path.write_bytes(content)
    refuse(tmp_path, spec("npz"), path, max_unpacked_bytes=64 * MIB)


def test_an_array_that_claims_more_than_its_file_holds_is_refused(tmp_path: Path) -> None:
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000, 2), }"
    lie = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + 1) + header + b"\n" + bytes(160)
    path = archive(tmp_path / "d", {"x.npy": lie, "y.npy": npy(np.zeros(10))})
    assert "claims to be larger" in str(refuse(tmp_path, spec("npz"), path))


@pytest.mark.parametrize("shape", [(-1, 2), (10, -2), (-10, -2)])
def test_a_shape_below_zero_is_refused(tmp_path: Path, shape: tuple[int, int]) -> None:
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".encode()
    lie = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + 1) + header + b"\n" + bytes(160)
    path = archive(tmp_path / "d", {"x.npy": lie, "y.npy": npy(np.zeros(10))})
    assert "has the shape" in str(refuse(tmp_path, spec("npz"), path))


@pytest.mark.parametrize(
    "members",
    [
        {"x.npy": b"", "y.npy": b""},
        {"x.npy": b"\x93NUMPY\x01\x00\xff\xff", "y.npy": npy(np.ones(1))},
        {"x.npy": b"\x93NUMPY\x03\x00\x00\x00\x00\x00", "y.npy": npy(np.ones(1))},
        {"x.npy": npy(np.ones((1, 1)))[:-4], "y.npy": npy(np.ones(1))},
        {"x.npy": npy(np.ones((1, 1))), "y.npy": npy(np.ones(1)), "../../etc/passwd": b""},
        {},
    ],
)
def test_malformed_archives_are_refused(tmp_path: Path, members: dict[str, bytes]) -> None:
    refuse(tmp_path, spec("npz"), archive(tmp_path / "d", members))


def test_an_archive_with_a_name_twice_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "d", "w") as file, pytest.warns(UserWarning):
        for name in ("x.npy", "y.npy", "x.npy"):
            file.writestr(name, npy(np.ones(1)))
    assert "more than once" in str(refuse(tmp_path, spec("npz"), tmp_path / "d"))


def test_a_parquet_bomb_is_refused_by_what_it_claims(tmp_path: Path) -> None:
    n = 4 * MIB
    pq.write_table(pa.table({"a": np.zeros(n), "b": np.zeros(n), "y": np.zeros(n)}), tmp_path / "d", compression="zstd")
    assert (tmp_path / "d").stat().st_size < MIB
    assert "unpacks to" in str(refuse(tmp_path, spec("parquet"), tmp_path / "d", max_unpacked_bytes=64 * MIB))


def limited(
    folder: Path, document: dict[str, Any], path: Path, memory_bytes: int, time_s: float = 30.0
) -> dict[str, Any]:
    (folder / "limited").mkdir()
    request = {
        "spec": document,
        "file": str(path),
        "holdout_file": None,
        "output_dir": str(folder / "limited"),
        "keys": KEYS,
        "max_unpacked_bytes": 2**40,
        "max_unpack_ratio": 1e9,
        "reserve_bytes": 0,
        "opens": {},
        "seal": None,
    }
    return run_limited("app.formats.parse:parse", request, memory_bytes=memory_bytes, time_s=time_s)


def test_a_bomb_that_passes_the_claims_meets_the_memory_limit(tmp_path: Path) -> None:
    """A dictionary page makes one text count once on disk and in the footer, and a million times in memory."""
    texts = pa.array(["x" * MIB]).dictionary_encode()
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(10_000, dtype=np.int32)), texts.dictionary)
    pq.write_table(pa.table({"t": column, "y": pa.array(np.zeros(10_000))}), tmp_path / "d")
    assert (tmp_path / "d").stat().st_size < 2 * MIB
    with pytest.raises(LimitError):
        limited(tmp_path, spec("parquet", features=TEXT, classes=[0, 1]), tmp_path / "d", 1024 * MIB)


def test_a_long_parse_meets_the_time_limit(tmp_path: Path) -> None:
    """It waits for a writer: a parser that works may meet its processor time's limit before, on many cores."""
    os.mkfifo(tmp_path / "d")
    with pytest.raises(LimitError, match="longer than"):
        limited(tmp_path, spec(), tmp_path / "d", 1024 * MIB, time_s=1.0)


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet", "npz"])
def test_every_format_works_under_limits(tmp_path: Path, format: str) -> None:
    path = write(tmp_path / "d.npz", format, number_rows(50))
    counts = limited(tmp_path, spec(format), path, 1024 * MIB)["counts"]
    assert counts == {"records": 50, "dropped": 0, "units": 50, "train": 50, "holdout": 0}


def test_refusals_come_through_the_process(tmp_path: Path) -> None:
    (tmp_path / "d").write_text("a,b,y\n1,x,2\n")
    with pytest.raises(InvalidRequest) as caught:
        limited(tmp_path, spec(), tmp_path / "d", 1024 * MIB)
    assert caught.value.members["errors"][0]["column"] == "b"


@pytest.mark.parametrize("name", ["../../escape.npy", "/etc/escape.npy", "..\\escape.npy", "x.npy/../../escape.npy"])
def test_no_member_of_an_archive_is_written_anywhere(tmp_path: Path, name: str) -> None:
    members = {"x.npy": npy(np.ones((3, 1))), "y.npy": npy(np.ones(3)), name: npy(np.ones(1))}
    answer, _ = parsed(tmp_path, spec("npz"), archive(tmp_path / "d", members))
    assert answer["counts"]["records"] == 3
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {"d", "out1/train.arrow", "out1/train.arrow.index", "out1/units"}


def test_an_archive_of_very_many_members_is_refused(tmp_path: Path) -> None:
    members = {f"{i}.npy": b"" for i in range(10_001)}
    assert "something other" in str(refuse(tmp_path, spec("npz"), archive(tmp_path / "d", members)))


def test_an_archive_in_an_archive_stays_closed(tmp_path: Path) -> None:
    inner = archive(tmp_path / "inner", {"x.npy": npy(np.zeros((MIB, 4)))})
    path = archive(tmp_path / "d", {"x.npy": inner.read_bytes(), "y.npy": npy(np.ones(3))})
    assert "not in NPY format" in str(refuse(tmp_path, spec("npz"), path))


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressions_without_a_bound_on_a_read_are_refused(tmp_path: Path, compression: int) -> None:
    """zipfile unpacks a whole block of these at once, however little of it is asked for."""
    path = archive(tmp_path / "d", {"x.npy": npy(np.ones((3, 1))), "y.npy": npy(np.ones(3))}, compression)
    assert "plain ZIP" in str(refuse(tmp_path, spec("npz"), path))


@pytest.mark.parametrize("compression", ["snappy", "zstd", "gzip", "brotli"])
def test_runs_and_compressed_pages_are_bounded_by_what_they_claim(tmp_path: Path, compression: str) -> None:
    """Runs of one value are stored in a few bytes, which the footer's unpacked size does not tell; its rows do."""
    n = 8 * MIB
    table = pa.table({"a": pa.array(np.zeros(n, dtype=bool)), "b": pa.nulls(n, pa.int8()), "y": pa.nulls(n, pa.int8())})
    pq.write_table(table, tmp_path / "d", compression=compression)
    assert (tmp_path / "d").stat().st_size < MIB // 2
    assert "unpacks to" in str(refuse(tmp_path, spec("parquet"), tmp_path / "d", max_unpacked_bytes=64 * MIB))


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_a_line_of_500_megabytes_is_refused(tmp_path: Path, format: str) -> None:
    path = tmp_path / "d"
    with path.open("wb") as file:  # sparse: NULs that take no disk
        file.write(b"a,b,y\n1,2,3\n" if format == "csv" else b'{"a": 1, "b": 2, "y": 3}\n')
        file.truncate(500 * MIB)
    with pytest.raises(InvalidRequest, match="is longer than"):
        limited(tmp_path, spec(format), path, 1024 * MIB)


def test_a_first_line_of_500_megabytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d"
    with path.open("wb") as file:
        file.write(b"a" * 5000)
        file.truncate(500 * MIB)
    with pytest.raises(InvalidRequest, match="is longer than"):
        limited(tmp_path, spec(), path, 1024 * MIB)
