"""Columns of every type keep their stored bytes, names of content and split, to the bit: known_columns.json has the
answers that a reading in numpy gave. `python -m tests.formats.test_known_columns` adds those of kinds that are new."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from core.native import ascending, blake2b, record_columns
from tests.formats.files import parsed, spec

KNOWN = Path(__file__).with_name("known_columns.json")
ROWS = 20_000  # more than two blocks of a reader
SPLIT = {"kind": "split", "fraction": 0.3}
NUMBERS = np.random.default_rng(5).normal(size=ROWS)
WHOLE = np.random.default_rng(6).integers(-100, 100, ROWS)
TYPED: dict[str, Callable[[], pa.Array]] = {
    "float64": lambda: pa.array(NUMBERS),
    "float32": lambda: pa.array(NUMBERS.astype(np.float32)),
    "float16": lambda: pa.array(NUMBERS.astype(np.float16)),
    "zeros": lambda: pa.array(np.where(WHOLE > 0, -0.0, 0.0)),
    "denormal": lambda: pa.array(NUMBERS * 1e-42),
    "large": lambda: pa.array(NUMBERS * 1e37),
    "int8": lambda: pa.array(WHOLE.astype(np.int8)),
    "int64": lambda: pa.array(WHOLE * (2**53 + 1)),
    "uint64": lambda: pa.array(np.abs(WHOLE).astype(np.uint64) + np.uint64(2**63)),
    "boolean": lambda: pa.array(WHOLE > 0),
    "decimal": lambda: pa.array([Decimal(int(each)) / 100 for each in WHOLE], pa.decimal128(9, 2)),
    "dictionary": lambda: pa.array(WHOLE.astype(np.float64)).dictionary_encode(),
    "sliced": lambda: pa.concat_arrays([pa.array([9.0]), pa.array(NUMBERS)])[1:],
}
LABELS: dict[str, tuple[list[int | str] | None, Callable[[], pa.Array]]] = {
    "numbers": (None, lambda: pa.array(np.where(WHOLE > 50, -0.0, NUMBERS))),
    "integers": ([0, 1, 2], lambda: pa.array(np.abs(WHOLE) % 3)),
    "floats": ([0, 1, 2], lambda: pa.array(np.abs(WHOLE) % 3 * 1.0)),
    "texts": (["a", "ü" * 70, "c c"], lambda: pa.array(["a", "ü" * 70, "c c"]).take(pa.array(np.abs(WHOLE) % 3))),
    "boolean": (["true", "false"], lambda: pa.array(WHOLE > 0)),
    "dictionary": (["x", "y"], lambda: pa.array(np.where(WHOLE > 0, "x", "y")).dictionary_encode()),
}
GAPS: dict[str, Callable[[], pa.Array]] = {
    "nulls": lambda: pa.array(NUMBERS, mask=WHOLE > 20),
    "nan": lambda: pa.array(np.where(WHOLE > 20, np.nan, NUMBERS)),
    "both": lambda: pa.array(np.where(WHOLE > 60, np.nan, NUMBERS), mask=WHOLE < -60),
}


def file_of(folder: Path, columns: dict[str, pa.Array], label: pa.Array) -> Path:
    """A Parquet file whose row groups do not end with a reader's blocks."""
    pq.write_table(pa.table({**columns, "y": label}), folder / "d", row_group_size=7001)
    return folder / "d"


def numbers(folder: Path) -> tuple[dict[str, Any], Path]:
    """Columns of every type of number, declared in another order than that of their names."""
    columns = {name: make() for name, make in TYPED.items()}
    names = [*list(columns)[4:], *list(columns)[:4]]
    document = spec("parquet", features={"kind": "columns", "columns": names}, holdout=SPLIT)
    return document, file_of(folder, columns, pa.array(NUMBERS))


def one(folder: Path) -> tuple[dict[str, Any], Path]:
    """A single column."""
    return spec("parquet", features={"kind": "columns", "columns": ["a"]}), file_of(
        folder, {"a": pa.array(NUMBERS)}, pa.array(NUMBERS)
    )


def labelled(kind: str) -> Callable[[Path], tuple[dict[str, Any], Path]]:
    def made(folder: Path) -> tuple[dict[str, Any], Path]:
        classes, label = LABELS[kind]
        document = spec("parquet", classes=classes, holdout=SPLIT)
        return document, file_of(folder, {"b": TYPED["int8"](), "a": TYPED["float64"]()}, label())

    return made


def table(kind: str) -> Callable[[Path], tuple[dict[str, Any], Path]]:
    def made(folder: Path) -> tuple[dict[str, Any], Path]:
        columns = [
            {"name": "n", "kind": "number", "range": [-1, 1], "missing": "flag"},
            {"name": "w", "kind": "number", "range": [-1, 1], "missing": "middle", "missing_cells": ["-9"]},
            {"name": "c", "kind": "category", "values": ["p", "q"], "unknown": "other", "missing": "other"},
        ]
        cells = pa.array([None, "p", "q", "r"]).take(pa.array(np.abs(WHOLE) % 4))
        found = {"c": cells, "n": GAPS[kind](), "w": pa.array(WHOLE)}
        return spec("parquet", features={"kind": "table", "columns": columns}, holdout=SPLIT), file_of(
            folder, found, pa.array(NUMBERS)
        )

    return made


def dropped(folder: Path) -> tuple[dict[str, Any], Path]:
    """Rows that cannot be used are left out."""
    document = spec("parquet", holdout=SPLIT) | {"wrong_rows": "drop"}
    return document, file_of(folder, {"a": GAPS["both"](), "b": pa.array(NUMBERS * 1e40)}, pa.array(NUMBERS))


def equal(folder: Path) -> tuple[dict[str, Any], Path]:
    """One record, over and over, and a few others."""
    a = np.where(np.arange(ROWS) % 5000, 1.0, NUMBERS)
    return spec("parquet", holdout=SPLIT), file_of(folder, {"a": pa.array(a), "b": pa.array(a)}, pa.array(a))


KINDS: dict[str, Callable[[Path], tuple[dict[str, Any], Path]]] = {
    "numbers": numbers,
    "one": one,
    "dropped": dropped,
    "equal": equal,
    **{f"label {kind}": labelled(kind) for kind in LABELS},
    **{f"table {kind}": table(kind) for kind in GAPS},
}


def answer_of(folder: Path, kind: str, **changes: Any) -> dict[str, Any]:
    """What a registration keeps of a file: names of content, sides, units, the parts' hashes."""
    document, file = KINDS[kind](folder)
    found, _ = parsed(folder, document, file, earlier_hashes=True, **changes)
    return {name: found[name] for name in ("contents", "counts", "units_sha256", "squares", "parts")}


def hashes(answer: dict[str, Any]) -> dict[str, Any]:
    """The part of it that does not depend on how Parquet writes a file."""
    kinds = ("multiset", "records")
    return answer | {"contents": [each for each in answer["contents"] if each["kind"] in kinds]}


@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_every_type(tmp_path: Path, kind: str) -> None:
    assert hashes(answer_of(tmp_path, kind)) == json.loads(KNOWN.read_text())[kind]


@pytest.mark.parametrize("kind", ["numbers", "label texts", "table both", "dropped", "equal"])
def test_the_same_without_what_is_compiled(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (ascending, blake2b, record_columns):
        monkeypatch.setattr(module, "COMPILED", None)
    assert hashes(answer_of(tmp_path, kind)) == json.loads(KNOWN.read_text())[kind]


@pytest.mark.parametrize("kind", ["numbers", "equal"])
def test_the_same_from_runs_on_disk(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.parts.sorted_digests.RUN_ROWS", 3000)
    monkeypatch.setattr("core.parts.sorted_digests.MERGED_ROWS", 1000)
    assert hashes(answer_of(tmp_path, kind)) == json.loads(KNOWN.read_text())[kind]


if __name__ == "__main__":
    known = json.loads(KNOWN.read_text()) if KNOWN.exists() else {}
    for name in KINDS.keys() - known.keys():
        with tempfile.TemporaryDirectory() as made_in:
            known[name] = hashes(answer_of(Path(made_in), name))
    KNOWN.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
