"""A file is decoded, and hashed, by other threads than the one that checks its rows: with the same result."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from app.formats.arrow_batches import ahead
from core.parts import digests
from core.parts.digests import file_sha256

LIMIT_S = 120.0


def numbered(count: int, decoded: list[threading.Event]) -> Iterator[pa.RecordBatch]:
    for number in range(count):
        decoded[number].set()
        yield pa.record_batch({"x": [number]})


def events(count: int) -> list[threading.Event]:
    return [threading.Event() for _ in range(count)]


def test_the_next_batch_is_decoded_while_one_is_checked_and_no_further() -> None:
    decoded, seen = events(4), []
    for batch in ahead(numbered(4, decoded)):
        (number,) = batch.column("x").to_pylist()
        seen.append(number)
        assert number == 3 or decoded[number + 1].wait(LIMIT_S)
        assert not any(each.is_set() for each in decoded[number + 2 :]), "one batch at most waits in memory"
    assert seen == [0, 1, 2, 3]


def test_a_fault_of_the_file_comes_after_those_of_the_rows_before() -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"x": [0]})
        raise pa.ArrowInvalid("damaged")

    with closing(ahead(broken())) as batches:
        assert next(batches).num_rows == 1
        with pytest.raises(pa.ArrowInvalid, match="damaged"):
            next(batches)


def test_who_stops_early_leaves_no_thread() -> None:
    before = threading.active_count()
    with closing(ahead(numbered(4, events(4)))) as batches:
        next(batches)
    assert threading.active_count() == before


def test_a_file_is_hashed_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "HASHED_BYTES", 7)
    file = tmp_path / "file"
    file.write_bytes(content := bytes(range(256)) * 3)
    with file_sha256(file) as sha256:
        assert sha256() == hashlib.sha256(content).hexdigest()
    with pytest.raises(FileNotFoundError), file_sha256(tmp_path / "none") as sha256:
        sha256()


def test_a_refused_file_is_not_hashed_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "HASHED_BYTES", 1)
    endless = Path("/dev/zero")
    before = threading.active_count()
    with pytest.raises(ValueError, match="refused"), file_sha256(endless):
        raise ValueError("refused")
    assert threading.active_count() == before
