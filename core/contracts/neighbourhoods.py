"""How far a node of a graph reaches, as models of graphs read it: the counts that decide sensitivity (decision 56)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from core.contracts.base import Document

MOST_KEPT = 64  # neighbours of a node that a part stores
HALVES = 2  # numbers that a part stores of an id
Hops = Literal[1, 2]
Fan = Annotated[int, Field(strict=True, ge=1, le=MOST_KEPT)]


def stored_width(keep: int) -> int:
    """How many numbers a part stores of a node besides its columns: its id, and `keep` others'.

    >>> stored_width(16)
    34
    """
    return HALVES * (1 + keep)


class Tree(Document):
    """What a model reads of the graph around a node: at most `neighbours` nodes at each of `hops` hops."""

    hops: Hops = 1
    neighbours: Fan = 4

    @property
    def readers(self) -> int:
        """N(K, r) = 1 + K + … + K^r: a node is in the trees of at most so many nodes, its own included.

        >>> Tree(hops=1, neighbours=4).readers, Tree(hops=2, neighbours=4).readers
        (5, 21)
        """
        return sum(self.neighbours**hop for hop in range(self.hops + 1))

    @property
    def reach(self) -> int:
        """2 N − 1: a node more or less moves a sum of terms of norm c by at most so many c.

        Its own term comes or goes, c; each of the N − 1 others that read it changes, by 2c at most.

        >>> Tree(hops=1, neighbours=4).reach
        9
        """
        return 2 * self.readers - 1

    def width(self, columns: int) -> int:
        """How many numbers a tree of nodes with so many columns has; see core.parts.nodes.

        >>> Tree(hops=1, neighbours=4).width(10), Tree(hops=2, neighbours=4).width(10)
        (20, 104)
        """
        return 2 * columns if self.hops == 1 else (1 + self.neighbours) * 2 * columns + self.neighbours
