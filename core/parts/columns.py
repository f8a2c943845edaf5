"""Cells of one column, one by one: a number, a text, a class, or why it cannot be used. Without Arrow: the API has it.

`code` of a coder is what a cell means, in every format; app.formats.cell_blocks applies it to whole columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from core.contracts.dataset_spec import ClassLabel

FLOAT32_MAX = float(np.finfo(np.float32).max)
CHUNK_CELLS = 1 << 20
# Why a cell cannot be used, in the order in which errors count it.
REASONS = (
    "missing",
    "not a number",
    "not a date",
    "not finite in 32 bits",
    "not Unicode text",
    "not a declared class",
    "not a declared value",
    "not an id",
    "not declared",
    "outside the declared scale",
    "not a text of declared characters and length",
)


class UnusableCell(ValueError):
    """A cell that the declaration refuses; `problem`, one of REASONS, says why."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.what = problem


class Coder(Protocol):
    """Reads the cells of one column, each by itself."""

    def code(self, cell: Any) -> Any:
        """What a cell means; raises UnusableCell if the declaration refuses it."""
        ...


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


def finite(value: float) -> float:
    """A number that float32 holds; −0 becomes 0, so that equal numbers have equal bytes.

    Raises:
        UnusableCell: it is NaN, infinite or too large.
    """
    if not abs(value) <= FLOAT32_MAX:
        raise UnusableCell("not finite in 32 bits")
    return value + 0.0


class NumberCoder:
    """A plain number.

    Args:
        number: converts a cell to a float; raises TypeError or ValueError if it cannot.
    """

    left: Sequence[float] = ()

    def __init__(self, number: Callable[[Any], float]) -> None:
        self.number = number

    def code(self, cell: Any) -> float:
        """See Coder."""
        try:
            value = self.number(cell)
        except OverflowError:
            value = math.inf
        except (TypeError, ValueError):
            absent = cell is None or (isinstance(cell, str) and not cell.strip())
            raise UnusableCell("missing" if absent else "not a number") from None
        return finite(value)


class TextCoder:
    """A text. An empty one is valid; a missing one is not."""

    def code(self, cell: Any) -> str:
        """See Coder."""
        if cell is None:
            raise UnusableCell("missing")
        if not isinstance(cell, str) or not is_unicode(cell):
            raise UnusableCell("not Unicode text")
        return cell


class UserCoder(TextCoder):
    """A user's name. A whole number equals its text: 7 and "7" are one user."""

    def code(self, cell: Any) -> str:
        """See Coder."""
        return super().code((str(cell) if isinstance(cell, int) and not isinstance(cell, bool) else cell) or None)


class NamesCoder:
    """The nodes that a node names: ids with spaces between them, or a list of them in JSON; none is valid."""

    def code(self, cell: Any) -> list[str]:
        """See Coder."""
        if cell is None:
            return []
        names = cell.split() if isinstance(cell, str) else cell if isinstance(cell, list) else [cell]
        return [UserCoder().code(each) for each in names]


class ClassCoder:
    """Labels, as indices into the declared classes. A label matches a class with the same text: "1" is class 1.

    If it does not match as it is, a whole number in another notation matches too: 1.0 is class 1.
    """

    def __init__(self, classes: Sequence[ClassLabel]) -> None:
        self.names = [str(each) for each in classes]
        self._index = {name: i for i, name in enumerate(self.names)}

    def code(self, cell: Any) -> int:
        """See Coder."""
        label = self._text(cell)
        index = self._index.get(label)
        if index is None:
            index = self._index.get(_whole(label))
        if index is None:
            raise UnusableCell("not a declared class" if label.strip() else "missing")
        return index

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


def unusable(values: NDArray[Any]) -> NDArray[np.bool_]:
    """True for each cell of (n, d) that is NaN, infinite or beyond float32."""
    return ~(np.abs(values.astype(np.float64, copy=False)) <= FLOAT32_MAX)


def chunks(values: NDArray[Any]) -> Iterable[NDArray[Any]]:
    """Blocks of rows with at most about CHUNK_CELLS cells, to avoid a second copy of a large matrix."""
    step = max(1, CHUNK_CELLS // max(1, values.shape[1]))
    return (values[start : start + step] for start in range(0, len(values), step))


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
