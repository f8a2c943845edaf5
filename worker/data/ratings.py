"""Ratings in memory: of each record a user's row, an item's row and the rating. Private where the data set is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import Tensor

AUTOMATIC_ROWS = 2**16  # of one automatic physical batch


class RatingRecords:
    """n ratings.

    Args:
        users, items: int64 (n,), rows of the declared lists.
        labels: float64 (n,), the ratings.
    """

    def __init__(self, users: Tensor, items: Tensor, labels: Tensor) -> None:
        self.users, self.items, self.labels = users, items, labels

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, indices: NDArray[np.int64]) -> RatingRecords:
        return self._at(torch.from_numpy(indices))

    def split(self, physical_batch_size: int | None) -> Sequence[RatingRecords]:
        rows = physical_batch_size or AUTOMATIC_ROWS
        return [self._at(slice(at, at + rows)) for at in range(0, len(self), rows)]

    def prepared(self) -> RatingRecords:
        return self

    def _at(self, index: Any) -> RatingRecords:
        return RatingRecords(self.users[index], self.items[index], self.labels[index])


def add_rows(rows: Tensor, values: Tensor, size: int) -> Tensor:
    """Σ_i e_{rows_i} ⊗ values_i: float64 (size, d). In the records' order, so that it is the same in every run.

    Args:
        rows: int64 (n,), each below `size`.
        values: float64 (n, d).
    """
    n = len(rows)
    ones = scipy.sparse.csr_matrix((np.ones(n), rows.numpy(), np.arange(n + 1)), shape=(n, size))
    return torch.from_numpy(np.ascontiguousarray(ones.T @ values.numpy()))
