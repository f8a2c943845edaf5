"""The secret order of a batch's records, for sums in float32.

Float32 adds a group of 48 records at a time, so a group's rounding depends on who is in it. In the order of the data
set one more record would shift all later ones into other groups. In a uniformly random order one more record takes a
random place, and the record from that place goes to the end: two groups change (docs/privacy.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from worker.noise.generator import KeyedStream

WHOLE_DATA = 0  # stands for the step where one order serves all steps


class RandomOrder:
    """Uniformly random permutations, addressed by step.

    Records are sorted by 128 random bits each. Two of n records tie with a probability below n²/2¹²⁹.

    Args:
        key: 32 bytes of purpose "order"; secret if the data are private.

    >>> sorted(RandomOrder(bytes(range(32))).of(step=1, count=4).tolist())
    [0, 1, 2, 3]
    """

    def __init__(self, key: bytes | None) -> None:
        self._stream = KeyedStream(key)

    def of(self, step: int, count: int) -> NDArray[np.int64]:
        """A permutation of 0 … count − 1; of a whole data set with step WHOLE_DATA."""
        first, second = (self._stream.words(step, 0, lane, 0, count) for lane in (0, 1))
        return np.lexsort((second, first))


def shuffled(records: Any, order: NDArray[np.int64]) -> Any:
    """The records in this order, known to be random."""
    found = records.select(order)
    found.in_random_order = True
    return found
