"""Guesses a declaration from a data file, to be edited: `scrimp datasets init`. Reads the file here; sends nothing.

A guess is made from the data, and a declaration is public. So its owner must check what it says (classes, values,
ranges, the number of records) against what is known without the data: `Guess.notes` names each place.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from scrimp.errors import MissingPackage, ScrimpError

GZIP = b"\x1f\x8b"
LABELS = ("label", "y", "target", "class", "outcome", "diagnosis")
PERSONS = re.compile(r"(^|_)(user|patient|person|customer|subject|client|member)(_?id)?$", re.IGNORECASE)
LOOKED_AT = 20_000  # rows from which columns are guessed; all rows are counted
MOST_CLASSES, MOST_VALUES = 50, 20
TEXT_WORDS = 4  # more words on average than this: a text
DATE = re.compile(r"(\d{4})-\d{2}-\d{2}|(\d{1,2})\.(\d{1,2})\.(\d{4})")


@dataclass
class Guess:
    """A declaration to edit, and what to check in it."""

    spec: dict[str, Any]
    notes: list[str] = field(default_factory=list)


class UnreadableFileError(ScrimpError):
    """The file's columns cannot be guessed."""


def guess(file: Path) -> Guess:
    """Guesses format, columns, label and classes of a data file.

    Raises:
        UnreadableFileError: it is none of CSV, JSONL, Parquet, NPZ and Arrow, or it holds no records.
    """
    head = _head(file)
    if head == b"PK\x03\x04":
        return _arrays(file)
    if head == b"PAR1":
        return _table(file, "parquet", *_of_parquet(file))
    if head == b"ARRO":
        return _table(file, "arrow", *_of_arrow(file))
    if b"\x00" in head and head[:2] != GZIP:
        raise UnreadableFileError("it is none of CSV, JSONL, Parquet, NPZ and Arrow")
    with _text(file) as lines:
        first = lines.readline()
        lines.seek(0)
        if first.lstrip().startswith("{"):
            return _table(file, "jsonl", *_counted(json.loads(line) for line in lines if line.strip()))
        separator = max(",;\t|", key=first.count)
        found = _counted(csv.DictReader(lines, delimiter=separator))
    made = _table(file, "csv", *found)
    decimal = "," if separator != "," and _has_decimal_commas(found[0]) else "."
    if (separator, decimal) != (",", "."):
        made.spec["csv"] = {"separator": separator, "decimal": decimal}
    return made


def _head(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(4)


@contextmanager
def _text(file: Path) -> Iterator[TextIO]:
    packed = _head(file)[:2] == GZIP
    raw: Any = gzip.open(file, "rb") if packed else file.open("rb")  # noqa: SIM115 - closed with its wrapper
    with io.TextIOWrapper(raw, encoding="utf-8-sig", errors="replace", newline="") as lines:
        yield lines


def _counted(rows: Iterable[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """The first rows, and how many there are."""
    try:
        rows = iter(rows)
        looked_at = list(islice(rows, LOOKED_AT))
        return looked_at, len(looked_at) + sum(1 for _ in rows)
    except (ValueError, csv.Error) as error:
        raise UnreadableFileError(f"the file cannot be read as CSV or JSONL: {error}") from None


def _arrow(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise MissingPackage("a Parquet or Arrow file", "pyarrow", "scrimp-client[arrow]") from None


def _of_parquet(file: Path) -> tuple[list[dict[str, Any]], int]:
    pq = _arrow("pyarrow.parquet")
    with pq.ParquetFile(file) as opened:
        first: list[dict[str, Any]] = (
            next(opened.iter_batches(LOOKED_AT)).to_pylist() if opened.metadata.num_rows else []
        )
        return first, int(opened.metadata.num_rows)


def _of_arrow(file: Path) -> tuple[list[dict[str, Any]], int]:
    pa = _arrow("pyarrow")
    rows: list[dict[str, Any]] = []
    count = 0
    with pa.OSFile(str(file)) as source:
        reader = pa.ipc.open_file(source)
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            rows += batch.slice(0, LOOKED_AT - len(rows)).to_pylist() if len(rows) < LOOKED_AT else []
            count += batch.num_rows
    return rows, count


def _arrays(file: Path) -> Guess:
    try:
        from numpy.lib import format as npy
    except ImportError:
        raise MissingPackage("an NPZ file", "numpy", "scrimp-client[model]") from None

    shapes: dict[str, tuple[int, ...]] = {}
    with zipfile.ZipFile(file) as archive:
        for member in archive.namelist():
            with archive.open(member) as opened:
                version = npy.read_magic(opened)
                read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
                shapes[member.removesuffix(".npy")] = read(opened)[0]
    vectors = [name for name, shape in shapes.items() if len(shape) == 1]
    wide = [name for name, shape in shapes.items() if len(shape) > 1]
    if not vectors or not wide:
        raise UnreadableFileError("an NPZ file needs an array of records and one of labels")
    label = next((name for name in LABELS if name in vectors), vectors[0])
    task = {"kind": "classification", "label": label, "classes": [0, 1]}
    made = Guess(_spec(file, "npz", task, {"kind": "tensor", "array": wide[0]}, shapes[label][0]))
    made.notes = ["`task.classes`: list the classes; labels are not looked at", *_always(shapes[label][0])]
    return made


def _table(file: Path, format: str, rows: list[dict[str, Any]], count: int) -> Guess:
    names = list(rows[0]) if rows else []
    if len(names) < 2:
        raise UnreadableFileError("the file has no records with a label and a feature")
    columns = {name: [row.get(name) for row in rows] for name in names if isinstance(name, str)}
    label = next((name for each in LABELS for name in names if name.lower() == each), names[-1])
    persons = [name for name in columns if PERSONS.search(name) and name != label]
    task, notes = _task(label, columns[label])
    inputs = {name: cells for name, cells in columns.items() if name != label and name not in persons}
    texts = [name for name, cells in inputs.items() if _is_text(cells)]
    if texts:
        features: dict[str, Any] = {"kind": "text", "column": texts[0]}
        notes.append(f"`features`: the text column {texts[0]!r}; other columns are not used")
    else:
        features, more = _columns(inputs)
        notes += more
    if persons:
        notes.append(
            f"`privacy.unit`: {persons[0]!r} looks like a person's id; if a person can have several records, declare "
            f'"unit": "user", "user_column": "{persons[0]}", "max_records_per_user": k'
        )
    return Guess(_spec(file, format, task, features, count), [*notes, *_always(count)])


def _task(label: str, cells: list[Any]) -> tuple[dict[str, Any], list[str]]:
    found = sorted({str(cell) for cell in cells if cell not in (None, "")})
    if len(found) <= MOST_CLASSES and (len(found) <= MOST_VALUES or not all(map(_is_number, found))):
        whole = all(re.fullmatch(r"-?\d{1,15}", each) for each in found)
        classes = sorted(map(int, found)) if whole else found
        note = f"`task.classes`: those that occur in {label!r}; list them as they are known without the data"
        return {"kind": "classification", "label": label, "classes": classes}, [note]
    return {"kind": "regression", "label": label}, []


def _columns(inputs: dict[str, list[Any]]) -> tuple[dict[str, Any], list[str]]:
    """Plain columns if all cells are numbers, else a table."""
    present = {name: [cell for cell in cells if cell not in (None, "")] for name, cells in inputs.items()}
    plain = [name for name, cells in present.items() if len(cells) == len(inputs[name]) and all(map(_is_number, cells))]
    if len(plain) == len(inputs):
        return {"kind": "columns", "columns": plain}, []
    columns, notes = [], []
    for name, cells in present.items():
        lacks = len(cells) < len(inputs[name])
        column = _column(name, cells, lacks)
        if column is None:
            notes.append(f"column {name!r} is left out: it has many values that are neither numbers nor dates")
            continue
        columns.append(column)
        what = "`range`" if "range" in column else "`values`"
        notes.append(f"column {name!r}: declare its {what} from public knowledge, not from the data")
    return {"kind": "table", "columns": columns}, notes


def _column(name: str, cells: list[Any], lacks: bool) -> dict[str, Any] | None:
    if cells and all(map(_is_number, cells)):
        values = [_number(cell) for cell in cells]
        column = {"name": name, "kind": "number", "range": _round_range(min(values), max(values))}
        return column | ({"missing": "flag"} if lacks else {})
    dated = [DATE.fullmatch(str(cell)[:10]) for cell in cells]
    if cells and all(dated):
        years = [int(each[1] or each[4]) for each in dated if each is not None]
        column = {"name": name, "kind": "date", "range": [f"{min(years)}-01-01", f"{max(years)}-12-31"]}
        pattern = {} if all(each[1] for each in dated if each is not None) else {"format": "%d.%m.%Y"}
        return column | pattern | ({"missing": "flag"} if lacks else {})
    values_of = sorted({str(cell) for cell in cells})
    if not 0 < len(values_of) <= MOST_VALUES:
        return None
    column = {"name": name, "kind": "category", "values": values_of, "unknown": "other"}
    return column | ({"missing": "other"} if lacks else {})


def _round_range(low: float, high: float) -> list[float]:
    """A wide range of round ends: the exact smallest and largest values each belong to a record."""
    unit = 10.0 ** math.ceil(math.log10(max(abs(low), abs(high), 1.0)))
    return [0.0 if low >= 0 else -unit, unit if high > 0 else 0.0]


def _is_text(cells: list[Any]) -> bool:
    texts = [cell for cell in cells if isinstance(cell, str) and cell]
    return bool(texts) and sum(len(cell.split()) for cell in texts) > TEXT_WORDS * len(texts)


def _is_number(cell: Any) -> bool:
    try:
        return math.isfinite(_number(cell))
    except (TypeError, ValueError):
        return False


def _number(cell: Any) -> float:
    if isinstance(cell, str) and "_" not in cell:
        return float(cell.replace(",", ".", 1)) if "." not in cell else float(cell)
    if isinstance(cell, int | float) and not isinstance(cell, bool):
        return float(cell)
    raise ValueError


def _has_decimal_commas(rows: list[dict[str, Any]]) -> bool:
    cells = (cell for row in rows[:1000] for cell in row.values() if isinstance(cell, str))
    return any(re.fullmatch(r"-?\d+,\d+", cell) for cell in cells)


def rounded(count: int) -> int:
    """Rounds a count to tens, or to two digits, as the service does when it suggests one (app.contracts).

    >>> rounded(24_873), rounded(943), rounded(64)
    (25000, 940, 60)
    """
    unit: int = 10 ** max(1, len(str(count)) - 2)
    return max(unit, (count + unit // 2) // unit * unit)


def _spec(file: Path, format: str, task: dict[str, Any], features: dict[str, Any], count: int) -> dict[str, Any]:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", file.name.split(".")[0]).strip("-.") or "data"
    privacy = {"sensitivity": "private", "unit": "example", "records": rounded(count), "cap": {"epsilon": 4.0}}
    return {
        "name": name[:80],
        "format": format,
        "task": task,
        "features": features,
        "privacy": privacy | {"filter": "gdp"},
        "holdout": {"kind": "split", "fraction": 0.2},
    }


def _always(count: int) -> list[str]:
    return [
        f"`privacy.records`: the file has {count}; it is rounded, as an exact number becomes public once declared",
        "`privacy.slots`: at most so many records of each part, by default 5 % more than declared and 64; choose them "
        "from what you expect to be true of the data",
        "`privacy.filter`: `gdp` admits full-batch jobs only, with an exact ε; declare `rdp` for mini-batches",
        "`privacy.cap.epsilon`: the most that all jobs together may spend",
    ]
