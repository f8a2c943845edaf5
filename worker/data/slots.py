"""Private records in rows of their own: a secret, uniformly random injection of them into a public number of rows.

The other rows are empty. Two neighbouring data sets then differ in one row, whatever kernels do with places, and the
number of passes is public (docs/privacy.md, "A record has a place of its own").
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from worker.data.passes import EMPTY, Pass, Places, Prepared, passes_of
from worker.data.placed import passes_on
from worker.data.ranks import Ranks, own_rows

R = TypeVar("R")


class Slotted(Generic[R]):
    """Rows of one sum.

    Args:
        records: what rows may hold.
        occupants: int64 (rows,), the record in each row; EMPTY for none. Private.
    """

    def __init__(self, records: Places[R], occupants: NDArray[np.int64]) -> None:
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

    def at(self, rows: NDArray[np.int64]) -> Slotted[R]:
        """The same records in these rows alone: a step's group, or a rank's own."""
        return Slotted(self.records, self.occupants[rows])

    def own(self, rows_per_pass: int, ranks: Ranks) -> Slotted[R]:
        """The rows of this rank's passes."""
        return self if ranks.size == 1 else self.at(own_rows(len(self), rows_per_pass, ranks))

    def prepared(self, rows: int, dtype: torch.dtype, device: torch.device) -> Prepared[R]:
        """All passes, made once for many steps and kept on a device."""
        passes = [Pass(self.records.reusable(each.records), each.present) for each in self.passes(rows, dtype)]
        return Prepared(list(passes_on(device, Prepared(passes, rows), rows, dtype)), rows)
