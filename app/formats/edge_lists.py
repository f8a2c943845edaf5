"""The list of each node, made from edges as they arrive, as `core.parts.nodes.kept` makes it from a list."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.parts.nodes import NOBODY, Ids, ranks

FEWEST = 2**20  # edges that wait to be ordered


class Lists:
    """Of each node the first `keep` of those that edges give it, in an order of the node's own.

    In memory: 24 bytes for each edge that is kept, and for as many that wait; four times that while they are ordered.
    Edges beyond the first `keep` of a node, and repeated ones, are forgotten.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._nodes, self._others = (np.zeros(0, dtype=np.int64) for _ in range(2))
        self._ranks: NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)
        self._waiting: list[tuple[Ids, Ids]] = []
        self._there: NDArray[np.bool_] | None = None  # of the distinct nodes, those that `of` was asked for

    def add(self, nodes: Ids, neighbours: Ids) -> None:
        """Adds edges: the numbers of nodes, and of those that they list."""
        self._waiting.append((nodes, neighbours))
        if sum(len(each) for each, _ in self._waiting) >= max(FEWEST, len(self._nodes)):
            self._order()

    def of(self, numbers: Ids) -> Ids:
        """The lists of nodes by their numbers, (n, keep); NOBODY where there are fewer. Nothing is added later."""
        self._order()
        lists = np.full((len(numbers), self._keep), NOBODY, dtype=np.int64)
        distinct, starts = np.unique(self._nodes, return_index=True)
        if not len(distinct):
            return lists
        if self._there is None:
            self._there = np.zeros(len(distinct), dtype=np.bool_)
        at = np.minimum(np.searchsorted(distinct, numbers), len(distinct) - 1)
        is_listed = distinct[at] == numbers
        self._there[at[is_listed]] = True
        counts = np.diff(np.append(starts, len(self._nodes)))
        for place in range(self._keep):
            rows = np.flatnonzero(is_listed & (counts[at] > place))
            lists[rows, place] = self._others[starts[at[rows]] + place]
        return lists

    @property
    def unasked(self) -> int:
        """How many nodes have a list that `of` was not asked for."""
        return 0 if self._there is None else int(np.count_nonzero(~self._there))

    def _order(self) -> None:
        """Orders what waits among what is kept."""
        if not self._waiting:
            return
        nodes, neighbours = (np.concatenate(each) for each in zip(*self._waiting, strict=True))
        self._waiting = []
        apart = nodes != neighbours
        nodes, neighbours = nodes[apart], neighbours[apart]
        places = np.concatenate([self._ranks, ranks(nodes, neighbours)])
        nodes, neighbours = np.concatenate([self._nodes, nodes]), np.concatenate([self._others, neighbours])
        order = np.lexsort((neighbours, places, nodes))
        nodes, neighbours, places = nodes[order], neighbours[order], places[order]
        new = np.ones(len(nodes), dtype=np.bool_)
        new[1:] = (nodes[1:] != nodes[:-1]) | (neighbours[1:] != neighbours[:-1])
        nodes, neighbours, places = nodes[new], neighbours[new], places[new]
        starts = np.searchsorted(nodes, nodes)
        first = np.arange(len(nodes)) - starts < self._keep
        self._nodes, self._others, self._ranks = nodes[first], neighbours[first], places[first]
