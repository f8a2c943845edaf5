"""Turns cells into a matrix of numbers, a list of texts or a vector of labels. Bad cells are counted, not kept.

Counts of cells are reported only at registration, and only to the owner, who sent them.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.contracts.dataset_spec import ClassLabel
from app.errors import InvalidRequest

FLOAT32_MAX = float(np.finfo(np.float32).max)
CHUNK_CELLS = 1 << 20
SHOWN_LABELS = 5
SHOWN_FAULTS = 20

Fault = dict[str, Any]


def fault(pointer: str, column: str, counts: dict[str, int], note: str = "") -> list[Fault]:
    """One entry of a problem's `errors` that names column and counts; no entry if all counts are zero."""
    found = [f"{count} {what}" for what, count in counts.items() if count]
    if not found:
        return []
    detail = f"column {column!r}: " + ", ".join(found) + note
    return [{"pointer": pointer, "detail": detail, "column": column, "count": sum(counts.values())}]


def refuse(faults: Sequence[Fault], file: str) -> None:
    """Raises InvalidRequest if there are faults."""
    if faults:
        total = sum(int(each["count"]) for each in faults)
        members = {"file": file, "columns_at_fault": len(faults)}
        raise InvalidRequest(f"The data has {total} cells that cannot be used", list(faults[:SHOWN_FAULTS]), **members)


def text_number(cell: str) -> float:
    """Converts a text cell to a float; raises ValueError if it is not a number."""
    if "_" in cell:  # Python reads 20_24 as a number; a data file does not mean one
        raise ValueError
    return float(cell)


def comma_number(cell: str) -> float:
    """Converts a text cell with a decimal comma to a float; raises ValueError if it is not a number."""
    if "." in cell:  # 1.234 is a thousand and more in one country and one and more in another
        raise ValueError
    return text_number(cell.replace(",", ".", 1))


def json_number(value: Any) -> float:
    """Converts a JSON or typed cell to a float; raises TypeError or ValueError if it is not a number."""
    if not isinstance(value, int | float):
        raise TypeError
    return float(value)


class Numbers:
    """Numeric columns, row by row or in blocks.

    Args:
        columns: their names.
        pointers: where the specification names them.
        number: converts a cell to a float; raises TypeError or ValueError if it cannot.
    """

    def __init__(self, columns: Sequence[str], pointers: Sequence[str], number: Callable[[Any], float]) -> None:
        self.columns, self.pointers, self.number = columns, pointers, number
        self._cells = array("d")
        self._missing = np.zeros(len(columns), dtype=np.int64)
        self._wrong = np.zeros(len(columns), dtype=np.int64)
        self._bad = np.zeros(len(columns), dtype=np.int64)  # of the rows that were taken out

    def add(self, row: Sequence[Any]) -> None:
        """Adds one row's cells."""
        length = len(self._cells)
        try:
            self._cells.extend(map(self.number, row))
        except (TypeError, ValueError, OverflowError):
            del self._cells[length:]
            self._cells.extend([self._cell(column, cell) for column, cell in enumerate(row)])

    def add_block(self, block: NDArray[np.float64], missing: NDArray[np.int64]) -> None:
        """Adds rows whose missing cells are NaN; the caller counted these, one count a column."""
        self._cells.frombytes(np.ascontiguousarray(block).tobytes())
        self._missing += missing

    def values(self) -> NDArray[np.float64]:
        """Returns (n, columns); −0 becomes 0, so that equal numbers have equal bytes."""
        values = np.frombuffer(self._cells, dtype=np.float64).reshape(-1, len(self.columns))
        values += 0.0
        return values

    def take(self) -> NDArray[np.float64]:
        """Returns the rows since the last call, and forgets them. Faults still count them."""
        values = self.values()
        self._bad += unusable(values)
        self._cells = array("d")
        return values

    @property
    def faulty(self) -> bool:
        """True if a row that was taken has an unusable cell."""
        return bool(self._bad.any())

    def faults(self) -> list[Fault]:
        """One fault for each column with unusable cells."""
        bad = self._bad + unusable(self.values()) - self._missing - self._wrong  # these are NaN
        found = []
        for i, column in enumerate(self.columns):
            counts = {
                "missing": int(self._missing[i]),
                "not a number": int(self._wrong[i]),
                "not finite in 32 bits": int(bad[i]),
            }
            found += fault(self.pointers[i], column, counts)
        return found

    def _cell(self, column: int, cell: Any) -> float:
        try:
            return self.number(cell)
        except OverflowError:
            return math.inf
        except (TypeError, ValueError):
            absent = cell is None or (isinstance(cell, str) and not cell.strip())
            (self._missing if absent else self._wrong)[column] += 1
            return math.nan


def unusable(values: NDArray[Any]) -> NDArray[np.int64]:
    """The number of cells in each column of (n, d) that are NaN, infinite or beyond float32."""
    counts = np.zeros(values.shape[1], dtype=np.int64)
    for rows in chunks(values):
        counts += np.count_nonzero(~(np.abs(rows.astype(np.float64)) <= FLOAT32_MAX), axis=0)
    return counts


def chunks(values: NDArray[Any]) -> Iterable[NDArray[Any]]:
    """Blocks of rows with at most about CHUNK_CELLS cells, to avoid a second copy of a large matrix."""
    step = max(1, CHUNK_CELLS // max(1, values.shape[1]))
    return (values[start : start + step] for start in range(0, len(values), step))


class Texts:
    """A text column. An empty text is valid; a missing one is not."""

    def __init__(self, column: str, pointer: str) -> None:
        self.column, self.pointer = column, pointer
        self.values: list[str] = []
        self._missing = 0
        self._wrong = 0

    def add(self, row: Sequence[Any]) -> None:
        """Adds one row's text."""
        (cell,) = row
        if cell is None:
            self._missing += 1
        elif not isinstance(cell, str) or not is_unicode(cell):
            self._wrong += 1
        else:
            self.values.append(cell)

    def take(self) -> list[str]:
        """Returns the texts since the last call, and forgets them."""
        values, self.values = self.values, []
        return values

    @property
    def faulty(self) -> bool:
        """True if there is an unusable cell."""
        return self._missing + self._wrong > 0

    def faults(self) -> list[Fault]:
        """The column's fault, if it has unusable cells."""
        return fault(self.pointer, self.column, {"missing": self._missing, "not Unicode text": self._wrong})


class Classes:
    """Labels, as indices into the declared classes. A label matches a class with the same text: "1" is class 1.

    If it does not match as it is, a whole number in another notation matches too: 1.0 is class 1.
    """

    def __init__(self, column: str, pointer: str, classes: Sequence[ClassLabel]) -> None:
        self.column, self.pointer = column, pointer
        self.names = [str(each) for each in classes]
        self._index = {name: i for i, name in enumerate(self.names)}
        self._found = array("q")
        self._missing = 0
        self._unknown = 0
        self._examples: set[str] = set()

    def add(self, cell: Any) -> None:
        """Adds one label."""
        label = self._text(cell)
        index = self._index.get(label)
        if index is None:
            index = self._index.get(_whole(label))
        if index is not None:
            self._found.append(index)
        elif not label.strip():
            self._missing += 1
        else:
            self._unknown += 1
            if len(self._examples) < SHOWN_LABELS:
                self._examples.add(ascii(label[:40]))

    def values(self) -> NDArray[np.int64]:
        """The class indices, in the order of the records."""
        return np.frombuffer(self._found, dtype=np.int64)

    def take(self) -> NDArray[np.int64]:
        """Returns the class indices since the last call, and forgets them."""
        values = self.values()
        self._found = array("q")
        return values

    @property
    def faulty(self) -> bool:
        """True if there is an unusable label."""
        return self._missing + self._unknown > 0

    def faults(self) -> list[Fault]:
        """The column's fault, if it has unusable labels."""
        note = f" (such as {', '.join(sorted(self._examples))})" if self._examples else ""
        return fault(self.pointer, self.column, {"missing": self._missing, "not a declared class": self._unknown}, note)

    def _text(self, cell: Any) -> str:
        """The label's text, empty if it is missing. True and false are 1 and 0 unless they are classes."""
        if isinstance(cell, str):
            return cell
        if cell is None or (isinstance(cell, float) and math.isnan(cell)):
            return ""
        if isinstance(cell, bool):
            name = "true" if cell else "false"
            return name if name in self._index else str(int(cell))
        return str(cell) if isinstance(cell, int | float) else type(cell).__name__


class Unlabelled:
    """Stands in for labels if a record is its own label."""

    faulty = False

    def __init__(self) -> None:
        self._count = 0

    def add(self, _cell: Any) -> None:
        self.add_rows(1)

    def add_rows(self, count: int) -> None:
        self._count += count

    def take(self) -> NDArray[np.float64]:
        count, self._count = self._count, 0
        return np.zeros(count)

    def faults(self) -> list[Fault]:
        return []


class Prompts(Texts):
    """A column of prompts, each read before its record's own text. Their lengths in bytes take the place of labels."""

    def add(self, cell: Any) -> None:
        """Adds one prompt."""
        super().add((cell,))

    def before(self, texts: Sequence[str]) -> tuple[list[str], NDArray[np.float64]]:
        """The records' whole texts, and the number of bytes of each prompt. Forgets the prompts."""
        prompts = super().take()
        lengths = np.array([len(each.encode()) for each in prompts], dtype=np.float64)
        return [prompt + text for prompt, text in zip(prompts, texts, strict=True)], lengths


def _whole(label: str) -> str:
    """Converts 1.0, +1 and 1e0 to 1; returns anything else unchanged."""
    try:
        value = text_number(label)
    except ValueError:
        return label
    return str(int(value)) if value.is_integer() else label


def is_unicode(text: str) -> bool:
    """Returns False if it holds lone surrogates: undecodable bytes of a CSV file, or JSON's own."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
