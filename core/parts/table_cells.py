"""Cells of a declared table as numbers, and these numbers as features. numpy alone: worker and API use it.

`CellCoder` reads a file's cells at registration. A part stores them as read: numbers unscaled, days since 1970, places
of categories, NaN for missing. `expanded` makes features of them when they are used, by the version of the declaration
that the job was priced with.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.contracts.dataset_spec import Features, NodeColumns, RegressionTask, Task
from core.contracts.table import CategoryColumn, DateColumn, NumberColumn, TableFeatures, TextColumn
from core.parts import nodes
from core.parts.columns import UnusableCell, finite, text_number
from core.parts.damage import DataDamagedError
from core.parts.stored_records import Csr, StoredPart

OTHER = -1.0  # the place of a value that is not declared
TEXT_BYTES = 6  # of a text's hash: such a number is exact in float64


class CellCoder:
    """Reads the cells of one column, as they are stored.

    Args:
        column: its declaration.
        number: converts a cell to a float; raises TypeError or ValueError.

    Attributes:
        left: numbers that may mean a missing cell.
    """

    def __init__(self, column: NumberColumn | DateColumn | CategoryColumn, number: Callable[[Any], float]) -> None:
        self.column, self.number = column, number
        self._missing = frozenset(column.missing_cells)
        self.left: Sequence[float] = [
            value for cell in self._missing if (value := _as_number(cell, number)) is not None
        ]
        self._places = (
            {str(value): place for place, value in enumerate(column.values)}
            if isinstance(column, CategoryColumn)
            else {}
        )

    def code(self, cell: Any) -> float:
        """See core.parts.columns.Coder."""
        text = cell.strip() if isinstance(cell, str) else cell
        if self._is_missing(text):
            if self.column.missing == "refuse":
                raise UnusableCell("missing")
            return OTHER if isinstance(self.column, CategoryColumn) else math.nan
        if isinstance(self.column, CategoryColumn):
            place = self._places.get(_written(text))
            if place is None and self.column.unknown == "refuse":
                raise UnusableCell("not a declared value")
            return OTHER if place is None else float(place)
        try:
            value = self.column.day(text) if isinstance(self.column, DateColumn) else self.number(text)
        except (TypeError, ValueError, OverflowError):
            raise UnusableCell(f"not a {self.column.kind}") from None
        return finite(value)

    def _is_missing(self, text: Any) -> bool:
        absent = text is None or text == "" or (isinstance(text, float) and math.isnan(text))
        return absent or (bool(self._missing) and _written(text) in self._missing)


class ContentCoder(CellCoder):
    """A number that stands for a category's cell in digests, whatever the order of the declared values."""

    def code(self, cell: Any) -> float:
        """See core.parts.columns.Coder."""
        super().code(cell)
        text = cell.strip() if isinstance(cell, str) else cell
        if self._is_missing(text):
            return math.nan
        stands_for = hashlib.sha256(_encoded(_written(text))).digest()[:TEXT_BYTES]
        return float(int.from_bytes(stands_for, "big"))


class TextCellsCoder:
    """Reads the cells of a text column: a tuple of the numbers that are stored. Zeros are no value."""

    def __init__(self, column: TextColumn) -> None:
        self.column = column
        self.nothing = (0.0,) * column.cells

    def code(self, cell: Any) -> tuple[float, ...]:
        """See core.parts.columns.Coder."""
        try:
            return self.column.stored(self.text(cell))
        except ValueError:
            raise UnusableCell("not a text of declared characters and length") from None

    @staticmethod
    def text(cell: Any) -> str:
        """The text of a cell; "" for no value."""
        if cell is None or (isinstance(cell, float) and math.isnan(cell)):
            return ""
        return _written(cell.strip() if isinstance(cell, str) else cell)


class TextContentCoder(TextCellsCoder):
    """Numbers that stand for a text in digests, whatever the order of the declared characters."""

    def code(self, cell: Any) -> tuple[float, ...]:
        """See core.parts.columns.Coder."""
        super().code(cell)  # of declared characters, which can be written as UTF-8
        stands_for = hashlib.shake_256(self.text(cell).encode()).digest(3 * self.column.cells)
        return tuple(float(int.from_bytes(stands_for[at : at + 3], "big")) for at in range(0, len(stands_for), 3))


def _encoded(text: str) -> bytes:
    """Bytes that are not UTF-8 as they were, and halves of surrogate pairs, which JSON can write."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return text.encode(errors="surrogatepass")


def _as_number(cell: str, number: Callable[[Any], float]) -> float | None:
    for reader in (number, text_number):
        with suppress(TypeError, ValueError, OverflowError):
            return reader(cell)
    return None


def _written(cell: Any) -> str:
    """The text by which a declaration names a cell: 1.0 is 1, and true is true."""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)


def entries(cells: NDArray[Any], features: TableFeatures) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Makes features of stored cells, each record's from its own: those of a sparse row.

    Args:
        cells: (n, columns), as stored.

    Returns:
        places and values, (n, features.entries) each, with ascending places. A row's other features are 0.

    Raises:
        ValueError: there is another number of columns, or a cell is none of the declared values.
    """
    if cells.ndim != 2 or cells.shape[1] != len(features.columns):
        raise ValueError("the stored cells do not have the declared columns")
    places = np.zeros((len(cells), features.entries), dtype=np.int32)
    numbers = np.ones((len(cells), features.entries), dtype=np.float32)
    at = entry = 0
    starts: dict[str, tuple[int, int]] = {}  # of a one-hot column: its entry, and the place of its first feature
    for place, column in enumerate(features.columns):
        values = cells[:, place].astype(np.float64)
        if isinstance(column, CategoryColumn) or (isinstance(column, NumberColumn) and column.bins is not None):
            coded = _value(values, column) if isinstance(column, CategoryColumn) else _bin(values, column)
            places[:, entry] = at + coded
            entry += 1
        else:
            places[:, entry : entry + column.width] = np.arange(at, at + column.width)
            _scaled(values, column, numbers[:, entry : entry + column.width])
            entry += column.width
        starts[column.name] = (entry - 1, at)
        at += column.width
    widths = {column.name: column.width for column in features.columns}
    for first, second in features.pairs:
        (a, a_at), (b, b_at) = starts[first], starts[second]
        places[:, entry] = at + (places[:, a] - a_at) * widths[second] + (places[:, b] - b_at)
        entry += 1
        at += widths[first] * widths[second]
    return places, numbers


def expanded(cells: NDArray[Any], features: TableFeatures) -> NDArray[np.float32]:
    """Returns the same features densely, (n, features.width); raises as `entries`."""
    places, numbers = entries(cells, features)
    out = np.zeros((len(cells), features.width), dtype=np.float32)
    np.put_along_axis(out, places.astype(np.int64), numbers, axis=1)
    return out


def scaled(stored: StoredPart, features: Features, *, sparse: bool = False) -> StoredPart:
    """Returns a stored part with the declared features of its cells, or with its nodes' columns or trees; other
    features are as they are.

    Args:
        stored: of nodes whose model reads trees a whole part, as no other has their neighbours.
        sparse: as sparse rows.

    Raises:
        DataDamagedError: the part does not have the declared columns and values.
    """
    if isinstance(features, NodeColumns):
        return replace(stored, x=nodes.read(np.asarray(stored.x), len(features.columns), features.keep, features.tree))
    if not isinstance(features, TableFeatures):
        return stored
    try:
        cells = np.asarray(stored.x)
        if cells.shape[1:] != (features.stored_width,):
            raise ValueError("the stored cells do not have the declared columns and texts")
        cells = cells[:, : len(features.columns)]
        return replace(stored, x=_rows(cells, features) if sparse else expanded(cells, features))
    except (TypeError, ValueError):
        raise DataDamagedError("a stored part of the data set does not have the declared columns") from None


def _rows(cells: NDArray[Any], features: TableFeatures) -> Csr:
    places, numbers = entries(cells, features)
    ends = np.arange(len(cells) + 1, dtype=np.int64) * features.entries
    return Csr(ends, places.ravel(), numbers.ravel(), (len(cells), features.width))


def standardised(stored: StoredPart, task: Task) -> StoredPart:
    """Returns a stored part with its targets' declared range as [−1, 1]; other labels are as they are."""
    if not isinstance(task, RegressionTask) or task.range is None:
        return stored
    low, high = task.range
    y = np.asarray(stored.y, dtype=np.float64)
    return replace(stored, y=2.0 * ((np.clip(y, low, high) - low) / (high - low)) - 1.0)


def in_unit(outputs: NDArray[np.float64], task: Task) -> NDArray[np.float64]:
    """Returns outputs for a standardised target in the target's unit, within its range; others as they are."""
    if not isinstance(task, RegressionTask) or task.range is None:
        return outputs
    low, high = task.range
    return low + (np.clip(outputs, -1.0, 1.0) + 1.0) / 2.0 * (high - low)


def _scaled(values: NDArray[np.float64], column: NumberColumn | DateColumn, target: NDArray[np.float32]) -> None:
    missing = np.isnan(values)
    if column.ends is None:
        target[:, 0] = np.where(missing, _substitute(column), values)
        return
    low, high = column.ends
    clipped = np.clip(np.where(missing, _substitute(column), values), low, high)
    if isinstance(column, NumberColumn) and column.scale == "log":
        clipped, low, high = np.log(clipped), math.log(low), math.log(high)
    target[:, 0] = 2.0 * ((clipped - low) / (high - low)) - 1.0
    if column.missing in ("middle", "flag"):
        target[missing, 0] = 0.0
    if column.width == 2:
        target[:, 1] = missing


def _substitute(column: NumberColumn | DateColumn) -> float:
    """What a missing number counts as; of a date, the middle is written over it."""
    return column.substitute if isinstance(column, NumberColumn) else column.ends[0]


def _bin(values: NDArray[np.float64], column: NumberColumn) -> NDArray[np.int64]:
    """The number of each value's bin."""
    missing = np.isnan(values)
    places = np.searchsorted(np.array(column.edges), np.where(missing, column.substitute, values), side="right")
    if column.missing == "own":
        places[missing] = column.width - 1
    return places


def _value(values: NDArray[np.float64], column: CategoryColumn) -> NDArray[np.int64]:
    """The place of each declared value; other ones have the last."""
    is_declared = (values >= 0) & (values < len(column.values)) & (values == np.floor(values))
    if not is_declared.all() and (column.width == len(column.values) or (values[~is_declared] != OTHER).any()):
        raise ValueError("a stored cell is none of the declared values")
    return np.where(is_declared, values, column.width - 1).astype(np.int64)
