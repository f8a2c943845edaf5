"""Measures full batches over a part that no cache holds: stored in the order of its slots, and of the file.

    python benchmarks/bench_order.py [--records 2600000] [--folder FOLDER]

The data are those of bench_data.py: 100 dense float32 features, 1 GiB for 2.6 million records. For each row a process
writes the part, as a registration does, and another reads all passes twice and computes nothing. `start` is what it
takes before the first pass: the slots that the part was stored with are read, which checks it, or a job's order of
all slots is drawn. Before either batch the file leaves the cache, and the kernel is told of each pass ahead, as where
the data may be larger than memory. *Anonymous* is the peak of memory that the kernel cannot take back. Times are wall
clock: they need a machine without other work.
"""

from __future__ import annotations

import argparse
import mmap
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import torch  # noqa: E402

from benchmarks.bench_data import CLASSES, FEATURES, Watch, generated  # noqa: E402
from core.privacy.slot_numbers import default_slots  # noqa: E402
from worker.data.loaded_parts import block_of, open_stored, records_of  # noqa: E402
from worker.data.secret_slots import Slotted, joined_slots  # noqa: E402
from worker.messages import Part, Shape  # noqa: E402
from worker.noise.secret_places import WHOLE_DATA, RandomOrder  # noqa: E402

ROWS = 40_944  # of a pass: as admission chooses for a linear model
HEAD = """
| order | writing, s | anonymous, MiB | start, s | first batch, s | next batch, s | anonymous, MiB |
|---|---:|---:|---:|---:|---:|---:|"""


def watched(work: Callable[[], Any]) -> tuple[Any, float]:
    """What it returns, and the peak of anonymous memory above what there was before, in MiB."""
    watch = Watch(os.getpid())
    thread = threading.Thread(target=watch.run)
    thread.start()
    time.sleep(0.05)
    before = watch.anonymous
    found = work()
    watch.ended.set()
    thread.join()
    return found, (watch.anonymous - before) / 1024


def written(folder: Path, records: int, slots: int | None) -> tuple[dict[str, Any], float, float]:
    """A part, the seconds of its writing, and their memory."""
    began = time.perf_counter()
    part, memory = watched(lambda: generated(folder, records, slots=slots))
    return part, time.perf_counter() - began, memory


def read(document: dict[str, Any], records: int, rows: int) -> tuple[float, ...]:
    """Seconds before the first pass, seconds of two batches, and their memory."""
    shape = Shape(records_train=records, records_holdout=0, features=FEATURES, outputs=CLASSES, sparse=False)
    part: Any = open_stored(Part.model_validate(document), shape, again=True)

    def leave_the_cache() -> None:
        part.file._blob._map.madvise(mmap.MADV_DONTNEED)
        with Path(document["path"]).open("rb") as raw:
            os.posix_fadvise(raw.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def rows_of() -> Slotted[Any]:
        order, block = RandomOrder(bytes(range(32))), block_of(part, rows)
        of: Any = records_of(part)
        if block.slots is None:
            return Slotted.injected(of, order.of(WHOLE_DATA, rows), rows)
        return Slotted(of, joined_slots([block], lambda rows, block: order.of(WHOLE_DATA, rows, 0, block)))

    def work() -> list[float]:
        leave_the_cache()
        times = [time.perf_counter()]
        batch = rows_of()
        times.append(time.perf_counter())
        for _ in range(2):
            present = sum(int(each.present.sum()) for each in batch.passes(ROWS, torch.float32))
            times.append(time.perf_counter())
            if present != records:
                raise SystemExit(f"{present} of {records} records were read")
            leave_the_cache()
        return [later - earlier for earlier, later in pairwise(times)]

    times, memory = watched(work)
    return *times, memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_600_000)
    parser.add_argument("--folder", type=Path, default=None)
    asked = parser.parse_args()
    rows = default_slots(asked.records)
    print(HEAD, flush=True)
    for name, slots in (("of the file", None), ("of slots", rows)):
        with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
            found: list[float] = []
            document: dict[str, Any] = {}
            for work in (written, read):
                with ProcessPoolExecutor(1, get_context("spawn")) as process:
                    if work is written:
                        document, *more = process.submit(written, Path(folder), asked.records, slots).result()
                    else:
                        more = list(process.submit(read, document, asked.records, rows).result())
                found += more
            print(f"| {name} | {' | '.join(f'{each:.1f}' for each in found)} |", flush=True)


if __name__ == "__main__":
    main()
