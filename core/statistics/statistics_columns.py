"""Declared columns as statistics read them: numbers on a grid, cells of a histogram, filters. Pure; numpy alone.

All depends on a record's own cells and on the declaration. A missing cell is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from core.contracts.dataset_spec import ClassificationTask, Columns, Features, RegressionTask, Task
from core.contracts.queries import Where
from core.contracts.table import EPOCH, CategoryColumn, DateColumn, NumberColumn, TableFeatures, TextColumn

ONE = 2**20  # the grid of numbers: 1 is so many steps
MISSING = "missing"
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
TableColumn = NumberColumn | DateColumn | CategoryColumn
Float32s = NDArray[np.float32]


class UnknownColumn(ValueError):
    """A query names a column that the data set does not declare, or one that it does not fit."""


@dataclass(frozen=True)
class Cells:
    """Records' cells: `x` (n, columns) as stored, and `y` (n,) the label.

    Attributes:
        present: (n,) which rows are records; None: all. The others are of empty slots, and count nowhere.
    """

    x: NDArray[np.float32]
    y: Floats
    present: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Column:
    """A declared column. `place`: of its cells in x; None: they are the label."""

    declared: TableColumn
    place: int | None

    def values(self, cells: Cells) -> Floats:
        """Its numbers, days or places of categories, (n,); NaN where missing."""
        return cells.y if self.place is None else cells.x[:, self.place].astype(np.float64)


@dataclass(frozen=True)
class Texts:
    """A declared column of texts. `place`: of the first of its cells in x."""

    declared: TextColumn
    place: int

    def codes(self, cells: Cells) -> Float32s:
        """Its numbers as stored, (n, cells); zeros where there is no value."""
        return cells.x[:, self.place : self.place + self.declared.cells]


AnyColumn = Column | Texts


def declared_columns(features: Features, task: Task) -> dict[str, AnyColumn]:
    """The columns that statistics can read, by name: those of a table, and the label if it is declared."""
    columns_of: dict[str, AnyColumn] = {}
    if isinstance(features, TableFeatures):
        columns_of |= {each.name: Column(each, place) for place, each in enumerate(features.columns)}
        place = len(features.columns)
        for text in features.texts:
            columns_of[text.name] = Texts(text, place)
            place += text.cells
    elif isinstance(features, Columns):
        columns_of |= {name: Column(NumberColumn(name=name), place) for place, name in enumerate(features.columns)}
    if isinstance(task, ClassificationTask):
        columns_of[task.label] = Column(CategoryColumn(name=task.label, values=list(task.classes)), None)
    elif isinstance(task, RegressionTask):
        columns_of[task.label] = Column(NumberColumn(name=task.label, range=task.range), None)
    return columns_of


def column_of(columns: Mapping[str, AnyColumn], name: str) -> Column:
    """A declared column of numbers, days or categories by its name.

    Raises:
        UnknownColumn: there is none, with what it may have meant; or it is one of texts.
    """
    column = any_column_of(columns, name)
    if isinstance(column, Texts):
        raise UnknownColumn(f"{name!r} is a text without declared values: ask which are frequent by `categories`")
    return column


def texts_of(columns: Mapping[str, AnyColumn], name: str) -> Texts:
    """A declared column of texts by its name; raises as `column_of`."""
    column = any_column_of(columns, name)
    if isinstance(column, Column):
        raise UnknownColumn(f"{name!r} is a {column.declared.kind}, and `categories` are of `texts`: use a histogram")
    return column


def any_column_of(columns: Mapping[str, AnyColumn], name: str) -> AnyColumn:
    """A declared column by its name; raises UnknownColumn."""
    if name in columns:
        return columns[name]
    near = get_close_matches(name, columns, n=1)
    if near:
        raise UnknownColumn(f"{name!r} is no declared column: did you mean {near[0]!r}?")
    names = ", ".join(map(repr, list(columns)[:20]))
    raise UnknownColumn(f"{name!r} is no declared column; declared are {names or 'none'}")


@dataclass(frozen=True)
class Scale:
    """A number x of the range [center − half, center + half] as t = ⌊ONE (x − center) / half⌉, cut to [least, most].

    Attributes:
        least, most: the ends of the declared range on the grid; never beyond −ONE and ONE.
    """

    column: Column
    center: float
    half: float
    least: int = -ONE
    most: int = ONE

    @classmethod
    def of(cls, column: Column) -> Scale:
        """The scale of a column's declared range.

        Raises:
            UnknownColumn: it is no number, or has no range.
        """
        low, high = _range(column)
        return cls(column, low / 2.0 + high / 2.0, high / 2.0 - low / 2.0)

    @classmethod
    def from_zero(cls, column: Column) -> Scale:
        """The scale around 0 that holds the declared range; raises as `of`."""
        low, high = _range(column)
        half = max(abs(low), abs(high))
        return cls(column, 0.0, half, max(-ONE, round(low / half * ONE)), min(ONE, round(high / half * ONE)))

    def grid(self, cells: Cells) -> tuple[Integers, NDArray[np.bool_]]:
        """t of each record, (n,), and which records have a number; t is 0 for the others."""
        values = self.column.values(cells)
        present = ~np.isnan(values)
        with np.errstate(all="ignore"):
            scaled = np.rint((np.where(present, values, self.center) - self.center) / self.half * ONE)
            integers = np.clip(scaled, -ONE, ONE).astype(np.int64)
        return np.clip(
            integers, self.least, self.most
        ), present  # the cut on integers comes last: it holds whatever floats did


def _range(column: Column) -> tuple[float, float]:
    declared = column.declared
    if not isinstance(declared, NumberColumn):
        raise UnknownColumn(f"{declared.name!r} is a {declared.kind}: count it, by a histogram or a contingency table")
    if declared.range is None:
        raise UnknownColumn(
            f"{declared.name!r} has no declared range, which bounds what a record adds: ask the owner to declare one "
            "(`scrimp datasets declare`), or count it by a histogram with `edges`"
        )
    return declared.range


@dataclass(frozen=True)
class Axis:
    """The cells of a histogram: each record is in one.

    Attributes:
        labels: of the cells, in order.
        places: the cell of each value; the last one is that of missing, or other, values if there are any.
    """

    column: Column
    labels: tuple[str, ...]
    edges: Floats | None

    def places(self, cells: Cells) -> Integers:
        """The cell of each record, (n,)."""
        values, last = self.column.values(cells), len(self.labels) - 1
        if self.edges is None:
            is_known = (values >= 0.0) & (values < last + 1)
            return np.where(is_known, values, last).astype(np.int64)
        # Cells of a table are float32: an edge is compared as one, so that 18.3 is not below 18.3.
        edges = self.edges.astype(np.float32).astype(np.float64) if self.column.place is not None else self.edges
        places = np.searchsorted(edges, values, side="right")
        return np.where(np.isnan(values), last, places).astype(np.int64)

    @classmethod
    def of(cls, column: Column, edges: tuple[float, ...] | None = None, bins: int | None = None) -> Axis:
        """The axis of a column: its declared values, or the bins that a query names, or else declared bins.

        Raises:
            UnknownColumn: it has neither; or a category is to be cut into bins.
        """
        declared = column.declared
        if isinstance(declared, CategoryColumn):
            if edges is not None or bins is not None:
                raise UnknownColumn(f"{declared.name!r} is a category: leave `edges` and `bins` out")
            other = () if declared.other is None else (declared.other,)
            return cls(column, (*map(str, declared.values), *other), None)
        between = _edges(declared, edges, bins)
        missing = () if declared.missing == "refuse" else (MISSING,)
        return cls(column, (*_bin_labels(between, declared), *missing), np.array(between))


def _edges(declared: NumberColumn | DateColumn, edges: tuple[float, ...] | None, bins: int | None) -> tuple[float, ...]:
    if edges is not None and isinstance(declared, DateColumn):
        raise UnknownColumn(f"{declared.name!r} is a date: give `bins`, so many equal parts of its declared range")
    if edges is not None:
        return edges
    if bins is not None:
        if declared.ends is None:
            raise UnknownColumn(f"{declared.name!r} has no declared range to divide into `bins`: give `edges`")
        low, high = declared.ends
        if isinstance(declared, NumberColumn) and declared.scale == "log":
            return tuple(low * (high / low) ** (place / bins) for place in range(1, bins))
        return tuple(low + (high - low) * (place / bins) for place in range(1, bins))
    if isinstance(declared, NumberColumn) and declared.bins is not None:
        return declared.edges
    raise UnknownColumn(f"{declared.name!r} is a {declared.kind} without declared bins: give `bins`, such as 10")


def _bin_labels(edges: tuple[float, ...], declared: NumberColumn | DateColumn) -> tuple[str, ...]:
    """What each bin holds, in words: "< 18", "18 to 65", "≥ 65"."""
    written = [_number(edge, declared) for edge in edges]
    low, high = declared.ends or (None, None)
    # A value beyond the range counts in the first or last bin: so these bins are open, whatever the range.
    first = f"< {written[0]}" if low is None or low < edges[0] else f"≤ {written[0]}"
    inner = tuple(f"{one} to {two}" for one, two in pairwise(written))
    last = f"≥ {written[-1]}" if high is None or high >= edges[-1] else f"> {written[-1]}"
    return (first, *inner, last)


def _number(edge: float, declared: NumberColumn | DateColumn) -> str:
    if isinstance(declared, DateColumn):
        return date.fromordinal(EPOCH.toordinal() + math.ceil(edge)).isoformat()
    return f"{edge:.6g}"


Passes = Callable[[Cells], NDArray[np.bool_]]


def filter_of(columns: Mapping[str, AnyColumn], filters: Where) -> Passes:
    """Which records pass a filter.

    Raises:
        UnknownColumn: the column is not declared, or has no such values.
    """
    column = any_column_of(columns, filters.column)
    if isinstance(column, Texts):
        return _filter_of_texts(column, filters)
    declared = column.declared
    if filters.one_of is not None:
        wanted = _wanted(declared, filters.one_of, in_table=column.place is not None)
        return lambda cells: np.isin(column.values(cells), wanted)
    if filters.between is None or isinstance(declared, CategoryColumn):
        raise UnknownColumn(f"{filters.column!r} is a category, whose values have no order: give `in`")
    low, high = (_end(declared, end) for end in filters.between)
    if column.place is not None and isinstance(declared, NumberColumn):
        low, high = float(np.float32(low)), float(np.float32(high))  # as the cells are
    return lambda cells: (column.values(cells) >= low) & (column.values(cells) <= high)


def _filter_of_texts(column: Texts, filters: Where) -> Passes:
    if filters.one_of is None:
        raise UnknownColumn(f"{filters.column!r} is a text: give `in`")
    try:
        wanted = np.array([column.declared.stored(str(value)) for value in filters.one_of], dtype=np.float32)
    except ValueError:
        raise UnknownColumn(f"{filters.column!r} has no texts of other characters, or so long") from None

    def passes(cells: Cells) -> NDArray[np.bool_]:
        codes, is_wanted = column.codes(cells), np.zeros(len(cells), dtype=np.bool_)
        for value in wanted:
            is_wanted |= (codes == value).all(axis=1)
        return is_wanted & codes.any(axis=1)

    return passes


def _wanted(declared: TableColumn, values: tuple[int | str, ...], *, in_table: bool) -> Floats:
    if isinstance(declared, DateColumn):
        raise UnknownColumn(f"{declared.name!r} is a date: give `between`")
    if isinstance(declared, NumberColumn):
        if any(isinstance(value, str) for value in values):
            raise UnknownColumn(f"{declared.name!r} is a number: give numbers")
        numbers = np.array(values, dtype=np.float64)
        return numbers.astype(np.float32).astype(np.float64) if in_table else numbers  # as the cells are
    places = {str(value): place for place, value in enumerate(declared.values)}
    if declared.other is not None:
        places[declared.other] = -1
    for value in values:
        if str(value) not in places:
            near = get_close_matches(str(value), places, n=1)
            hint = f": did you mean {near[0]!r}?" if near else ""
            raise UnknownColumn(f"{value!r} is no declared value of {declared.name!r}{hint}")
    return np.array([places[str(value)] for value in values], dtype=np.float64)


def _end(declared: NumberColumn | DateColumn, end: float | str) -> float:
    if isinstance(declared, DateColumn):
        if not isinstance(end, str):
            raise UnknownColumn(f"{declared.name!r} is a date: give days, such as 2024-05-01")
        try:
            return float((date.fromisoformat(end) - EPOCH).days)
        except ValueError:
            raise UnknownColumn(f"{end!r} is no day") from None
    if isinstance(end, str):
        raise UnknownColumn(f"{declared.name!r} is a number: give numbers")
    return end
