"""An owner's own file as records of a model: `scrimp predict JOB patients.csv --keep patient_id`.

The model's columns are taken by name, and no others are sent. Columns to keep stay on this side: they stand beside the
answers. CSV with any of four separators, JSONL and Parquet, in and out.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrimp.cells import lacking, python_rows
from scrimp.errors import InvalidRequest, MissingPackage, ScrimpError

if TYPE_CHECKING:
    from scrimp.client import Client

AT_ONCE = 1000  # the most records of one request
SEPARATORS = ",;\t|"
SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
PAIR = ("user", "item")
DECIMAL_COMMA = re.compile(r"'-?\d+,\d+'")


class UnusableFileError(ScrimpError):
    """A file that cannot be read as records, or lacks a column."""


@dataclass(frozen=True)
class RecordFile:
    """The rows of a file or of a DataFrame.

    Attributes:
        name: the file's, for errors.
        columns: their names; none if rows are no objects.
        rows: objects with a cell for each column; of JSONL whatever a line holds.
        lines: each row's last line in the file; None if the file has no lines.
    """

    name: str
    columns: Sequence[str]
    rows: Sequence[Any]
    lines: Sequence[int] | None = None

    @classmethod
    def read(cls, path: Path) -> RecordFile:
        """Reads a file, by its name's ending.

        Raises:
            UnusableFileError: it cannot be read, or has another ending.
            MissingPackage: a Parquet file needs pyarrow.
        """
        if path.suffix not in SUFFIXES:
            raise UnusableFileError(f"{path} must end in one of {', '.join(SUFFIXES)}")
        try:
            if path.suffix == ".parquet":
                table = _parquet().read_table(path)
                return cls(path.name, table.column_names, [_plain_row(row) for row in python_rows(table)])
            with path.open(encoding="utf-8-sig", newline="") as lines:
                return cls._of_csv(path.name, lines) if path.suffix != ".jsonl" else cls._of_jsonl(path.name, lines)
        except OSError as error:
            raise UnusableFileError(f"{path}: {error.strerror or error}") from None
        except (ValueError, csv.Error) as error:
            raise UnusableFileError(f"{path} cannot be read: {error}") from None

    @classmethod
    def of_frame(cls, frame: Any) -> RecordFile:
        """The rows of a pandas DataFrame; an empty cell is a missing one."""
        rows = [_plain_row({str(name): cell for name, cell in row.items()}) for row in frame.to_dict("records")]
        return cls("the frame", [str(name) for name in frame.columns], rows)

    @classmethod
    def _of_csv(cls, name: str, lines: Iterable[str]) -> RecordFile:
        text = iter(lines)
        first = next(text, "")
        reader = csv.DictReader(_rest(first, text), delimiter=max(SEPARATORS, key=first.count), strict=True)
        rows, ends = [], []
        for row in reader:
            if None in row or None in row.values():
                raise ValueError(f"line {reader.line_num} has more or fewer cells than the header")
            rows.append(row)
            ends.append(reader.line_num)
        return cls(name, list(reader.fieldnames or ()), rows, ends)

    @classmethod
    def _of_jsonl(cls, name: str, lines: Iterable[str]) -> RecordFile:
        numbered = [(at, json.loads(line)) for at, line in enumerate(lines, start=1) if line.strip()]
        rows = [row for _, row in numbered]
        objects = bool(rows) and all(isinstance(row, dict) for row in rows)
        columns = list(dict.fromkeys(key for row in rows for key in row)) if objects else []
        return cls(name, columns, rows, [at for at, _ in numbered])

    def records(self, features: Mapping[str, Any], column: str | None = None, decimal: str = ".") -> list[Any]:
        """The records that a model of these features takes, without any other column.

        Args:
            features: the data set's, as the service shows them.
            column: the column with the texts, if it is not the declared one.
            decimal: what numbers' decimals have before them.

        Raises:
            UnusableFileError: the file lacks a column.
        """
        kind = features["kind"]
        if not self.columns:
            return list(self.rows)
        if column is not None or kind in ("hashed_text", "text"):
            (name,) = self._present([column or features["column"]])
            return [row.get(name) for row in self.rows]
        if kind == "interactions":
            names = self._present(PAIR)
        elif kind == "columns":
            names = self._present(features["columns"])
        elif kind == "table":
            names = self._present([each["name"] for each in features["columns"]])
        else:
            return list(self.rows)
        declared = {each["name"]: each for each in features["columns"]} if kind == "table" else {}
        numbers = {each for each in names if kind == "columns" or declared.get(each, {}).get("kind") == "number"}
        return [
            {each: _cell(row.get(each), declared.get(each, {}), decimal if each in numbers else ".") for each in names}
            for row in self.rows
        ]

    def kept(self, keep: Sequence[str]) -> list[dict[str, Any]]:
        """The cells of the columns to carry through, one object for each row.

        Raises:
            UnusableFileError: there is no such column.
        """
        self._present(keep)
        return [{name: row.get(name) for name in keep} if keep else {} for row in self.rows]

    def place(self, at: int) -> str:
        """Where a row is, for an error about it."""
        return f"{self.name}, {f'row {at + 1:,}' if self.lines is None else f'line {self.lines[at]:,}'}"

    def _present(self, names: Sequence[str]) -> Sequence[str]:
        missing = lacking(self.columns, names)
        if missing is not None:
            raise UnusableFileError(f"{self.name} {missing}")
        return names


def answered(
    client: Client, job_id: str, records: Sequence[Any], top: int, timeout: float, file: RecordFile | None = None
) -> Iterator[dict[str, Any]]:
    """Yields the service's answer to each record, as the thousands of them are answered.

    Args:
        file: where the records came from: errors then name its lines.

    Raises:
        ScrimpError: a thousand failed; those before it were answered.
    """
    for start in range(0, max(1, len(records)), AT_ONCE):
        try:
            yield from client.predict(job_id, list(records[start : start + AT_ONCE]), top=top, timeout=timeout)
        except InvalidRequest as error:
            if file is None or not file.rows:
                raise
            places = [_in_file(fault, file, start) for fault in error.errors]
            raise InvalidRequest(
                error.problem | {"detail": f"{file.name} does not fit the model", "errors": places}
            ) from None


def _in_file(fault: Mapping[str, Any], file: RecordFile, start: int) -> dict[str, Any]:
    """A fault of the service, with the file's line in place of a record of the request."""
    _, records, at, *_ = [*str(fault["pointer"]).split("/"), "", ""]
    if records != "records" or not at.isdigit():
        return dict(fault)
    hint = "; for decimal commas give --decimal ," if DECIMAL_COMMA.search(str(fault.get("detail", ""))) else ""
    return {**fault, "pointer": file.place(start + int(at)), "detail": f"{fault.get('detail', '')}{hint}"}


def joined(columns: Sequence[Mapping[str, Any]], answers: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each row's kept cells before its answer.

    Raises:
        UnusableFileError: a kept column has the name of a member of the answer.
    """
    both = sorted(set(columns[0]) & set(answers[0])) if columns and answers else []
    if both:
        raise UnusableFileError(f"column `{both[0]}` cannot be kept: the answers have a member of this name")
    return [{**row, **answer} for row, answer in zip(columns, answers, strict=False)]


def require_writable(path: Path) -> None:
    """Raises UnusableFileError for a name that `write` cannot write, before anything is asked of a service."""
    if path.suffix not in SUFFIXES:
        raise UnusableFileError(f"{path} must end in one of {', '.join(SUFFIXES)}")
    if path.suffix == ".parquet":
        _parquet()


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes answers with what was kept: JSONL as they are, CSV and Parquet with a column for each probability.

    Raises:
        UnusableFileError: the file cannot be written.
    """
    flat = [dict(_flat(row)) for row in rows]
    columns = list(dict.fromkeys(name for row in flat for name in row))
    try:
        if path.suffix == ".parquet":
            arrays = {name: [row.get(name) for row in flat] for name in columns}
            _parquet().write_table(import_module("pyarrow").table(arrays), path)
            return
        with path.open("w", encoding="utf-8", newline="") as out:
            if path.suffix == ".jsonl":
                out.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
                return
            writer = csv.DictWriter(out, columns, delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(flat)
    except OSError as error:
        raise UnusableFileError(f"{path}: {error.strerror or error}") from None


def _flat(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if name == "probabilities":
            yield from ((f"probability_{label}", share) for label, share in value.items())
        else:
            yield name, json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def _rest(first: str, text: Iterator[str]) -> Iterator[str]:
    yield first
    yield from text


def _plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of Parquet or pandas in JSON's types; dates stay dates."""
    return {name: _plain(cell) for name, cell in row.items()}


def _plain(cell: Any) -> Any:
    cell = cell.item() if type(cell).__module__ == "numpy" else cell
    if isinstance(cell, Decimal):
        return float(cell)
    return None if cell != cell or (isinstance(cell, float) and math.isnan(cell)) else cell  # noqa: PLR0124 - NaT


def _cell(cell: Any, column: Mapping[str, Any], decimal: str) -> Any:
    """A cell as the service reads it: a date in the declared format, a number's decimals after a point."""
    if isinstance(cell, date):
        pattern = column.get("format", "iso")
        return cell.isoformat() if pattern == "iso" else cell.strftime(pattern)
    return cell.replace(",", ".", 1) if decimal == "," and isinstance(cell, str) and "." not in cell else cell


def _parquet() -> Any:
    try:
        return import_module("pyarrow.parquet")
    except ImportError:
        raise MissingPackage("a Parquet file", "pyarrow", "scrimp-client[arrow]") from None
