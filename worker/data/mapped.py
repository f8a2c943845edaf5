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

from core.parts.stored_records import StoredPart
from worker.data.joined import Rows
from worker.data.passes import EMPTY, Cuttable
from worker.data.records import DenseRecords

R = TypeVar("R", bound=Cuttable[Any])
Make = Callable[[StoredPart], R]


class MappedRecords(Cuttable[R], Generic[R]):
    """n records of a part on disk, or of several joined ones.

    Args:
        part: the part.
        make: turns stored records into the passes' kind of records.
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

    def piece(self, places: NDArray[np.int64], dtype: torch.dtype) -> R:
        """See Cuttable.piece. Reads the records from the map.

        Raises:
            DataDamagedError: a chunk differs from the registered one, or does not fit the data set.
        """
        present = places != EMPTY
        within = np.where(present, np.cumsum(present) - 1, EMPTY)  # among those that are read
        piece: R = self._read(self._stored(places[present])).piece(within, dtype)
        return piece

    def announce(self, places: NDArray[np.int64]) -> None:
        """See Cuttable.announce."""
        self._part.announce(self._stored(places[places != EMPTY]))

    def to(self, device: torch.device) -> Any:
        """The same records in a device's memory."""
        records: Any = self._read(self._stored(np.arange(len(self))))
        return records.to(device)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """None: nothing is in memory."""
        return ()

    def _read(self, numbers: NDArray[np.int64]) -> R:
        return self._make(self._part.rows(numbers))

    def _stored(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers in the part of the records at these places."""
        return places if self._numbers is None else self._numbers[places]

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

    def _read(self, numbers: NDArray[np.int64]) -> DenseRecords:
        records = super()._read(numbers)
        return records if self._mean is None else records.less(self._mean)

    def _like(self, numbers: NDArray[np.int64] | None) -> MappedDense:
        return MappedDense(self._part, self._make, numbers, self._mean)
