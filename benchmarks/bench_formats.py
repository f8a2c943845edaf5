"""Measures how long a registration's parser takes, and its memory, by the format of the file.

    python benchmarks/bench_formats.py [--records 1000000] [--folder FOLDER] [--report FILE]

Each row is one parse of a synthetic table in a process of its own: 20 numbers with three decimals and a class, as
`columns` or as a `table` of 14 numbers, 4 categories and 2 days with missing cells. `processor` is the time of all the
process's threads, imports included; `memory` is the peak of its resident memory.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

ROOT = Path(__file__).resolve().parents[1]
NUMBERS, AT_ONCE = 20, 100_000
SPLIT = {"kind": "split", "fraction": 0.2}
PROGRAM = r"""
import json, re, resource, sys
from app.formats.parse import parse
answer = parse(json.loads(sys.argv[1]))
used = resource.getrusage(resource.RUSAGE_SELF)
status = open("/proc/self/status").read()
peak_kib = int(re.search(r"VmHWM:\s*(\d+)", status).group(1))  # ru_maxrss counts the parent's, until exec
print(json.dumps([used.ru_utime + used.ru_stime, peak_kib, answer["counts"]["records"], answer["contents"][1]]))
"""
TITLE = """# Registration by format

One parse of {records:,} synthetic records in a process of its own (`python benchmarks/bench_formats.py`). *Processor*
is the time of all its threads, imports included; *memory* is the peak of its resident memory. The load of the machine
was {load} at the beginning and {after} at the end, on {cores} cores.

| features | format | file, MB | processor, s | memory, MiB |
|---|---|---:|---:|---:|
"""


def numbers(start: int, count: int) -> pa.Table:
    """Rows of numbers and a class."""
    rng = np.random.default_rng(start)
    values = np.round(rng.normal(size=(count, NUMBERS)) * 10, 3)
    columns = {f"c{place}": values[:, place] for place in range(NUMBERS)}
    return pa.table(columns | {"y": rng.integers(0, 2, count)})


def mixed(start: int, count: int) -> pa.Table:
    """Rows of a hospital's table: numbers, some of them missing, categories and days."""
    rng = np.random.default_rng(start)
    table = numbers(start, count)
    for place in range(14):
        name = f"c{place}"
        missing = pa.array(rng.random(count) < 0.05)
        table = table.set_column(place, name, pa.compute.if_else(missing, None, table.column(name)))
    for place in range(14, 18):
        values = pa.array(["red", "green", "blue, or cyan"]).take(pa.array(rng.integers(0, 3, count)))
        table = table.set_column(place, f"c{place}", values)
    for place in range(18, 20):
        days = pa.array(rng.integers(0, 20_000, count, dtype=np.int32)).cast(pa.date32())
        table = table.set_column(place, f"c{place}", days)
    return table


def declared(kind: str) -> dict[str, Any]:
    """The features of a specification."""
    if kind == "columns":
        return {"kind": "columns", "columns": [f"c{place}" for place in range(NUMBERS)]}
    columns: list[dict[str, Any]] = [
        {"kind": "number", "name": f"c{place}", "range": [-30, 30], "missing": "flag"} for place in range(14)
    ]
    values = ["red", "green", "blue, or cyan"]
    columns += [{"kind": "category", "name": f"c{place}", "values": values} for place in range(14, 18)]
    days = ["1970-01-01", "2025-01-01"]
    columns += [{"kind": "date", "name": f"c{place}", "range": days} for place in range(18, 20)]
    return {"kind": "table", "columns": columns}


def written(folder: Path, kind: str, format: str, records: int) -> Path:
    """Writes a file piece by piece."""
    path = folder / f"{kind}.{format}"
    rows = numbers if kind == "columns" else mixed
    schema = rows(0, 1).schema
    if format == "jsonl":
        with path.open("w") as file:
            for start in range(0, records, AT_ONCE):
                for row in rows(start, min(AT_ONCE, records - start)).to_pylist():
                    file.write(json.dumps(row, default=str) + "\n")
        return path
    writers = {"csv": pyarrow.csv.CSVWriter, "parquet": pyarrow.parquet.ParquetWriter, "arrow": pa.ipc.new_file}
    with writers[format](str(path), schema) as writer:
        for start in range(0, records, AT_ONCE):
            writer.write_table(rows(start, min(AT_ONCE, records - start)))
    return path


def measured(folder: Path, kind: str, format: str, records: int) -> list[Any]:
    """[processor seconds, KiB, records, content hash] of one parse."""
    path = written(folder, kind, format, records)
    (out := folder / "out").mkdir()
    spec = {
        "name": "measured",
        "format": format,
        "task": {"kind": "classification", "label": "y", "classes": [0, 1]},
        "features": declared(kind),
        "privacy": {"sensitivity": "private", "records": records, "cap": {"epsilon": 1.0}},
        "holdout": SPLIT,
    }
    request = {
        "spec": spec,
        "file": str(path),
        "holdout_file": None,
        "output_dir": str(out),
        "keys": {"split": "5a" * 32, "content": "c3" * 32},
        "max_unpacked_bytes": 2**36,
        "max_unpack_ratio": 1e9,
        "reserve_bytes": 0,
        "opens": {},
        "seal": None,
    }
    command = [sys.executable, "-c", PROGRAM, json.dumps(request)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    used: list[Any] = [path.stat().st_size, *json.loads(ran.stdout)]
    for each in (*out.iterdir(), path):
        each.unlink()
    out.rmdir()
    return used


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--records", type=int, default=1_000_000)
    options.add_argument("--folder", type=Path)
    options.add_argument("--report", type=Path)
    options.add_argument("--only", nargs="*", help="such as columns.csv")
    given = options.parse_args()
    load, lines = os.getloadavg()[0], []
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        for kind in ("columns", "table"):
            for format in ("csv", "jsonl", "parquet", "arrow"):
                if given.only and f"{kind}.{format}" not in given.only:
                    continue
                size, took_s, peak_kib, _, content = measured(Path(name), kind, format, given.records)
                lines.append(f"| {kind} | {format} | {size / 1e6:.0f} | {took_s:.1f} | {peak_kib / 1024:.0f} |\n")
                print(lines[-1], content["hmac"][:16], flush=True)
    title = TITLE.format(
        records=given.records, load=f"{load:.1f}", after=f"{os.getloadavg()[0]:.1f}", cores=os.cpu_count()
    )
    print(title + "".join(lines))
    if given.report is not None:
        given.report.write_text(title + "".join(lines))


if __name__ == "__main__":
    main()
