"""Measures what a registration's reading of a Parquet file takes, beside pyarrow's own read on one thread.

    python benchmarks/bench_registration.py [--records 2000000] [--group-rows 131072] [--folder FOLDER]
        [--only NAME ...]

The file has 19 numbers and a class of two, as float64 and int64, written by pyarrow with its defaults in row groups of
2^17 rows, or of another number. Each row of the answer is one reading by the service's own helper process
(app.datasets.parsing), with its confinement and its limits of memory. `processor` is the time of all the process's
threads, imports included; `memory` is the peak of its resident memory. pyarrow reads all columns, batch by batch, and
drops them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

NUMBERS, GROUP_ROWS = 19, 2**17
ROUNDS = 3  # of pyarrow's read: the least counts, which is the strictest
SPLIT = {"kind": "split", "fraction": 0.2}
ROWS: dict[str, dict[str, Any]] = {
    "private, no hold-out": {"sensitivity": "private"},
    "private, split": {"sensitivity": "private", "holdout": SPLIT},
    "public, no hold-out": {"sensitivity": "public"},
}


def written(path: Path, records: int, group_rows: int = GROUP_ROWS) -> None:
    """Writes the file, a row group at a time."""
    schema = pa.schema([*((f"c{place}", pa.float64()) for place in range(NUMBERS)), ("y", pa.int64())])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, records, group_rows):
            count, rng = min(group_rows, records - start), np.random.default_rng(start)
            columns: list[Any] = [rng.normal(size=count) for _ in range(NUMBERS)]
            writer.write_table(pa.table([*columns, rng.integers(0, 2, count)], schema=schema))


def alone(path: Path) -> None:
    """pyarrow's read on one thread."""
    with path.open("rb") as content, pq.ParquetFile(content, pre_buffer=False, buffer_size=2**20) as file:
        for _ in file.iter_batches(use_threads=False):
            pass


def registered(path: Path, records: int, privacy: dict[str, Any], memory_bytes: int) -> dict[str, Any]:
    """The service's reading, in its helper process."""
    from app.datasets.parsing import Parsers
    from app.datasets.sizes import declared_slots
    from app.formats.asked import ContentKeys, OpeningKeys, ParseRequest
    from app.settings import Settings
    from core.contracts.dataset_spec import DatasetSpec

    is_private = privacy["sensitivity"] == "private"
    cap = {"cap": {"epsilon": 1.0, "delta": 1e-9}} if is_private else {}
    document = {
        "name": "measured",
        "format": "parquet",
        "task": {"kind": "classification", "label": "y", "classes": [0, 1]},
        "features": {"kind": "columns", "columns": [f"c{place}" for place in range(NUMBERS)]},
        "privacy": {"sensitivity": privacy["sensitivity"], "records": records, **cap},
        "holdout": privacy.get("holdout"),
    }
    spec = DatasetSpec.model_validate(document)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        settings = Settings(home=Path(folder) / "home", parse_memory_bytes=memory_bytes, parse_time_s=7200)
        (output := Path(folder) / "parts").mkdir()
        request = ParseRequest(
            spec=spec,
            file=str(path),
            holdout_file=None,
            opens=OpeningKeys(),
            seal=None,
            output_dir=str(output),
            keys=ContentKeys(split="5a" * 32, content="c3" * 32),
            slots=declared_slots(spec),
            max_unpacked_bytes=2**40,
            max_unpack_ratio=1e9,
            reserve_bytes=0,
        )
        parsed = Parsers(settings).parse(request)
    return {"records": parsed.counts.records, "contents": [each.hmac[:16] for each in parsed.contents]}


def measured(arguments: list[str]) -> dict[str, Any]:
    """What one reading took: its answer, processor seconds and MiB."""
    command = [sys.executable, __file__, "--one", *arguments]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(ran.stderr)
    return dict(json.loads(ran.stdout))


def one(options: argparse.Namespace) -> None:
    """Runs one reading and prints what it took: pyarrow's in this process, the service's in a child of it."""
    if options.one == "alone":
        before = resource.getrusage(resource.RUSAGE_SELF)
        alone(options.file)
        used, answer = resource.getrusage(resource.RUSAGE_SELF), {}
        took_s = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    else:
        answer = registered(options.file, options.records, ROWS[options.one], options.memory_mib * 2**20)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        took_s = used.ru_utime + used.ru_stime
    print(json.dumps(answer | {"took_s": took_s, "mib": used.ru_maxrss / 1024}))


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--records", type=int, default=2_000_000)
    options.add_argument("--folder", type=Path)
    options.add_argument("--group-rows", type=int, default=GROUP_ROWS)
    options.add_argument("--only", nargs="*", default=list(ROWS))
    options.add_argument("--memory-mib", type=int, default=4096)
    options.add_argument("--one", help=argparse.SUPPRESS)
    options.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.one:
        return one(chosen)
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        path = Path(folder) / "measured.parquet"
        written(path, chosen.records, chosen.group_rows)
        rest = ["--file", str(path), "--records", str(chosen.records), "--memory-mib", str(chosen.memory_mib)]
        own_s = min(measured(["alone", *rest])["took_s"] for _ in range(ROUNDS))
        print(f"{chosen.records:,} records, {path.stat().st_size / 1e6:.0f} MB, load {os.getloadavg()[0]:.1f}")
        print(f"| pyarrow alone | {own_s:.2f} | 1 | |")
        for name in chosen.only:
            took = measured([name, *rest])
            print(f"| {name} | {took['took_s']:.1f} | {took['took_s'] / own_s:.1f} | {took['mib']:.0f} |", flush=True)
            print(" ", took["records"], *took["contents"])
    return None


if __name__ == "__main__":
    main()
