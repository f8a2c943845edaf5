"""Blocks of cells, column by column: Arrow converts what is plain, and a column's coder what is not.

A coder sees each distinct cell once. Its `code` (core.parts.columns) is what a cell means; Arrow's conversions give
the same values, or leave a cell to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from app.formats.faults import Flags
from core.native import record_columns
from core.parts.columns import REASONS, Coder, TextCoder, UnusableCell, comma_number, json_number, unusable

Cells: TypeAlias = "pa.Array | list[Any]"  # a list: cells of several types, as JSON may have them
FLAGS = {reason: np.int8(place + 1) for place, reason in enumerate(REASONS)}
NUMBER = r"^-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"  # Arrow reads such texts as Python does
PLAIN = (str, int, float, bool)


class OfNumbers(Coder, Protocol):
    """Reads the cells of a column of numbers.

    Attributes:
        number: converts a cell to a float.
        left: numbers that are left to `code`.
    """

    left: Sequence[float]

    @property
    def number(self) -> Callable[[Any], float]: ...


def arrow_or_list(cells: list[Any]) -> Cells:
    """Python's cells as an array, if they have one type."""
    kinds = {type(each) for each in cells} - {type(None)}
    if len(kinds) != 1 or not kinds.issubset(PLAIN):
        return cells
    try:
        return pa.array(cells)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):  # numbers beyond 64 bits, lone surrogates
        return cells


def plain(cells: pa.Array) -> pa.Array:
    """The column without a dictionary."""
    return cells.dictionary_decode() if pa.types.is_dictionary(cells.type) else cells


def listed(cells: Cells) -> list[Any]:
    """Cells as Python has them; bytes that are not UTF-8 become lone surrogates.

    A day outside Python's years, 1 to 9999, becomes a text that is no date: it is one wrong cell, not a wrong file.
    """
    if isinstance(cells, list):
        return cells
    array = plain(cells)
    if pa.types.is_timestamp(array.type) and array.type.unit == "ns":
        array = _microseconds(array)
    try:
        values = array.to_pylist()
    except OverflowError:
        return [_day_or_text(cell) for cell in array]
    if pa.types.is_binary(array.type):
        return [None if each is None else each.decode(errors="surrogateescape") for each in values]
    return list(values)


def _microseconds(times: pa.Array) -> pa.Array:
    """Times in nanoseconds, rounded down: Python's have none, and Arrow's answer would depend on pandas."""
    floored = pc.floor_temporal(times.cast(pa.timestamp("ns")), unit="microsecond")
    return floored.cast(pa.timestamp("us")).cast(pa.timestamp("us", times.type.tz))


def _day_or_text(cell: pa.Scalar) -> Any:
    try:
        return cell.as_py()
    except OverflowError:
        return f"{cell.value} as {cell.type}"


def cell_at(cells: Cells) -> Callable[[int], Any]:
    """The cell at a place."""
    return lambda place: listed(cells[place : place + 1])[0]


def coded(cells: Cells, coder: Coder, stand_in: Any) -> tuple[list[Any], Flags]:
    """The codes of cells, each distinct one coded once; `stand_in` for those that cannot be used."""
    codes, flags, places = _distinct(cells, coder, stand_in)
    return [codes[place] for place in places.tolist()], flags[places]


def coded_numbers(cells: Cells, coder: Coder, stand_in: float) -> tuple[NDArray[Any], Flags]:
    """The same of a coder whose codes are numbers: an array of the stand-in's type."""
    codes, flags, places = _distinct(cells, coder, stand_in)
    return np.array(codes, dtype=type(stand_in))[places], flags[places]


def _distinct(cells: Cells, coder: Coder, stand_in: Any) -> tuple[list[Any], Flags, NDArray[np.int64]]:
    """The codes and flags of the distinct cells, and the place of each cell among them."""
    if isinstance(cells, list):
        distinct, places = cells, np.arange(len(cells))
    else:
        encoded = cells if pa.types.is_dictionary(cells.type) else cells.dictionary_encode()
        distinct = [*listed(encoded.dictionary), None]
        places = pc.fill_null(encoded.indices.cast(pa.int64()), len(distinct) - 1).to_numpy(zero_copy_only=False)
    codes, flags = list[Any](), np.zeros(len(distinct), dtype=np.int8)
    for place, cell in enumerate(distinct):
        try:
            codes.append(coder.code(cell))
        except UnusableCell as error:
            codes.append(stand_in)
            flags[place] = FLAGS[error.what]
    return codes, flags, places


def texts(cells: Cells) -> tuple[list[str], Flags]:
    """Texts as they are; "" for those that cannot be used."""
    if not isinstance(cells, list) and cells.null_count == 0:
        try:
            values: list[str] = plain(cells).cast(pa.large_string()).to_pylist()
        except pa.ArrowInvalid:  # bytes that are not UTF-8
            return coded(cells, TextCoder(), "")
        return values, np.zeros(len(values), dtype=np.int8)
    return coded(cells, TextCoder(), "")


def numbers(columns: Sequence[Cells], coder: OfNumbers) -> tuple[NDArray[np.float64], Flags]:
    """Columns of plain numbers, (n, columns), and the flags of their cells. Unusable ones are NaN."""
    arrays = [each for each in columns if not isinstance(each, list)]
    if len(arrays) == len(columns) > 1 and all(_is_text(each.type) for each in arrays):
        column, flags = number_column(pa.concat_arrays(arrays), coder)  # as one: a column may have few rows
        return np.ascontiguousarray(column.reshape(len(columns), -1).T), flags.reshape(len(columns), -1).T
    matrix, odd = record_columns.stacked([_floats(each, coder.number) for each in columns])
    flags = np.zeros(matrix.shape, dtype=np.int8)
    for place in np.flatnonzero(odd | bool(coder.left)).tolist():
        matrix[:, place], flags[:, place] = number_column(columns[place], coder)
    return matrix, flags


def number_column(cells: Cells, coder: OfNumbers, *, typed: bool = True) -> tuple[NDArray[np.float64], Flags]:
    """A column of numbers; NaN for those that cannot be used.

    Args:
        typed: Arrow converts decimals and booleans; else the coder does.
    """
    values = _floats(cells, coder.number, typed=typed) + 0.0
    odd = unusable(values)
    flags = np.zeros(len(values), dtype=np.int8)
    if coder.left:
        odd |= np.isin(values, coder.left)
    places = np.flatnonzero(odd)
    if len(places):
        some = [cells[each] for each in places.tolist()] if isinstance(cells, list) else cells.take(pa.array(places))
        values[places], flags[places] = coded_numbers(some, coder, math.nan)
    return values, flags


def _floats(cells: Cells, number: Callable[[Any], float], *, typed: bool = True) -> NDArray[np.float64]:
    """What Arrow reads as numbers; NaN for what it does not."""
    column = None if isinstance(cells, list) else plain(cells)
    if column is None:
        if {type(each) for each in cells} <= {int, float}:
            with suppress(OverflowError):
                return np.array(cells, dtype=np.float64)
    elif _is_text(column.type):
        column = None if number is json_number else _parsed(column, decimal_comma=number is comma_number)
    elif not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        typed = typed and (pa.types.is_decimal(column.type) or pa.types.is_boolean(column.type))
        column = column if typed else None
    if column is None:
        return np.full(len(cells), math.nan)
    # Unsafe: integers beyond 2^53 are rounded, as in every other format. Nulls become NaN.
    values: NDArray[np.float64] = pc.cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return values


def _parsed(cells: pa.Array, *, decimal_comma: bool) -> pa.Array:
    """Texts as numbers; null where they are none, or the coder has to look."""
    filled = pc.if_else(pc.greater(pc.binary_length(cells), 0), cells, pa.scalar(None, cells.type))
    if decimal_comma:
        filled = pc.if_else(pc.match_substring(filled, "."), pa.scalar(None, cells.type), filled)
        filled = pc.replace_substring(filled, ",", ".", max_replacements=1)
    with suppress(pa.ArrowInvalid):
        return pc.cast(filled.cast(pa.large_string()), pa.float64())
    plain_numbers = pc.if_else(pc.match_substring_regex(filled, NUMBER), filled, pa.scalar(None, cells.type))
    return pc.cast(plain_numbers.cast(pa.large_string()), pa.float64())


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind))
