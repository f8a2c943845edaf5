"""What a reading holds does not grow with the records, nor with the row groups in which Parquet has them."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.formats import arrow_batches, parse, slot_order
from core.parts import digests, part_writer, sorted_digests
from tests.formats.files import KEYS, spec

COLUMNS = [f"c{place}" for place in range(20)]
PAGE = 2**16
ROOT = Path(__file__).resolve().parents[2]


def peak_bytes(folder: Path, records: int) -> int:
    """The most that Python, numpy and Arrow hold while a private file of one row group is read, whose records are
    written in the order of their slots."""
    folder.mkdir()
    rng, path = np.random.default_rng(records), folder / "d"
    numbers = {name: rng.normal(size=records) for name in COLUMNS}
    labelled = pa.table({**numbers, "y": rng.integers(0, 2, records)})
    pq.write_table(labelled, path, row_group_size=records, data_page_size=PAGE, dictionary_pagesize_limit=PAGE)
    del numbers, labelled
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    slots = {"train": dict.fromkeys(("rows", "units"), records + records // 20), "holdout": None}
    document = spec("parquet", features={"kind": "columns", "columns": COLUMNS}, classes=[0, 1], records=records)
    (out := folder / "parts").mkdir()
    limits = {"max_unpacked_bytes": 2**30, "max_unpack_ratio": 1e9, "reserve_bytes": 0}
    names = {"file": str(path), "holdout_file": None, "output_dir": str(out)}
    request = {"spec": document, **names, "keys": KEYS, "slots": slots, "opens": {}, "seal": None, **limits}
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        answer = parse.parse(request)
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)
    assert answer["counts"]["records"] == records and pool.max_memory() > 0
    return held + int(pool.max_memory() or 0)


class AtOnce(Executor):
    """Does what it is asked for before it answers."""

    def __init__(self, *_: Any) -> None: ...

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*arguments, **named))
        return done


def peaks(folder: Path) -> list[int]:
    """Of 80,000 records and of six times as many.

    Limits are small, so that both files are beyond all of them; a slot takes a byte. What other threads do is done at
    once, so that both have decoded the next piece whenever they hold most.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_batches, "ThreadPoolExecutor", AtOnce)
        patch.setattr(digests, "ThreadPoolExecutor", AtOnce)
        patch.setattr(parse, "in_memory", lambda *_: False)
        patch.setattr(slot_order, "SORTED_BYTES", 2**18)
        patch.setattr(slot_order, "BUCKETS", 16)
        patch.setattr(part_writer, "PENDING_BYTES", 2**15)
        patch.setattr(sorted_digests, "RUN_ROWS", 2**13)
        patch.setattr(sorted_digests, "MERGED_ROWS", 2**12)
        peak_bytes(folder / "first", 1_000)  # imports
        return [peak_bytes(folder / str(records), records) for records in (80_000, 480_000)]


def test_a_row_group_is_read_in_pieces(tmp_path: Path) -> None:
    """In a process of its own: what other tests left in this one counts as held by the reading."""
    command = [sys.executable, "-m", "tests.formats.test_bounded_reading", str(tmp_path)]
    few, many = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)
    assert many < few + 400_000 * 1.05 + 2**21
    assert many < 480_000 * 20 * 8 / 3  # of the row group's numbers


if __name__ == "__main__":
    print(peaks(Path(sys.argv[1])))
