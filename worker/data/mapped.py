"""Records that stay on disk: each pass reads its own from a memory map, so an attempt's memory does not grow with them.

What a pass holds is the same to the bit as that of records in memory. Which of the two an attempt uses depends on
public sizes alone (worker.training.plan).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from app.formats.stored import StoredPart
from worker.data.joined import Rows
from worker.data.passes import Cuttable
from worker.data.records import DenseRecords, clipped_sum
from worker.data.sequences import SequenceRecords

R = TypeVar("R", bound=Cuttable[Any])
Make = Callable[[StoredPart, int], R]


class MappedRecords(Cuttable[R], Generic[R]):
    """n records of a part on disk, or of several joined ones.

    Args:
        part: the part.
        make: turns stored records into the passes' kind of records; also given P, the rows of the pass.
        numbers: int64 (n,), the records; None: all of the part, in its order.
    """

    def __init__(self, part: Rows, make: Make[R], numbers: NDArray[np.int64] | None = None) -> None:
        self._part, self._make, self._numbers = part, make, numbers

    def __len__(self) -> int:
        return len(self._part if self._numbers is None else self._numbers)

    @property
    def labels(self) -> Tensor:
        """All labels: 8 bytes a record. For scores of public records."""
        labels = torch.from_numpy(self._part.column("y"))
        return labels if self._numbers is None else labels[torch.from_numpy(self._numbers)]

    def select(self, indices: NDArray[np.int64]) -> Self:
        """The records at these indices, in their order. Reads nothing."""
        return self._like(indices if self._numbers is None else self._numbers[indices])

    def piece(self, start: int, rows: int, dtype: torch.dtype) -> R:
        """See Cuttable.piece. Reads the records from the map; the kernel reads those of the next pass meanwhile.

        Raises:
            DataDamagedError: a chunk differs from the registered one, or does not fit the data set.
        """
        if start == 0:
            self._part.announce(self._those(0, rows))
        made: R = self._read(start, rows).piece(0, rows, dtype)
        self._part.announce(self._those(start + rows, rows))
        return made

    def to(self, device: torch.device) -> Any:
        """The same records in a device's memory."""
        found: Any = self._read(0, len(self))
        return found.to(device)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """None: nothing is in memory."""
        return ()

    def _read(self, start: int, rows: int) -> R:
        return self._make(self._part.rows(self._those(start, rows)), rows)

    def _those(self, start: int, rows: int) -> NDArray[np.int64]:
        """The numbers of `rows` records from `start` on; fewer at the end."""
        end = min(start + rows, len(self))
        return np.arange(start, end) if self._numbers is None else self._numbers[start:end]

    def _like(self, numbers: NDArray[np.int64] | None) -> Self:
        return type(self)(self._part, self._make, numbers)


class MappedDense(MappedRecords[DenseRecords]):
    """Dense features on disk.

    Args:
        mean: as DenseRecords.
    """

    def __init__(
        self,
        part: Rows,
        make: Make[DenseRecords],
        numbers: NDArray[np.int64] | None = None,
        mean: Tensor | None = None,
    ) -> None:
        super().__init__(part, make, numbers)
        self._mean = mean

    def less(self, mean: Tensor) -> MappedDense:
        """See DenseRecords.less."""
        return MappedDense(self._part, self._make, self._numbers, mean)

    def clipped_sum(self, max_norm: float) -> Tensor:
        """See DenseRecords.clipped_sum."""
        return clipped_sum(self, self._part.layout.features, max_norm)

    def _read(self, start: int, rows: int) -> DenseRecords:
        found = super()._read(start, rows)
        return found if self._mean is None else found.less(self._mean, rows)

    def _like(self, numbers: NDArray[np.int64] | None) -> MappedDense:
        return MappedDense(self._part, self._make, numbers, self._mean)


class MappedSequences(MappedRecords[SequenceRecords]):
    """Sequences on disk."""

    def item_counts(self, items: int, length: int) -> Tensor:
        """See SequenceRecords.item_counts."""
        total = torch.zeros(items, dtype=torch.float64)
        for each in self.passes(COUNTED_ROWS, torch.float64):
            total += each.records.item_counts(items, length)  # padding rows have no items
        return total


COUNTED_ROWS = 4096  # sequences that are counted together
