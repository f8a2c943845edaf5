"""Rows and cells that cannot be used: cells are counted by column, and the first are told with row and value.

All of it is of private data, and told to the owner alone, who sent the file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.formats.row_faults import RowFault
from core.errors import InvalidRequest
from core.parts.columns import REASONS, is_unicode

SHOWN_COLUMNS = 20
SHOWN_ROWS = 10
SHOWN_CHARACTERS = 40
Flags = NDArray[np.int8]  # of each cell: 0, or 1 + the place of its reason in REASONS


@dataclass(frozen=True)
class Wanted:
    """A column (or array) of the file, and where the specification names it."""

    name: str
    pointer: str


class Faults:
    """The unusable cells of one file."""

    def __init__(self) -> None:
        self._counts: dict[Wanted, NDArray[np.int64]] = {}
        self._rows: list[RowFault] = []

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
            value = _shown(cell_at(place))
            self._rows.append(RowFault(column.pointer, int(rows[place]), reason, column=column.name, value=value))
        self._rows = sorted(self._rows, key=lambda fault: fault.number)[:SHOWN_ROWS]

    def details(self, order: Sequence[Wanted]) -> list[dict[str, Any]]:
        """One entry of a problem's `errors` for each column with unusable cells."""
        details = []
        for column in sorted(self._counts, key=order.index):
            counts = self._counts[column]
            listed = ", ".join(
                f"{count} {reason}" for reason, count in zip(REASONS, counts.tolist(), strict=True) if count
            )
            detail = f"column {column.name!r}: {listed}"
            total = int(counts.sum())
            details.append({"pointer": column.pointer, "detail": detail, "column": column.name, "count": total})
        return details

    def refuse(self, file: str, order: Sequence[Wanted]) -> None:
        """Raises InvalidRequest if there are faults: columns with counts, and the first rows with values."""
        if not self:
            return
        columns = self.details(order)
        total = sum(int(each["count"]) for each in columns)
        message = f"The data has {total} cell{'s' if total != 1 else ''} that cannot be used"
        errors = [*columns[:SHOWN_COLUMNS], *(fault.entry for fault in self._rows)]
        raise InvalidRequest(message, errors, file=file, columns_at_fault=len(columns))


def _shown(cell: Any) -> str:
    """A cell for its owner, not longer than a line."""
    text = cell if isinstance(cell, str) else "" if cell is None else str(cell)
    text = text if is_unicode(text) else ascii(text)[1:-1]
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"
