"""A synthetic set of users' histories of MovieLens-1M's size: long-tailed, with an order that can be learnt.

Popularity falls by Zipf's law, flattened at its head. Items belong to groups, popular and rare ones alike. A user stays
in a group for a while. Within it the next item is mostly one of a few successors of the last item. So the next item
depends on the last one, for rare items too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from worker.data.sequence_records import SequenceRecords

USERS, ITEMS, MEAN_LENGTH, LEAST = 6040, 3416, 165, 18  # MovieLens-1M after a 5-core
FLAT = 20.0  # places at the head that are about as popular
GROUPS, SUCCESSORS = 40, 3
FOLLOW, STAY = 0.5, 0.9  # chances to go on to a successor, and else to stay in the group


def popularity(items: int = ITEMS) -> NDArray[np.float64]:
    """Returns each item's share, the most popular first: p_i ∝ 1 / (i + 20)."""
    weights = 1.0 / (np.arange(items) + FLAT)
    return weights / weights.sum()


def histories(users: int = USERS, items: int = ITEMS, seed: int = 0) -> SequenceRecords:
    """The users' items in order, each user's at least 18, 165 in the mean.

    Args:
        users, items: how many of each; item 0 is the most popular.
        seed: the same seed gives the same set.
    """
    rng = np.random.default_rng(seed)
    spread = 0.9
    mean = np.log(MEAN_LENGTH - LEAST) - spread**2 / 2
    lengths = LEAST + rng.lognormal(mean, spread, users).astype(np.int64)
    ends = np.cumsum(lengths)
    rows = np.empty(ends[-1], dtype=np.int32)
    walk = _Walk(items, rng)
    order = np.argsort(-lengths)  # users are walked side by side: those that go on longest first
    sorted_lengths = lengths[order]
    now = walk.begin(users)
    for at in range(int(lengths.max())):
        going = int(np.searchsorted(-sorted_lengths, -at, side="left"))  # whose length is above `at`
        now = walk.step(now[:going]) if at else now[:going]
        rows[(ends - lengths)[order[:going]] + at] = now
    return SequenceRecords(rows, ends - lengths, ends)


class _Walk:
    """A walk from item to item."""

    def __init__(self, items: int, rng: np.random.Generator) -> None:
        self._rng, shares = rng, popularity(items)
        groups = min(GROUPS, items)
        self._group = rng.integers(0, groups, items)
        self._all = np.cumsum(shares)
        members = [np.flatnonzero(self._group == each) for each in range(groups)]
        self._members = [each if len(each) else np.arange(items) for each in members]
        self._within = [np.cumsum(shares[each]) / shares[each].sum() for each in self._members]
        # Successors in an item's own group, as popular as chance has it.
        self._next = np.stack([self._of_groups(self._group) for _ in range(SUCCESSORS)], axis=1)

    def begin(self, users: int) -> NDArray[np.int64]:
        return self._of_all(users)

    def step(self, now: NDArray[np.int64]) -> NDArray[np.int64]:
        follows = self._rng.random(len(now)) < FOLLOW
        stays = self._rng.random(len(now)) < STAY
        chosen = self._next[now, self._rng.integers(0, SUCCESSORS, len(now))]
        else_ = np.where(stays, self._of_groups(self._group[now]), self._of_all(len(now)))
        found: NDArray[np.int64] = np.where(follows, chosen, else_)
        return found

    def _of_all(self, n: int) -> NDArray[np.int64]:
        return np.minimum(np.searchsorted(self._all, self._rng.random(n)), len(self._all) - 1)

    def _of_groups(self, groups: NDArray[np.int64]) -> NDArray[np.int64]:
        found, drawn = np.empty(len(groups), dtype=np.int64), self._rng.random(len(groups))
        for group in np.unique(groups):
            here, within = groups == group, self._within[group]
            found[here] = self._members[group][np.minimum(np.searchsorted(within, drawn[here]), len(within) - 1)]
        return found
