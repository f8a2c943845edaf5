"""The records of each step. The sampler that runs is the one that the mechanism's event charges for."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from app.errors import PrivacyError
from worker.noise.generator import KeyedStream


class Sampler(Protocol):
    """Draws each step's records."""

    def draw(self, step: int) -> NDArray[np.int64] | None:
        """The step's record indices, ascending; None: all records. Their number is private too."""
        ...


class FullBatch:
    """Every record in every step: q = 1.

    >>> FullBatch().draw(step=1) is None
    True
    """

    def draw(self, step: int) -> None:
        return None


class PoissonSampler:
    """Record i joins step t iff u(t, i) < q, with u from a keyed stream: independent over records and steps.

    The threshold ⌊q·2⁵³⌋ never exceeds q. A step with an empty draw releases noise alone.

    Args:
        key: the sampler's own 32 secret bytes: amplification needs batches that nobody can predict.
        sample_rate: q, a public number of the plan.
        records: the number of records (private). It determines only how many coins are tossed.

    Raises:
        PrivacyError: no key, or q outside (0, 1].

    Source: add-or-remove-one Poisson sampling as in Abadi et al. 2016; Mironov, Talwar & Zhang 2019.

    >>> PoissonSampler(bytes(range(32)), sample_rate=1.0, records=3).draw(step=1)
    array([0, 1, 2])
    """

    def __init__(self, key: bytes | None, sample_rate: float, records: int) -> None:
        if not 0.0 < sample_rate <= 1.0:
            raise PrivacyError("a sampling rate must lie in (0, 1]")
        self._stream = KeyedStream(key)
        # The largest signed word with u < q, where u is the word's first 53 bits and words count from −2⁶³.
        self._last = (math.floor(sample_rate * 2**53) - 2**52) * 2**11 - 1
        self._records = records

    def draw(self, step: int) -> NDArray[np.int64]:
        """The step's record indices, ascending."""
        return np.flatnonzero(self._stream.words(step, 0, 0, 0, self._records) <= self._last)
