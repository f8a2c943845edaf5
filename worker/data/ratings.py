"""Ratings in memory: each record has a user's row, an item's row and the rating. Private if the data set is."""

from __future__ import annotations

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import Tensor

from worker.data.passes import Cuttable, gathered, moved


class RatingRecords(Cuttable["RatingRecords"]):
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
        """The records at these indices, in their order."""
        at = moved(torch.from_numpy(indices), self.labels.device)
        return RatingRecords(self.users[at], self.items[at], self.labels[at])

    def to(self, device: torch.device) -> RatingRecords:
        """The same records on a device."""
        return RatingRecords(*(moved(each, device) for each in self.tensors))

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Users, items and ratings."""
        return self.users, self.items, self.labels

    def piece(self, places: NDArray[np.int64], dtype: torch.dtype) -> RatingRecords:
        """See Cuttable.piece. Padding rows are ratings of the first user and item."""
        return RatingRecords(*(gathered(each, places) for each in (self.users, self.items, self.labels)))


def add_rows(rows: Tensor, values: Tensor, size: int) -> Tensor:
    """Σ_i e_{rows_i} ⊗ values_i: float64 (size, d). Adds in the records' order, so that every run agrees.

    Args:
        rows: int64 (n,), each below `size`.
        values: float64 (n, d).
    """
    n = len(rows)
    if values.device.type != "cpu":  # in order too: torch's deterministic algorithm sorts
        return values.new_zeros(size, values.shape[1]).index_add_(0, rows, values)
    ones = scipy.sparse.csr_matrix((np.ones(n), rows.numpy(), np.arange(n + 1)), shape=(n, size))
    return torch.from_numpy(np.ascontiguousarray(ones.T @ values.numpy()))
