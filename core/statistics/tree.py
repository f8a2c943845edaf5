"""A tree of counts: the Haar sums of leaves, from which each prefix is estimated with little noise.

    total, and at each level, from the root down, the right half of each node less its left half

A record is in one leaf: it adds ±1 to one number of each level, and 1 to the total, so Δ² = levels + 1.

Source: Xiao, Wang & Gehrke 2010, "Differential privacy via wavelet transforms".
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Numbers = TypeVar("Numbers", NDArray[np.float64], NDArray[np.int64])
Floats = NDArray[np.float64]


def tree_sums(leaves: Numbers) -> Numbers:
    """The sums of 2^L leaves, as many: the total, then each level from the root.

    >>> tree_sums(np.array([1, 2, 3, 4])).tolist()
    [10, 4, 1, 1]
    """
    levels: list[Numbers] = []
    while len(leaves) > 1:
        left, right = leaves[0::2], leaves[1::2]
        levels.append(right - left)
        leaves = left + right
    return np.concatenate([leaves, *reversed(levels)])


def leaves_of(sums: Floats) -> Floats:
    """The leaves whose sums these are."""
    nodes, at = sums[:1], 1
    while at < len(sums):
        differences = sums[at : 2 * at]
        halves = np.empty(2 * at)
        halves[0::2], halves[1::2] = (nodes - differences) / 2.0, (nodes + differences) / 2.0
        nodes, at = halves, 2 * at
    return nodes


def error_of(weights: Floats) -> float:
    """The std of Σ weights · leaves, where each of the tree's sums has noise of std 1.

    The coefficient of a node's difference is (Σ weights of its right leaves − those of its left ones) / its leaves.
    """
    count = len(weights)
    of_nodes = np.concatenate(
        [[count], *(np.full(2**level, count / 2**level) for level in range(count.bit_length() - 1))]
    )
    return float(np.linalg.norm(tree_sums(weights) / of_nodes))
