"""Several stored parts as one: the rows of the first, then those of the next.

Row i is row i − s of the part whose first row is s: the number of rows in all parts before it. What is read equals the
rows of one part that holds all records in this order, to the bit. Each read asks every part, so that no path depends on
which of them have records: their numbers are private.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from core.parts.layout import Layout
from core.parts.part_pieces import joined, taken
from core.parts.stored_records import StoredPart
from core.parts.unit_digests import FIRST_NUMBER


class Rows(Protocol):
    """Stored records that are read by their numbers."""

    @property
    def layout(self) -> Layout:
        """How they are laid out; public."""
        ...

    def __len__(self) -> int: ...

    def rows(self, numbers: NDArray[np.int64]) -> StoredPart:
        """The records with these numbers, in their order. Raises IndexError where there is none."""
        ...

    def announce(self, numbers: NDArray[np.int64]) -> None:
        """Tells the kernel that these records are read soon. Reads nothing."""
        ...

    def column(self, name: str) -> NDArray[Any]:
        """All of `y`, `user` or `slot`."""
        ...


AnyPart = StoredPart | Rows


@dataclass(frozen=True)
class Loaded:
    """A part in memory, read as one on disk is."""

    part: StoredPart

    @property
    def layout(self) -> Layout:
        """See Rows.layout."""
        return Layout.of(self.part)

    def __len__(self) -> int:
        return len(self.part.y)

    def rows(self, numbers: NDArray[np.int64]) -> StoredPart:
        """See Rows.rows."""
        return taken(self.part, numbers)

    def announce(self, numbers: NDArray[np.int64]) -> None:
        """See Rows.announce: they are in memory."""

    def column(self, name: str) -> NDArray[Any]:
        """See Rows.column."""
        if name == "slot" and self.part.slot is not None:
            return self.part.slot.numbers
        column: NDArray[Any] = getattr(self.part, name)
        return column


class Joined:
    """The rows of several parts of one layout, at least one.

    >>> part = StoredPart(np.ones((2, 1), dtype=np.float32), np.array([3.0, 4.0]))
    >>> Joined([Loaded(part), Loaded(part)]).rows(np.array([3, 0, 2])).y.tolist()
    [4.0, 3.0, 3.0]
    """

    def __init__(self, parts: Sequence[Rows]) -> None:
        self._parts = tuple(parts)
        self._ends = np.cumsum([len(each) for each in parts], dtype=np.int64)

    @property
    def layout(self) -> Layout:
        """See Rows.layout."""
        return self._parts[0].layout

    def __len__(self) -> int:
        return int(self._ends[-1])

    def rows(self, numbers: NDArray[np.int64]) -> StoredPart:
        """See Rows.rows. Users and slots are read by `column` alone, so records come without them."""
        owners, within = self._owned(numbers)
        rows_of = [_bare(each.rows(within_part)) for each, within_part in zip(self._parts, within, strict=True)]
        places = np.empty(len(numbers), dtype=np.int64)
        places[np.argsort(owners, kind="stable")] = np.arange(len(numbers))
        return taken(joined(rows_of), places)

    def announce(self, numbers: NDArray[np.int64]) -> None:
        """See Rows.announce."""
        for part, within_part in zip(self._parts, self._owned(numbers)[1], strict=True):
            part.announce(within_part)

    def _owned(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
        """The part of each row, and each part's own rows."""
        owners = np.searchsorted(self._ends, numbers, side="right")
        starts = np.append(0, self._ends)
        return owners, [numbers[owners == k] - starts[k] for k in range(len(self._parts))]

    def column(self, name: str) -> NDArray[Any]:
        """See Rows.column. Users' numbers are made distinct, but for those of people, who may be in several parts."""
        columns = [each.column(name) for each in self._parts]
        return np.concatenate(apart(columns) if name == "user" else columns)


def join(parts: Sequence[AnyPart]) -> AnyPart:
    """Several parts as one: in memory if all of them are; one part as it is.

    Their layouts must be the same but for slots: `worker.data.loaded_parts.check` compared each with the data set's
    shape. Slots are each part's own (`worker.data.loaded_parts.block_of`), so the whole has none.
    """
    if len(parts) == 1:
        return parts[0]
    stored = [each for each in parts if isinstance(each, StoredPart)]
    if len(stored) < len(parts):
        return Joined([Loaded(each) if isinstance(each, StoredPart) else each for each in parts])
    users = [each.user for each in stored if each.user is not None]
    table = joined([_bare(each) for each in stored])
    return replace(table, user=np.concatenate(apart(users)) if users else None)


def _bare(part: StoredPart) -> StoredPart:
    """Records without what is each part's own."""
    return replace(part, user=None, slot=None)


def apart(users: Sequence[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """Each part's user numbers, from 0 on, moved beyond those of the parts before it. Those from FIRST_NUMBER on stay:
    a person has one in all blocks (core.parts.unit_digests).

    >>> [each.tolist() for each in apart([np.array([1, 0]), np.array([], dtype=int), np.array([0, 2])])]
    [[1, 0], [], [2, 4]]
    """
    first, separated = 0, []
    for numbers in users:
        is_first = numbers < FIRST_NUMBER
        separated.append(np.where(is_first, numbers + first, numbers))
        first = int(separated[-1][is_first].max(initial=first - 1)) + 1
    return separated
