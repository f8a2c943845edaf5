"""Secret, uniformly random places: which row each record of a sum takes.

Two neighbouring data sets then differ in one row (docs/theorems.md, "A record has a place of its own").
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from worker.noise.generator import KeyedStream

WHOLE_DATA = 0  # stands for the step where one order serves all steps
TRAIN, HOLDOUT = 0, 1  # the parts that have an order of their own for all steps
PARTS = 2


class RandomOrder:
    """Uniformly random permutations, addressed by step.

    Numbers are sorted by 128 random bits each. Two of n tie with a probability below n²/2¹²⁹.

    Args:
        key: 32 bytes of purpose "order"; secret if the data are private.

    >>> sorted(RandomOrder(bytes(range(32))).of(step=1, count=4).tolist())
    [0, 1, 2, 3]
    """

    def __init__(self, key: bytes | None) -> None:
        self._stream = KeyedStream(key)

    def of(self, step: int, count: int, part: int = TRAIN, block: int = 0) -> NDArray[np.int64]:
        """A permutation of 0 … count − 1; of a whole part, or of one of the blocks that it was joined from, with step
        WHOLE_DATA. A job orders a part as a whole or by blocks, never both."""
        tensor = part + PARTS * block
        first = self._stream.words(step, tensor, 0, 0, count)
        order = np.argsort(first)
        ordered = first[order]
        if not (ordered[1:] == ordered[:-1]).any():
            return order
        return np.lexsort((self._stream.words(step, tensor, 1, 0, count), first))
