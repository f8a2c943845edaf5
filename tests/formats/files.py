"""Small data files in each format, and the request that parses them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.formats.parse import parse
from core.errors import InvalidRequest
from core.parts.part_files import load_part
from core.parts.stored_records import Csr, StoredPart

KEYS = {"split": "5a" * 32, "content": "c3" * 32}
Rows = list[dict[str, Any]]


def spec(
    format: str = "csv",
    *,
    features: dict[str, Any] | None = None,
    classes: list[int | str] | None = None,
    holdout: dict[str, Any] | None = None,
    records: int = 100,
) -> dict[str, Any]:
    """A specification: numeric columns a and b (or array x), label y; regression unless there are classes."""
    default = {"kind": "tensor", "array": "x"} if format == "npz" else {"kind": "columns", "columns": ["a", "b"]}
    task = (
        {"kind": "classification", "label": "y", "classes": classes}
        if classes
        else {"kind": "regression", "label": "y"}
    )
    return {
        "name": "small",
        "format": format,
        "task": task,
        "features": features or default,
        "privacy": {"sensitivity": "private", "records": records, "cap": {"epsilon": 1.0, "delta": 1e-5}},
        "holdout": holdout,
    }


TEXT = {"kind": "hashed_text", "column": "t", "buckets": 64}


def write(path: Path, format: str, rows: Rows) -> Path:
    """Rows as a file. For NPZ, all but y becomes the array x."""
    names = list(rows[0])
    if format == "csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)
    elif format == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif format == "parquet":
        pq.write_table(pa.table({name: [row[name] for row in rows] for name in names}), path)
    elif format == "arrow":
        table = pa.table({name: [row[name] for row in rows] for name in names})
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    else:
        x = np.array([[row[name] for name in names if name != "y"] for row in rows], dtype=np.float64)
        np.savez(path, x=x, y=np.array([row["y"] for row in rows]))
        path = path.with_name(path.name + ".npz") if path.suffix != ".npz" else path
    return path


def refusal(folder: Path, document: dict[str, Any], content: bytes | str) -> InvalidRequest:
    """Why a file of this content is no data set."""
    path = folder / "d"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InvalidRequest) as caught:
        parsed(folder, document, path)
    return caught.value


def parsed(
    folder: Path, spec: dict[str, Any], file: Path, holdout_file: Path | None = None, **changes: Any
) -> tuple[dict[str, Any], dict[str, StoredPart]]:
    """The answer of `parse` in this process, and the parts it wrote."""
    out = folder / f"out{len(list(folder.iterdir()))}"
    out.mkdir()
    request = {
        "spec": spec,
        "file": str(file),
        "holdout_file": None if holdout_file is None else str(holdout_file),
        "output_dir": str(out),
        "keys": KEYS,
        "max_unpacked_bytes": 2**28,
        "max_unpack_ratio": 1e9,
        "reserve_bytes": 0,
        "opens": {},
        "seal": None,
        **changes,
    }
    answer = parse(request)
    return answer, {name: load_part(out / part["file"], part["sha256"]) for name, part in answer["parts"].items()}


def dense(part: StoredPart) -> np.ndarray:
    if not isinstance(part.x, Csr):
        return part.x
    out = np.zeros(part.x.shape, dtype=np.float32)
    rows = np.repeat(np.arange(part.x.shape[0]), np.diff(part.x.indptr))
    out[rows, part.x.indices] = part.x.data
    return out


def number_rows(n: int, seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    return [{"a": float(rng.normal()), "b": float(rng.integers(-5, 5)), "y": float(rng.normal())} for _ in range(n)]
