"""Cells of a declared table as a model's features, as the service makes them (core.parts.table_cells; tests compare).

number, date   clipped to the declared range, which becomes [−1, 1]; without a range the number itself
               a missing one is the middle, 0, or the declared number; with `flag`, a further feature is 1
               a log scale maps log x; with `bins`, a feature for each, and one for a missing cell of its `own`
category       a feature for each declared value, and one for `other` if the declaration has it
pair           the product of each feature of the one with each of the other
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Any

import numpy as np

from scrimp.cells import require_columns, shown, text_number
from scrimp.specs import CategoryColumn, DateColumn, NumberColumn, TableFeatures

Column = NumberColumn | DateColumn | CategoryColumn
EPOCH = date(1970, 1, 1)
FLOAT32_MAX = 3.4028234663852886e38


class UnusableCell(ValueError):
    """A cell that the declaration refuses; the text says why."""


def features_of(record: Any, table: TableFeatures, at: int) -> list[float]:
    """One record's features, in the order of the model's inputs.

    Args:
        record: an object with a cell for each column, or the cells in the columns' order; None or "" for a missing one.
            Other members are ignored.
        at: its place among the records, for the error.

    Raises:
        ValueError: a cell is not as declared.
    """
    names = [column.name for column in table.columns]
    if isinstance(record, np.ndarray):
        record = record.tolist()
    if isinstance(record, Sequence) and not isinstance(record, str) and len(record) == len(names):
        record = dict(zip(names, record, strict=True))
    if not isinstance(record, Mapping):
        raise ValueError(
            f"records/{at}: a record of this model must be an object with a cell for each of {len(names)} columns"
        )
    if not record.keys() <= set(names):  # a name that is misspelt must not read as a missing cell
        require_columns(record, names, at)
    features: dict[str, list[float]] = {}
    for column in table.columns:
        try:
            features[column.name] = list(_features(column, record.get(column.name)))
        except UnusableCell as error:
            cell = record.get(column.name)
            problem = error if cell is None or str(error) == "missing" else f"{shown(cell)} is {error}"
            raise ValueError(f"records/{at}/{column.name}: column {column.name!r}: {problem}") from None
    pairs = (a * b for first, second in table.pairs for a in features[first] for b in features[second])
    return [*(value for values in features.values() for value in values), *pairs]


def _features(column: Column, cell: Any) -> Iterator[float]:
    cell = cell.item() if isinstance(cell, np.generic) else cell
    cell = cell.strip() if isinstance(cell, str) else cell
    absent = cell is None or cell == "" or (isinstance(cell, float) and math.isnan(cell))
    missing = absent or (bool(column.missing_cells) and _written(cell) in column.missing_cells)
    if missing and column.missing == "refuse":
        raise UnusableCell("missing")
    if isinstance(column, CategoryColumn):
        return _one_hot(column, None if missing else _written(cell))
    value = None if missing else (_day(column, cell) if isinstance(column, DateColumn) else _number(cell))
    if isinstance(column, NumberColumn):
        value = _substituted(column, value)
        return _scaled(column, value) if column.bins is None else _binned(column, value)
    return _scaled(column, value)


def _substituted(column: NumberColumn, value: float | None) -> float | None:
    """The number that a missing one counts as, if it is declared."""
    return column.missing if value is None and isinstance(column.missing, float) else value


def _one_hot(column: CategoryColumn, text: str | None) -> Iterator[float]:
    values = [str(value) for value in column.values]
    if text is not None and text not in values and column.unknown == "refuse":
        raise UnusableCell("not a declared value")
    yield from (float(value == text) for value in values)
    if "other" in (column.unknown, column.missing):
        yield float(text not in values)


def _scaled(column: NumberColumn | DateColumn, value: float | None) -> Iterator[float]:
    if column.range is None:
        yield value or 0.0
        return
    low, high = (float((end - EPOCH).days) if isinstance(end, date) else end for end in column.range)
    at = low if value is None else min(max(value, low), high)
    if isinstance(column, NumberColumn) and column.scale == "log":
        low, high, at = math.log(low), math.log(high), math.log(at)
    yield 0.0 if value is None else 2.0 * ((at - low) / (high - low)) - 1.0
    if column.missing == "flag":
        yield float(value is None)


def _binned(column: NumberColumn, value: float | None) -> Iterator[float]:
    edges = _edges(column)
    if value is None and column.missing == "middle" and column.range is not None:
        low, high = column.range
        value = math.sqrt(low) * math.sqrt(high) if column.scale == "log" else low / 2 + high / 2
    place = len(edges) + 1 if value is None else bisect_right(edges, value)
    yield from (float(each == place) for each in range(len(edges) + 1 + (column.missing == "own")))


def _edges(column: NumberColumn) -> list[float]:
    """The edges between bins, as the service has them to the last bit."""
    if not isinstance(column.bins, int) or column.range is None:
        return list(column.bins) if isinstance(column.bins, list | tuple) else []
    (low, high), bins = column.range, column.bins
    if column.scale == "log":
        return [low * (high / low) ** (each / bins) for each in range(1, bins)]
    return [low + (high - low) * (each / bins) for each in range(1, bins)]


def _number(cell: Any) -> float:
    try:
        cell = text_number(cell) if isinstance(cell, str) else cell
    except ValueError:
        raise UnusableCell("not a number") from None
    if not isinstance(cell, int | float):
        raise UnusableCell("not a number")
    if not abs(cell) <= FLOAT32_MAX:
        raise UnusableCell("not finite in 32 bits")
    return float(np.float32(cell))


def _day(column: DateColumn, cell: Any) -> float:
    """Days since 1970."""
    try:
        if isinstance(cell, date) and not isinstance(cell, datetime):
            day = cell
        elif isinstance(cell, datetime):
            day = cell.date()
        elif column.format == "iso":
            day = datetime.fromisoformat(cell).date()
        else:
            day = datetime.strptime(cell, column.format).date()
    except (TypeError, ValueError):
        raise UnusableCell("not a date") from None
    return float((day - EPOCH).days)


def _written(cell: Any) -> str:
    """The text by which a declaration names a cell: 1.0 is 1, and true is true."""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)
