"""Maps ids to rows of public lists that were declared beforehand."""

from __future__ import annotations

import hashlib
import math
from typing import Any

from core.contracts.declared_ids import HashedIds, Ids, NumberedIds
from core.parts.columns import UnusableCell, is_unicode

MAX_ID_CHARACTERS = 200


class IdCoder:
    """Maps cells to rows of the declared list.

    Args:
        ids: the public declaration.
    """

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self._rows = {id_: row for row, id_ in enumerate(ids.ids)} if ids.kind == "listed" else {}

    def code(self, cell: Any) -> tuple[int, str]:
        """The row and the id's text; see core.parts.columns.Coder."""
        text = AnyId().code(cell)
        row = self._row(text)
        if row is None:
            raise UnusableCell("not declared")
        return row, text

    def _row(self, text: str) -> int | None:
        if isinstance(self._ids, HashedIds):
            return hashed_row(text, self._ids.buckets)
        if isinstance(self._ids, NumberedIds):
            return _numbered(text, self._ids)
        return self._rows.get(text)


def hashed_row(text: str, buckets: int) -> int:
    """The row of a hashed id: a public function of the id alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % buckets


class AnyId:
    """An id as text: a text unchanged, a whole number as its digits. Nothing else is an id."""

    def code(self, cell: Any) -> str:
        """See core.parts.columns.Coder."""
        if isinstance(cell, int) and not isinstance(cell, bool):
            return str(cell)
        if isinstance(cell, str) and 0 < len(cell) <= MAX_ID_CHARACTERS and is_unicode(cell):
            return cell
        absent = cell is None or cell == "" or (isinstance(cell, float) and math.isnan(cell))
        raise UnusableCell("missing" if absent else "not an id")


def _numbered(text: str, ids: NumberedIds) -> int | None:
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and str(int(text)) == text):
        return None
    row = int(text) - ids.first
    return row if 0 <= row < ids.count else None
