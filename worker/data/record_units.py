"""Which records belong to which user, if users are protected: batches draw users, with all their records."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.errors import PrivacyError


class Users:
    """The users of n records.

    Args:
        numbers: int64 (n,), each record's user.
        largest: the charged number of records per user.

    Raises:
        PrivacyError: a user has more records.

    >>> Users(np.array([0, 1, 0]), largest=2).records(np.array([0])).tolist()
    [0, 2]
    """

    def __init__(self, numbers: NDArray[np.int64], largest: int) -> None:
        _, places, self._counts = np.unique(numbers, return_inverse=True, return_counts=True)
        if len(self._counts) and self._counts.max() > largest:
            raise PrivacyError("a user has more records than the mechanism covers")
        self._order = np.argsort(places, kind="stable")
        self._starts = np.cumsum(self._counts) - self._counts

    def __len__(self) -> int:
        return len(self._counts)

    def records(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        """The records of these users, user by user."""
        counts = self._counts[users]
        firsts = np.repeat(self._starts[users] - (np.cumsum(counts) - counts), counts)
        return self._order[firsts + np.arange(len(firsts))]
