"""Sequences in memory: of each record the rows of its items, in order. Private where the data set is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class SequenceRecords:
    """n sequences of any lengths.

    Args:
        items: int32 (rows,), one record after the other.
        starts, ends: int64 (n,), where each record lies in `items`.
    """

    def __init__(self, items: NDArray[np.int32], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        self._items, self._starts, self._ends = items, starts, ends
        self.labels = torch.zeros(len(ends), dtype=torch.float64)  # each record is its own

    def __len__(self) -> int:
        return len(self._ends)

    def select(self, indices: NDArray[np.int64]) -> SequenceRecords:
        return SequenceRecords(self._items, self._starts[indices], self._ends[indices])

    def split(self, physical_batch_size: int | None) -> Sequence[SequenceRecords]:
        rows = physical_batch_size or max(len(self), 1)
        return [self.select(np.arange(at, min(at + rows, len(self)))) for at in range(0, len(self), rows)]

    def prepared(self) -> SequenceRecords:
        return self

    def windows(self, length: int) -> tuple[Tensor, Tensor]:
        """The last items, and for each the one after it: int64 (n, length) each, item i as i + 1, filled up with 0.

        All are of one length, so that no step's time tells how long the sequences in it are.
        """
        lengths = np.minimum(self._ends - self._starts, length + 1)[:, None]
        places = np.arange(length + 1)
        there = places < lengths
        at = np.where(there, self._ends[:, None] - lengths + places, 0)
        found = np.where(there, self._items[at], -1) if len(self._items) else np.full(there.shape, -1)
        ids = torch.from_numpy(found.astype(np.int64) + 1)
        targets = ids[:, 1:]
        return torch.where(targets != 0, ids[:, :-1], 0), targets
