"""Cells that cannot be used: counted by column, and the first of them with row and value.

All of it is of private data: told at registration alone, and rows to the owner alone, who sent the file. Values of
cells are never stored (app.datasets.readings).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidRequest
from app.formats.columns import REASONS, is_unicode

SHOWN_COLUMNS = 20
SHOWN_ROWS = 10
SHOWN_CHARACTERS = 40
Flags = NDArray[np.int8]  # of each cell: 0, or 1 + the place of its reason in REASONS


@dataclass(frozen=True)
class Wanted:
    """A column (or array) of the file, and where the specification names it."""

    name: str
    pointer: str


@dataclass(frozen=True)
class WrongCell:
    """One that cannot be used: its row in the file, from 1 on below the header, and its value, shortened."""

    row: int
    column: Wanted
    value: str
    reason: str


class Faults:
    """The unusable cells of one file."""

    def __init__(self) -> None:
        self._counts: dict[Wanted, NDArray[np.int64]] = {}
        self._rows: list[WrongCell] = []

    def __bool__(self) -> bool:
        return bool(self._counts)

    def note(self, column: Wanted, flags: Flags, rows: NDArray[np.int64], cell_at: Callable[[int], Any]) -> None:
        """Counts a column's cells of some rows.

        Args:
            flags: of each cell.
            rows: the rows' numbers in the file, ascending.
            cell_at: the cell at a place of `flags`.
        """
        places = np.flatnonzero(flags)
        if not len(places):
            return
        counts = self._counts.setdefault(column, np.zeros(len(REASONS), dtype=np.int64))
        counts += np.bincount(flags[places] - 1, minlength=len(REASONS))
        for place in places[:SHOWN_ROWS].tolist():
            reason = REASONS[flags[place] - 1]
            self._rows.append(WrongCell(int(rows[place]), column, _shown(cell_at(place)), reason))
        self._rows = sorted(self._rows, key=lambda cell: cell.row)[:SHOWN_ROWS]

    def details(self, order: Sequence[Wanted]) -> list[dict[str, Any]]:
        """One entry of a problem's `errors` for each column with unusable cells."""
        found = []
        for column in sorted(self._counts, key=order.index):
            counts = self._counts[column]
            said = ", ".join(f"{count} {what}" for what, count in zip(REASONS, counts.tolist(), strict=True) if count)
            detail = f"column {column.name!r}: {said}"
            total = int(counts.sum())
            found.append({"pointer": column.pointer, "detail": detail, "column": column.name, "count": total})
        return found

    def refuse(self, file: str, order: Sequence[Wanted]) -> None:
        """Raises InvalidRequest if there are faults: columns with counts, and the first rows with values."""
        if not self:
            return
        columns = self.details(order)
        total = sum(int(each["count"]) for each in columns)
        message = f"The data has {total} cells that cannot be used"
        errors = [*columns[:SHOWN_COLUMNS], *map(_error, self._rows)]
        raise InvalidRequest(message, errors, file=file, columns_at_fault=len(columns))


def _error(cell: WrongCell) -> dict[str, Any]:
    """One entry of a problem's `errors` with a cell's value."""
    said = cell.reason if cell.reason == "missing" else f"{cell.value!r} is {cell.reason}"
    detail = f"row {cell.row}, column {cell.column.name!r}: {said}"
    of = {"pointer": cell.column.pointer, "column": cell.column.name}
    return {**of, "detail": detail, "row": cell.row, "value": cell.value, "reason": cell.reason}


def _shown(cell: Any) -> str:
    """A cell for its owner, not longer than a line."""
    text = cell if isinstance(cell, str) else "" if cell is None else str(cell)
    text = text if is_unicode(text) else ascii(text)[1:-1]
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"
