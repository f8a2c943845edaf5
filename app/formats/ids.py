"""Maps ids to rows of public lists that were declared beforehand."""

from __future__ import annotations

import hashlib
import math
from typing import Any

from app.contracts.declared_ids import HashedIds, Ids, NumberedIds
from app.formats.columns import Fault, fault, is_unicode

MAX_ID_CHARACTERS = 200


class IdColumn:
    """A column of ids: maps cells to rows of the declared list, and counts cells that have no row.

    Args:
        name, pointer: the column, and where the specification names it.
        ids: the public declaration.
        drop: leave out rows with an undeclared id rather than refuse them.
    """

    def __init__(self, name: str, pointer: str, ids: Ids, drop: bool) -> None:
        self.name, self.pointer, self.drop = name, pointer, drop
        self._ids = ids
        self._rows = {id_: row for row, id_ in enumerate(ids.ids)} if ids.kind == "listed" else {}
        self._counts = {"missing": 0, "not an id": 0, "not declared": 0}

    def find(self, cell: Any) -> tuple[int, str] | None:
        """The row and the id's text; None, and counted, if there is none."""
        text = id_text(cell)
        if text is None:
            self._counts["missing" if is_missing(cell) else "not an id"] += 1
            return None
        row = self._row(text)
        if row is None:
            self._counts["not declared"] += 1
            return None
        return row, text

    def faults(self) -> list[Fault]:
        """The column's fault, if it has unusable ids."""
        counts = dict(self._counts)
        if self.drop:
            del counts["not declared"]
        return fault(self.pointer, self.name, counts)

    def _row(self, text: str) -> int | None:
        if isinstance(self._ids, HashedIds):
            return hashed_row(text, self._ids.buckets)
        if isinstance(self._ids, NumberedIds):
            return _numbered(text, self._ids)
        return self._rows.get(text)


def hashed_row(text: str, buckets: int) -> int:
    """The row of a hashed id: a public function of the id alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % buckets


def id_text(cell: Any) -> str | None:
    """An id as text: a text unchanged, a whole number as its digits. Nothing else is an id."""
    if isinstance(cell, bool):
        return None
    if isinstance(cell, int):
        return str(cell)
    if isinstance(cell, str) and 0 < len(cell) <= MAX_ID_CHARACTERS and is_unicode(cell):
        return cell
    return None


def is_missing(cell: Any) -> bool:
    """Returns True for an empty cell."""
    return cell is None or cell == "" or (isinstance(cell, float) and math.isnan(cell))


def _numbered(text: str, ids: NumberedIds) -> int | None:
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and str(int(text)) == text):
        return None
    row = int(text) - ids.first
    return row if 0 <= row < ids.count else None
