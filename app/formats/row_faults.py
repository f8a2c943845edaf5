"""Rows that cannot be used, as a refusal tells them.

Numbers of rows and values of cells are members of entries that `RowFault` makes; no other text of a refusal has them.
They are told to the owner alone, who sent the file, and values are never stored (app.datasets.readings). Loads no
numpy: the API, which reads no data file, has it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

Place = Literal["row", "line"]


@dataclass(frozen=True)
class RowFault:
    """Why one row cannot be used: the only maker of texts with a row's number or a cell's value.

    Attributes:
        pointer: what the row is at fault with, in the specification or the request.
        number: in the file, from 1 on; rows are counted below the header, lines with it.
        reason: in words that quote nothing of the row: of a cell what it is, of a whole row as "is not JSON".
        column: None: the whole row.
        value: the cell's, shortened; None: not told.
    """

    pointer: str
    number: int
    reason: str
    place: Place = "row"
    column: str | None = None
    value: str | None = None

    @property
    def entry(self) -> dict[str, Any]:
        """Its entry of a problem's `errors`."""
        members = {"column": self.column, self.place: self.number, "value": self.value, "reason": self.reason}
        return {"pointer": self.pointer, "detail": self._detail} | {
            name: member for name, member in members.items() if member is not None
        }

    @property
    def _detail(self) -> str:
        place = f"{self.place} {self.number}"
        if self.column is None:
            return f"{place} {self.reason}"
        is_quoted = self.value is not None and self.reason != "missing"
        return f"{place}, column {self.column!r}: " + (f"{self.value!r} is {self.reason}" if is_quoted else self.reason)


def without_value(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of a problem's `errors` as it is stored: a row's without its cell's value."""
    for place in get_args(Place):
        if place in entry:
            fault = RowFault(entry["pointer"], entry[place], entry["reason"], place, entry.get("column"))
            return fault.entry
    return dict(entry)
