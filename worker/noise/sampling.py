"""Who takes part in a step. The sampler that runs is the one that the mechanism's event was charged for."""

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
        """Indices of the step's records, ascending (private: also their number); None: all of them."""
        ...


class FullBatch:
    """Every record in every step: q = 1."""

    def draw(self, step: int) -> None:
        return None


class PoissonSampler:
    """Record i joins step t iff u(t, i) < q, with u from a keyed stream: independent over records and steps.

    The threshold ⌊q·2⁵³⌋ never exceeds q. An empty draw is a step like any other: noise alone.

    Args:
        key: 32 secret bytes of the sampler's own: amplification needs batches that nobody can predict.
        sample_rate: q, a public number of the plan.
        records: how many there are (private): it only says how many coins are tossed.

    Raises:
        PrivacyError: no key, or q outside (0, 1].

    Source: add-or-remove-one Poisson sampling as in Abadi et al. 2016; Mironov, Talwar & Zhang 2019.
    """

    def __init__(self, key: bytes | None, sample_rate: float, records: int) -> None:
        if not 0.0 < sample_rate <= 1.0:
            raise PrivacyError("a sampling rate lies in (0, 1]")
        self._stream = KeyedStream(key)
        # Signed words below it; u < q for the 53 bits u that a word begins with, as an integer from −2⁶³ on.
        self._last = (math.floor(sample_rate * 2**53) - 2**52) * 2**11 - 1
        self._records = records

    def draw(self, step: int) -> NDArray[np.int64]:
        return np.flatnonzero(self._stream.words(step, 0, 0, 0, self._records) <= self._last)
