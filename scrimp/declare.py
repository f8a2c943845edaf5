"""Proposes a declaration of a data file, to be edited: `scrimp datasets init`. Reads the file here; sends nothing.

A declaration is public. What it takes from the data (classes, values, ranges, the number of records) its owner must
check against what is known without the data: `Proposal.rows` marks each column, and `Proposal.notes` names the rest.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from scrimp.cells import python_rows
from scrimp.column_names import public_column, words
from scrimp.column_rows import Row, WrongCell, classes_or_range, is_text, row_of, wrong_cells
from scrimp.errors import MissingPackage, ScrimpError

GZIP = b"\x1f\x8b"
_NUMBER = "_?(id|no|nr|number|key|code|hash|pseudonym)"
PERSONS = re.compile(  # of a name in words (scrimp.column_names); also in columns.js
    rf"(^|_)((user|patient|person|customer|subject|client|member)({_NUMBER})?"
    rf"|(participant|employee|student|citizen|insured){_NUMBER}|mrn|ssn|pid|nhs_number|pseudonym)$"
)
LOOKED_AT = 20_000  # rows from which columns are guessed; all rows are counted
MOST_ROWS = 200  # columns that are proposed one by one
KEPT_SHARE = 0.95  # of the people: so many have no more records than are proposed for one
BOUNDS = (1, 2, 3, 5, 10, 20, 50, 100)
PLANS = {  # which jobs are expected, and what each plan buys; as in core.contracts.filter_names
    "models mostly": (
        "Full-batch jobs at their exact ε, some 5 % fewer of them than under gdp alone: in return you may declare "
        "mixed later."
    ),
    "mixed": (
        "The same, and the first job or charge that samples or is no Gaussian moves the ledger, for good: from then on "
        "anything is admitted, and some 15 % fewer jobs fit than under gdp alone."
    ),
    "any mechanism": (
        "Every job and charge from the first day, and some 10 % fewer full-batch jobs than under gdp alone; a single "
        "job's ε reads 2 to 8 times as large."
    ),
}
BOUND_NOTE = (
    "`privacy.max_records_per_user`: most people of the file have no more records; say what you know without the data"
)


class UnreadableFileError(ScrimpError):
    """The file's columns cannot be read."""


class UnknownColumnError(ScrimpError):
    """The file has no such column to predict, or none was named."""


@dataclass(frozen=True)
class Sheet:
    """A file's columns as they are read here.

    Attributes:
        columns: the cells of the first LOOKED_AT records, by column; of an NPZ file each array's shape.
        count: of all records.
    """

    file: Path
    format: str
    columns: dict[str, list[Any]]
    count: int
    csv: dict[str, str] = field(default_factory=dict)

    @property
    def labels(self) -> list[str]:
        """The columns that may be predicted."""
        if self.format != "npz":
            return list(self.columns)
        return [name for name, shape in self.columns.items() if len(shape) == 1]

    @property
    def persons(self) -> list[str]:
        """The columns that look like a person's id: by their names, or an `id` that comes again."""
        return [name for name, cells in self.columns.items() if self.format != "npz" and _is_person(name, cells)]


def _is_person(name: str, cells: list[Any]) -> bool:
    plain = words(name)
    return PERSONS.search(plain) is not None or (plain == "id" and len(set(map(str, cells))) < len(cells))


@dataclass
class Proposal:
    """A declaration to edit.

    Attributes:
        rows: its columns, one by one.
        notes: what else to check in it.
        wrong: the first cells that it does not allow; the service refuses the file while it has them.
        looked_at: of so many records.
    """

    spec: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    wrong: list[WrongCell] = field(default_factory=list)
    looked_at: int = 0


def propose(sheet: Sheet, label: str | None, person: str | None = None) -> Proposal:
    """Proposes a declaration that predicts the column `label`, and protects each person if `person` names their column.

    Raises:
        UnknownColumnError: the label or the person is no column of the file.
        UnreadableFileError: the label is neither of a few classes nor a number, or no feature is left.
    """
    labels = sheet.labels
    if label not in labels or person in (label, "") or (person is not None and person not in sheet.columns):
        wrong = "which column is to be predicted?" if label is None else f"no column {person or label!r} to use so"
        raise UnknownColumnError(f"{wrong} The file has {', '.join(labels[:20])}")
    if sheet.format == "npz":
        return _of_arrays(sheet, label)
    return _of_table(sheet, label, person)


def with_plan(spec: dict[str, Any], plan: str | None) -> dict[str, Any]:
    """The declaration with a plan in the place of its filter; as it is without one."""
    if plan is None:
        return spec
    privacy = {name: value for name, value in spec.get("privacy", {}).items() if name != "filter"}
    return spec | {"privacy": privacy | {"plan": plan}}


def read_sheet(file: Path) -> Sheet:
    """Reads the columns of a data file.

    Raises:
        UnreadableFileError: it is none of CSV, JSONL, Parquet, NPZ and Arrow, or it holds no records.
    """
    head = _head(file)
    if head == b"PK\x03\x04":
        return _arrays(file)
    if head == b"PAR1":
        return _sheet(file, "parquet", *_of_parquet(file))
    if head == b"ARRO":
        return _sheet(file, "arrow", *_of_arrow(file))
    if b"\x00" in head and head[:2] != GZIP:
        raise UnreadableFileError("it is none of CSV, JSONL, Parquet, NPZ and Arrow")
    with _text(file) as lines:
        first = lines.readline()
        lines.seek(0)
        if first.lstrip().startswith("{"):
            return _sheet(file, "jsonl", *_counted(json.loads(line) for line in lines if line.strip()))
        separator = max(",;\t|", key=first.count)
        rows, count = _counted(csv.DictReader(lines, delimiter=separator))
    decimal = "," if separator != "," and _has_decimal_commas(rows) else "."
    dialect = {} if (separator, decimal) == (",", ".") else {"separator": separator, "decimal": decimal}
    return _sheet(file, "csv", rows, count, dialect)


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
        first = next(opened.iter_batches(LOOKED_AT)) if opened.metadata.num_rows else None
        return _plain(first) if first is not None else [], int(opened.metadata.num_rows)


def _of_arrow(file: Path) -> tuple[list[dict[str, Any]], int]:
    pa = _arrow("pyarrow")
    rows: list[dict[str, Any]] = []
    count = 0
    with pa.OSFile(str(file)) as source:
        reader = pa.ipc.open_file(source)
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            rows += _plain(batch.slice(0, LOOKED_AT - len(rows)), len(rows)) if len(rows) < LOOKED_AT else []
            count += batch.num_rows
    return rows, count


def _plain(batch: Any, rows_before: int = 0) -> list[dict[str, Any]]:
    try:
        return python_rows(batch, rows_before)
    except ValueError as error:
        raise UnreadableFileError(f"the file cannot be read: {error}") from None


def _arrays(file: Path) -> Sheet:
    try:
        from numpy.lib import format as npy
    except ImportError:
        raise MissingPackage("an NPZ file", "numpy", "scrimp-client[model]") from None

    shapes: dict[str, list[int]] = {}
    with zipfile.ZipFile(file) as archive:
        for member in archive.namelist():
            with archive.open(member) as opened:
                version = npy.read_magic(opened)
                read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
                shapes[member.removesuffix(".npy")] = list(read_header(opened)[0])
    vectors = [shape for shape in shapes.values() if len(shape) == 1]
    if not vectors or len(vectors) == len(shapes):
        raise UnreadableFileError("an NPZ file needs an array of records and one of labels")
    return Sheet(file, "npz", shapes, vectors[0][0])


def _sheet(
    file: Path, format: str, rows: list[dict[str, Any]], count: int, dialect: dict[str, str] | None = None
) -> Sheet:
    names = [name for name in rows[0] if isinstance(name, str)] if rows else []
    if len(names) < 2:
        raise UnreadableFileError("the file has no records with a label and a feature")
    columns = {name: [row.get(name) for row in rows] for name in names}
    return Sheet(file, format, columns, count, dialect or {})


def _of_arrays(sheet: Sheet, label: str) -> Proposal:
    task = {"kind": "classification", "label": label, "classes": [0, 1]}
    wide = next(name for name, shape in sheet.columns.items() if len(shape) > 1)
    spec = _spec(sheet, task, {"kind": "tensor", "array": wide}, _example(sheet.count))
    return Proposal(spec, [], ["`task.classes`: list the classes; labels are not looked at", *_always(sheet)])


def _of_table(sheet: Sheet, label: str, person: str | None) -> Proposal:
    task = classes_or_range(label, sheet.columns[label])
    if task is None:
        raise UnreadableFileError(f"column {label!r} is neither a number nor one of a few classes: predict another one")
    unused = {label, person, *sheet.persons}
    inputs = {name: cells for name, cells in sheet.columns.items() if name not in unused}
    features, used = _features(inputs)
    rows = [
        _used(name, label, person, task) or used.get(name) or Row(name, "left out: a person's id")
        for name in sheet.columns
    ]
    protected = _people(sheet, sheet.columns[person], person) if person else _example(sheet.count)
    notes = [BOUND_NOTE] if person else []
    columns = features.get("columns", ())
    declared = [{"name": each, "kind": "number"} if isinstance(each, str) else each for each in columns]
    wrong = wrong_cells(sheet.columns, declared, task)
    spec = _spec(sheet, task, features, protected)
    return Proposal(spec, rows, [*notes, *_always(sheet, person)], wrong, len(sheet.columns[label]))


def _used(name: str, label: str, person: str | None, task: dict[str, Any]) -> Row | None:
    """The row of a column that is no feature: the label, or the person's id."""
    if name == label:
        public = public_column(name)
        origin = "name" if "range" in task and public and public.range else "data"
        return Row(name, "predicted", {each: task[each] for each in ("classes", "range") if each in task}, origin)
    return Row(name, "tells people apart") if name == person else None


def _features(inputs: dict[str, list[Any]]) -> tuple[dict[str, Any], dict[str, Row]]:
    """Features: a text alone, or a table."""
    text = next((name for name, cells in inputs.items() if is_text(cells)), None)
    if text is not None:
        left_out = {name: Row(name, "left out: a text is used alone") for name in inputs}
        return {"kind": "text", "column": text}, left_out | {text: Row(text, "text")}
    rows = {name: row_of(name, cells) for name, cells in inputs.items()}
    if len(inputs) > MOST_ROWS:
        return _of_many(inputs, rows)
    columns = [row.column for row in rows.values() if row.column]
    if not columns:
        raise UnreadableFileError("no column is left as a feature: numbers, dates and few values can be")
    return {"kind": "table", "columns": columns}, rows


def _of_many(inputs: dict[str, list[Any]], rows: dict[str, Row]) -> tuple[dict[str, Any], dict[str, Row]]:
    """Features of a table with too many columns to read through: nothing in them comes from the cells.

    Numbers without a gap are used as they are. Else only what is public by a column's name is declared, as its owner
    would not see the ranges and values of the others.
    """
    columns = [row.column for row in rows.values()]
    if all(column.get("kind") == "number" and "missing" not in column for column in columns):
        return {"kind": "columns", "columns": list(inputs)}, {name: Row(name, "as it is") for name in inputs}
    public = {
        name: replace(row, column={each: value for each, value in row.column.items() if each != "missing"})
        for name, row in rows.items()
        if row.origin == "name"
    }
    if not public:
        raise UnreadableFileError(
            f"{len(inputs)} columns are too many to propose one by one, and none is known by its name: declare those "
            "that you use in `features.columns` (docs/data.md)"
        )
    rows_left_out = {name: Row(name, "left out: declare it yourself, of so many columns") for name in rows}
    return {"kind": "table", "columns": [row.column for row in public.values()]}, rows_left_out | public


def _has_decimal_commas(rows: list[dict[str, Any]]) -> bool:
    cells = (cell for row in rows[:1000] for cell in row.values() if isinstance(cell, str))
    return any(re.fullmatch(r"-?\d+,\d+", cell) for cell in cells)


def rounded(count: int) -> int:
    """Rounds a count to tens, or to two digits, as the service does when it suggests one (core.contracts).

    >>> rounded(24_873), rounded(943), rounded(64)
    (25000, 940, 60)
    """
    unit: int = 10 ** max(1, len(str(count)) - 2)
    return max(unit, (count + unit // 2) // unit * unit)


def _example(count: int) -> dict[str, Any]:
    return {"unit": "example", "records": rounded(count)}


def _people(sheet: Sheet, cells: list[Any], person: str) -> dict[str, Any]:
    """The unit `user`: how many people, and the records of one that most of them do not exceed."""
    records = sorted(Counter(str(cell) for cell in cells).values())
    usual = records[min(len(records) - 1, int(KEPT_SHARE * len(records)))]
    bound = next((each for each in BOUNDS if each >= usual), BOUNDS[-1])
    people = rounded(len(records) * sheet.count // len(cells))
    return {"unit": "user", "user_column": person, "max_records_per_user": bound, "records": people}


def _spec(sheet: Sheet, task: dict[str, Any], features: dict[str, Any], protected: dict[str, Any]) -> dict[str, Any]:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", sheet.file.name.split(".")[0]).strip("-.") or "data"
    return {
        "name": name[:80],
        "format": sheet.format,
        "task": task,
        "features": features,
        **({"csv": sheet.csv} if sheet.csv else {}),
        "privacy": {"sensitivity": "private", **protected, "cap": {"epsilon": 4.0}, "filter": "gdp"},
        "holdout": {"kind": "split", "fraction": 0.2},
    }


def _always(sheet: Sheet, person: str | None = None) -> list[str]:
    counted = f"from the file's {sheet.count} records"
    if person is not None:
        counted = f"the people that {person} tells apart in the file's {sheet.count} records"
    return [
        f"`privacy.records`: {counted}, rounded, as an exact number becomes public",
        "`privacy.slots`: at most so many records of each part, by default 5 % more than declared and 64; choose them "
        "from what you expect to be true of the data",
        "`privacy.filter`: `gdp` admits full-batch jobs only, with an exact ε; or in its place a `plan` (--plan)",
        *(f"`privacy.plan` {plan!r}: {buys}" for plan, buys in PLANS.items()),
        "`privacy.cap.epsilon`: the most that all jobs together may spend",
    ]
