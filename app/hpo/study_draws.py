"""Draws of a study: a counter under SHA-256, keyed by the study's public seed. They depend on nothing else, neither on
the worker nor on private data, so anybody who knows the seed can repeat them.

    u_k = (first 53 bits of SHA-256(seed ‖ label ‖ k) + ½) / 2⁵³        in (0, 1)
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draws:
    """A stream of draws. Streams with other labels are independent of it.

    Args:
        seed: public; any value.
        label: the purpose of the draws.
    """

    def __init__(self, seed: str, label: str) -> None:
        self._prefix = f"scrimp/v1/hpo/{seed}/{label}/"
        self._count = 0

    def uniform(self) -> float:
        """In (0, 1)."""
        digest = hashlib.sha256(f"{self._prefix}{self._count}".encode()).digest()
        self._count += 1
        return (float(int.from_bytes(digest[:7], "big") >> 3) + 0.5) * 2.0**-53

    def log_uniform(self, low: float, high: float) -> float:
        """exp(U(ln least, ln most)), never outside the bounds."""
        drawn = math.exp(math.log(low) + self.uniform() * (math.log(high) - math.log(low)))
        return min(max(drawn, low), high)

    def log_uniform_int(self, low: int, high: int) -> int:
        """⌊exp(U(ln least, ln(most + 1)))⌋: each integer k with probability ln(1 + 1/k) / ln((most + 1)/least)."""
        return min(max(math.floor(self.log_uniform(low, high + 1)), low), high)

    def choice(self, among: Sequence[T]) -> T:
        """One of the values, each with the same probability."""
        return among[min(int(self.uniform() * len(among)), len(among) - 1)]
