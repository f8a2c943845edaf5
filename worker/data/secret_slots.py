"""Private records in rows of their own: a secret, uniformly random injection of them into a public number of rows.

The other rows are empty. Two neighbouring data sets then differ in one row, whatever kernels do with places, and the
number of passes is public (docs/theorems.md, "A record has a place of its own").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from core.errors import PrivacyError
from worker.data.passes import EMPTY, Occupants, Pass, Places, Prepared, passes_of
from worker.data.placed import passes_on
from worker.data.ranks import Ranks, count_of_own, own_rows

R = TypeVar("R")
TOO_MANY = "the data set has more records than slots: its owner must state more slots for it"


class SlotOrder:
    """Rows by the ascending slots of their records: at most 16 bytes a record, and a pass's rows at a time, whatever
    the number of rows. A slice's duration depends on its records by a copy of 8 bytes each, besides their reading.

    Args:
        slots: int64 (n,), ascending: the rows that hold a record. Private.
        numbers: int64 (n,), the record in each of them; None: record i is in slots[i].
        rows: N, public.

    >>> SlotOrder(np.array([1, 4]), None, rows=6)[1:5]
    array([ 0, -1, -1,  1])
    """

    def __init__(self, slots: NDArray[np.int64], numbers: NDArray[np.int64] | None, rows: int) -> None:
        self._slots, self._numbers, self._rows = slots, numbers, rows

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, rows: slice) -> NDArray[np.int64]:
        """The record in each of these rows; EMPTY for none."""
        start, end, _ = rows.indices(self._rows)
        first, last = np.searchsorted(self._slots, (start, end)).tolist()
        occupants = np.full(end - start, EMPTY)
        numbers = np.arange(first, last) if self._numbers is None else self._numbers[first:last]
        occupants[self._slots[first:last] - start] = numbers
        return occupants

    def own(self, rows_per_pass: int, ranks: Ranks) -> SlotOrder:
        """The rows of this rank's passes."""
        passes, within = np.divmod(self._slots, rows_per_pass)
        mine = passes % ranks.size == ranks.rank
        slots = passes[mine] // ranks.size * rows_per_pass + within[mine]
        numbers = np.flatnonzero(mine) if self._numbers is None else self._numbers[mine]
        return SlotOrder(slots, numbers, count_of_own(self._rows, rows_per_pass, ranks))


@dataclass(frozen=True)
class Block:
    """One stored part's share of a full batch.

    Attributes:
        records: n. Private.
        rows: N, public: the number that the part was stored with, or that its declaration states; None: unknown.
        slots: reads the ascending slots of its records; None: they are stored in the order of the file, and a job's
            secret order gives them slots.
    """

    records: int
    rows: int | None
    slots: Callable[[], NDArray[np.int64]] | None


def joined_slots(blocks: Sequence[Block], order: Callable[[int, int], NDArray[np.int64]]) -> SlotOrder:
    """The rows of several blocks, one after the other, as their records are (worker.data.joined).

    Args:
        order: makes a uniformly random permutation for a block without slots, from its rows and its place among the
            blocks.

    Raises:
        PrivacyError: a block has more records than rows, or its rows are unknown.
        DataDamagedError: a part cannot be read.
    """
    slots: list[NDArray[np.int64]] = []
    numbers: list[NDArray[np.int64]] = []
    first_row, first_record, mixed = 0, 0, any(block.slots is None for block in blocks)
    for place, block in enumerate(blocks):
        if block.rows is None:
            raise PrivacyError("the slots of a joined part are unknown")
        last_record = first_record + block.records
        if block.slots is not None:
            places = block.slots()
            if mixed:
                numbers.append(np.arange(first_record, last_record))
        else:
            drawn = order(block.rows, place)[: block.records]
            by_slot = np.argsort(drawn)
            places = drawn[by_slot]
            numbers.append(by_slot + first_record)
        if len(places) < block.records:
            raise PrivacyError(TOO_MANY)
        slots.append(places + first_row if first_row else places)
        first_row, first_record = first_row + block.rows, last_record
    every = slots[0] if len(slots) == 1 else np.concatenate(slots)
    return SlotOrder(every, np.concatenate(numbers) if mixed else None, first_row)


class Slotted(Generic[R]):
    """Rows of one sum.

    Args:
        records: what rows may hold.
        occupants: int64 (rows,), the record in each row; EMPTY for none. Private. Or a SlotOrder.
    """

    def __init__(self, records: Places[R], occupants: Occupants) -> None:
        self.records, self.occupants = records, occupants

    @classmethod
    def injected(
        cls, records: Places[R], order: NDArray[np.int64], rows: int, numbers: NDArray[np.int64] | None = None
    ) -> Slotted[R]:
        """Record i in row order[i]; those whose row is beyond `rows` are left out.

        Args:
            order: a uniformly random permutation of at least as many numbers as there are records and rows.
            rows: public.
            numbers: the records that take part, private; None: all.
        """
        count = len(records) if numbers is None else len(numbers)
        places = order[:count]
        occupants = np.full(max(rows, len(order)), EMPTY)
        occupants[places] = np.arange(count) if numbers is None else numbers
        return cls(records, occupants[:rows])

    def __len__(self) -> int:
        return len(self.occupants)

    def passes(self, rows: int, dtype: torch.dtype) -> Iterator[Pass[R]]:
        """See Batch.passes."""
        return passes_of(self.records, self.occupants, rows, dtype)

    def own(self, rows_per_pass: int, ranks: Ranks) -> Slotted[R]:
        """The rows of this rank's passes."""
        if ranks.size == 1:
            return self
        if isinstance(self.occupants, SlotOrder):
            return Slotted(self.records, self.occupants.own(rows_per_pass, ranks))
        every = self.occupants[:]
        return Slotted(self.records, every[own_rows(len(every), rows_per_pass, ranks)])

    def prepared(self, rows: int, dtype: torch.dtype, device: torch.device) -> Prepared[R]:
        """All passes, made once for many steps and kept on a device."""
        passes = [Pass(self.records.reusable(each.records), each.present) for each in self.passes(rows, dtype)]
        return Prepared(list(passes_on(device, Prepared(passes, rows), rows, dtype)), rows)
