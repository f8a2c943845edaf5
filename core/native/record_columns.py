"""Columns of numbers as records, and records as what is hashed: compiled, or by numpy, to the same bits."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.native.library import INSTALLED, Library

SUM_BYTES = 64


class Compiled:
    """The compiled copies of one library. Threads may share it; calls release the interpreter's lock."""

    def __init__(self, library: Library) -> None:
        opened, pointer, number = library.opened, ctypes.c_void_p, ctypes.c_int64
        self._stacked, self._contents, self._sum = opened.scrimp_stacked, opened.scrimp_contents, opened.scrimp_sum
        self._stacked.argtypes = [pointer, number, number, pointer, pointer]
        self._contents.argtypes = [
            pointer, number, number, number, pointer, ctypes.c_char_p, number,
            pointer, number, pointer, pointer, pointer,
        ]  # fmt: skip
        self._sum.argtypes = [pointer, number, pointer]
        self._stacked.restype = self._contents.restype = self._sum.restype = None

    def stacked(self, columns: Sequence[NDArray[np.float64]]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """As the function below."""
        columns = [np.ascontiguousarray(each) for each in columns]
        rows, odd = np.empty((len(columns[0]), len(columns))), np.empty(len(columns), dtype=np.uint8)
        at = (ctypes.c_void_p * len(columns))(*(each.ctypes.data for each in columns))
        self._stacked(at, *rows.shape, rows.ctypes.data, odd.ctypes.data)
        return rows, odd.astype(np.bool_)

    def contents(
        self,
        numbers: NDArray[Any],
        order: NDArray[np.int64],
        begin: bytes,
        labels: NDArray[np.uint8],
        lengths: NDArray[np.int64],
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """As the function below."""
        numbers, order = np.ascontiguousarray(numbers), np.ascontiguousarray(order)
        labels, lengths = np.ascontiguousarray(labels), np.ascontiguousarray(lengths)
        out = np.empty(len(numbers) * (len(begin) + 8 * numbers.shape[1]) + int(lengths.sum()), dtype=np.uint8)
        ends = np.empty(len(numbers), dtype=np.int64)
        rows = numbers.ctypes.data, int(numbers.dtype == np.float32), *numbers.shape, order.ctypes.data
        label = labels.ctypes.data, labels.shape[1], lengths.ctypes.data
        self._contents(*rows, begin, len(begin), *label, out.ctypes.data, ends.ctypes.data)
        return out, ends

    def sum(self, numbers: NDArray[np.uint8]) -> int:
        """As the function below."""
        total = np.zeros(SUM_BYTES // 8, dtype="<u8")
        numbers = np.ascontiguousarray(numbers)
        self._sum(numbers.ctypes.data, len(numbers), total.ctypes.data)
        return int.from_bytes(total.tobytes(), "little")


COMPILED = None if INSTALLED is None else Compiled(INSTALLED)


def stacked(columns: Sequence[NDArray[np.float64]]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """(n, d) rows of columns (n,), in which −0 is 0; and True for each column with a cell that is no finite float32.

    Raises:
        ValueError: there is no column, or they differ in length or type.
    """
    if not columns or any(each.shape != (len(columns[0]),) or each.dtype != np.float64 for each in columns):
        raise ValueError("columns are float64, and of one length")
    if COMPILED is not None:
        return COMPILED.stacked(columns)
    rows = np.column_stack(columns) + 0.0
    return rows, np.any(~(np.abs(rows) <= np.finfo(np.float32).max), axis=0)


def contents(
    numbers: NDArray[Any],
    order: NDArray[np.int64],
    begin: bytes,
    labels: NDArray[np.uint8],
    lengths: NDArray[np.int64],
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """What records are hashed by, one after the other, and where each one ends (n,): `begin`, its numbers in this order
    as float64, of which −0 is 0, and its label.

    Args:
        numbers: (n, d), float32 or float64.
        order: int64, a permutation of 0 … d − 1.
        labels: uint8 (n, width).
        lengths: int64 (n,): how many bytes each label has.

    Raises:
        ValueError: a size or a type differs from these.
    """
    count, width = numbers.shape
    if numbers.dtype not in (np.float32, np.float64) or labels.dtype != np.uint8 or len(labels) != count:
        raise ValueError("numbers are float32 or float64, with a label each")
    if order.dtype != np.int64 or not np.array_equal(np.sort(order), np.arange(width)):
        raise ValueError("an order has each place once")
    if lengths.dtype != np.int64 or lengths.shape != (count,):
        raise ValueError("each label has a length")
    if count and not 0 <= lengths.min() <= lengths.max() <= labels.shape[1]:
        raise ValueError("a label is no longer than its row")
    if COMPILED is not None:
        return COMPILED.contents(numbers, order, begin, labels, lengths)
    values = np.ascontiguousarray(numbers[:, order].astype("<f8") + 0.0).view(np.uint8).reshape(count, 8 * width)
    first = np.broadcast_to(np.frombuffer(begin, dtype=np.uint8), (count, len(begin)))
    rows = np.hstack([first, values, labels])
    lengths = lengths + len(begin) + 8 * width
    return rows[np.arange(rows.shape[1]) < lengths[:, None]], np.cumsum(lengths, dtype=np.int64)


def sum_512(numbers: NDArray[np.uint8]) -> int:
    """Σ of little-endian numbers (n, 64), modulo 2⁵¹².

    Raises:
        ValueError: they have another shape or type.
    """
    if numbers.dtype != np.uint8 or numbers.ndim != 2 or numbers.shape[1] != SUM_BYTES:
        raise ValueError("numbers have 64 bytes each")
    if COMPILED is not None:
        return COMPILED.sum(numbers)
    limbs = np.ascontiguousarray(numbers).view("<u4").sum(axis=0, dtype=np.uint64)  # of fewer than 2³² numbers
    total: int = sum(limb << (32 * place) for place, limb in enumerate(limbs.tolist()))
    return total % (1 << 8 * SUM_BYTES)
