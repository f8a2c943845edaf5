"""Measures what sealed parts cost beside plain ones. Writes reports/sealed.md.

    python benchmarks/bench_sealed.py [--records N] [--folder FOLDER] [--report FILE]

The part has 100 dense float32 features, as in bench_data.py. All times are processor time: writing, reading it whole,
reading it in order by passes of 240 records, a Poisson batch's reading, and a step of attempts of the product. The
file is in the page cache; hashes of chunks are checked once, before the reading is timed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import numpy as np  # noqa: E402

from benchmarks.bench_data import BATCH, FEATURES, generated, measured  # noqa: E402
from core.parts.part_reader import PartFile  # noqa: E402
from core.parts.sealed import WRAP_BYTES, DataKey  # noqa: E402

PASS, BATCHES = 240, 100
TITLE = """# What sealed parts cost

A part of {records:,} records of 100 dense float32 features ({mb:.0f} MB), plain and sealed
(`python benchmarks/bench_sealed.py`), on a machine of {cores} cores **that others used at the same time**: the ratio of
a row says more than its numbers. Processor time; the file is in the page cache, hashes were checked before.

| | plain | sealed |
|---|---:|---:|
"""
NOTES = """
* A sealed file is read in chunks of 4 KiB, a record of 400 bytes at random as well: {amplified:.0f} times the features
  of a Poisson batch are decrypted, and a chunk for each label. That is a fixed cost a record, whatever the part's size
  or the model's.
* A part below 512 MiB is read into memory once, and its steps are those of a plain one.
* *Anonymous* memory is what the kernel cannot take back. A plain part is mapped, so its pages are not in it.
* On disk a sealed part takes {overhead:.3f} % more.
"""


def timed(part: dict[str, Any], key: bytes | None, records: int, mb: float) -> dict[str, str]:
    """What reading costs."""
    file = PartFile(Path(part["path"]), part["sha256"], key)
    began = time.process_time()
    file.whole()
    whole = time.process_time() - began
    file._seen[:] = True  # checked once, in early steps
    began, upto = time.process_time(), min(records, 100_000)
    for start in range(0, upto, PASS):
        file.rows(np.arange(start, min(start + PASS, upto)))
    passes = time.process_time() - began
    draw, found = np.random.default_rng(2), []
    for _ in range(BATCHES):
        numbers = np.sort(draw.choice(records, BATCH, replace=False))
        began = time.process_time()
        file.rows(numbers)
        found.append(1000 * (time.process_time() - began))
    return {
        "reading it whole, hashes checked, MB/s": f"{mb / whole:.0f}",
        "reading in order by passes of 240, MB/s": f"{mb * upto / records / passes:.0f}",
        f"reading a Poisson batch of {BATCH:,}, ms": f"{np.median(found):.2f}",
    }


def column(folder: Path, records: int, key: DataKey | None) -> tuple[dict[str, str], int]:
    """One column of the table, and the part's bytes on disk."""
    mb = records * FEATURES * 4 / 1e6
    began = time.process_time()
    part = generated(folder, records, key)
    made = time.process_time() - began
    out = {"generating and writing it, MB/s": f"{mb / made:.0f}"}
    out |= timed(part, None if key is None else key.key, records, mb)
    cells = [each.strip() for each in measured(folder, part, records, "poisson").strip("|").split("|")]
    out |= {"anonymous memory of an attempt, MiB": cells[3], "a Poisson step of an attempt, s": cells[8]}
    return out, Path(part["path"]).stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--report", type=Path, default=ROOT / "benchmarks" / "reports" / "sealed.md")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as place:
        key = DataKey(os.urandom(32), bytes(WRAP_BYTES))
        (plain, size), (sealed, larger) = (column(Path(place), asked.records, each) for each in (None, key))
    rows = "\n".join(f"| {name} | {plain[name]} | {sealed[name]} |" for name in plain)
    mb = asked.records * FEATURES * 4 / 1e6
    head = TITLE.format(records=asked.records, mb=mb, cores=os.cpu_count())
    notes = NOTES.format(amplified=2**12 / (4 * FEATURES), overhead=100 * (larger / size - 1))
    asked.report.write_text(head + rows + "\n" + notes)
    print(asked.report.read_text())


if __name__ == "__main__":
    main()
