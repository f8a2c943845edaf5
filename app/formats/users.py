"""Users: keeps at most k records of each, and puts each user on one side of the hold-out split.

Both depend on a user's own id and records and on nothing else. A user who comes, goes or changes affects nobody else's
part, so all of a user's records can be protected as one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from core.parts.digests import Keys, Messages, keyed_digests
from core.parts.unit_digests import USER


def numbered(users: Sequence[str], numbers: dict[str, int]) -> NDArray[np.int64]:
    """(n,): each record's user, as a number below the count of users.

    Args:
        numbers: the known users' numbers, in their order; new users are added.
    """
    return np.array([numbers.setdefault(user, len(numbers)) for user in users], dtype=np.int64)


def kept(numbers: NDArray[np.int64], words: NDArray[np.uint64], limits: NDArray[np.int64]) -> NDArray[np.bool_]:
    """True for the records that stay: of each user as many as `limits` (users,) says, those with the smallest keyed
    digests (n, 2).

    Equal records have equal digests; either may stay.
    """
    order = np.lexsort((words[:, 1], words[:, 0], numbers))
    counts = np.bincount(numbers)
    place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    stays = np.empty(len(order), dtype=np.bool_)
    stays[order] = place < limits[numbers[order]]
    return stays


def sides(users: Sequence[str], keys: Keys) -> NDArray[np.uint64]:
    """(users, 2): the keyed digest of each user, which splits off the hold-out."""
    return keyed_digests(Messages.joined(user.encode() for user in users), keys.split, USER)
