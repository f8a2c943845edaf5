"""The records of each step. The sampler that runs is the one that the mechanism's event charges for."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from core.errors import PrivacyError
from worker.noise.generator import WORD_BITS, KeyedStream
from worker.noise.rounding import GUARD_BITS, Digits, mp

COINS, GAPS, GROUPS = 0, 1, 2  # the tensors of the stream that hold their words
COINS_AT_ONCE = 2**20  # their words take 8 MiB
GAPS_BELOW = 1 / 16  # at larger rates tossing every coin is faster, and q·2⁶⁴ is an integer
# Gaps in float64: NumPy's logarithms are assumed to be within 2⁻⁴⁶ of their value (tests find 2⁻⁵²).
TOLERANCE = 2.0**-45
LEAST_TAIL = 2.0**-20  # nearer to the end, a gap is settled exactly


class Sampler(Protocol):
    """Draws each step's records."""

    def draw(self, step: int) -> NDArray[np.int64] | None:
        """The step's numbers, ascending; None: all. Those of records are private."""
        ...


class FullBatch:
    """Every record in every step: q = 1.

    >>> FullBatch().draw(step=1) is None
    True
    """

    def draw(self, step: int) -> None:
        return None


class CyclicSampler:
    """Each record belongs to one of `batches` groups, and step t takes group (t − 1) mod `batches`.

    Groups are drawn once under a key, for each slot independently, so no record's group depends on other records, and
    no group's slots on records at all. No price rests on the draw; its bias, below 2⁻⁴⁸, does not matter.

    Args:
        key: the sampler's own 32 secret bytes.
        batches: b ≥ 2, public.
        records: how many numbers are drawn from: all slots, occupied or not.

    Raises:
        PrivacyError: no key, or b below 2.

    >>> sampler = CyclicSampler(bytes(range(32)), batches=2, records=5)
    >>> sorted(map(int, [*sampler.draw(step=1), *sampler.draw(step=2)]))
    [0, 1, 2, 3, 4]
    """

    def __init__(self, key: bytes | None, batches: int, records: int) -> None:
        if not 2 <= batches < 2**16:
            raise PrivacyError("cyclic batches need at least 2 groups and fewer than 65,536")
        stream, self._batches = KeyedStream(key), batches
        self._groups = np.empty(records, dtype=np.uint16)
        for start in range(0, records, COINS_AT_ONCE):
            words = stream.words(0, GROUPS, 0, start, min(COINS_AT_ONCE, records - start)).view(np.uint64)
            self._groups[start : start + len(words)] = words % np.uint64(batches)

    def draw(self, step: int) -> NDArray[np.int64]:
        """The step's record indices, ascending."""
        return np.flatnonzero(self._groups == (step - 1) % self._batches)


class PoissonSampler:
    """Each record joins each step with probability q, independently over records and steps.

    Below a rate of 1/16 it draws the gaps between joining records, in time O(q · records). Gap G is geometric: with V
    uniform on [0, 1), G = ⌊ln(1−V) / ln(1−q)⌋, so P(G ≥ k) = (1−q)^k for the very q that is charged. Float64 computes G
    unless the quotient is within its error of an integer; then V's digits are compared with 1 − (1−q)^k, as many as
    needed. Above 1/16 record i joins iff U_i < q, on 64 bits, where q · 2⁶⁴ is an integer. So both are exact, and the
    same on every machine. A step with an empty draw releases noise alone.

    Args:
        key: the sampler's own 32 secret bytes: amplification needs batches that nobody can predict.
        sample_rate: q, a public number of the plan.
        records: how many numbers are drawn from: all slots, occupied or not.

    Raises:
        PrivacyError: no key, or q outside (0, 1].

    Source: add-or-remove-one Poisson sampling as in Abadi et al. 2016; Mironov, Talwar & Zhang 2019.

    >>> PoissonSampler(bytes(range(32)), sample_rate=1.0, records=3).draw(step=1)
    array([0, 1, 2])
    """

    def __init__(
        self,
        key: bytes | None,
        sample_rate: float,
        records: int,
    ) -> None:
        if not 0.0 < sample_rate <= 1.0:
            raise PrivacyError("a sampling rate must lie in (0, 1]")
        self._stream, self._rate, self._records = KeyedStream(key), sample_rate, records
        self._by_gaps = sample_rate < GAPS_BELOW
        # The largest signed word whose bits are below q; words count from −2⁶³.
        self._last = math.floor(Fraction(sample_rate) * 2**WORD_BITS) - 2 ** (WORD_BITS - 1) - 1

    def draw(self, step: int) -> NDArray[np.int64]:
        """The step's numbers, ascending."""
        if not self._by_gaps:
            starts = range(0, self._records, COINS_AT_ONCE)
            return np.concatenate([np.empty(0, dtype=np.int64), *(self._tossed(step, each) for each in starts)])
        drawn, number, last = [], 0, -1
        while last < self._records:  # the last gap ends beyond the last record
            expected = (self._records - last) * self._rate
            count = math.ceil(expected + 4.0 * math.sqrt(expected)) + 16
            drawn.append(last + np.cumsum(self._gaps(step, number, count) + 1))
            number, last = number + count, int(drawn[-1][-1])
        places: NDArray[np.int64] = np.concatenate(drawn)
        return places[: np.searchsorted(places, self._records)]

    def _tossed(self, step: int, start: int) -> NDArray[np.int64]:
        """The joining records from `start` on, at most COINS_AT_ONCE further."""
        words = self._stream.words(step, COINS, 0, start, min(COINS_AT_ONCE, self._records - start))
        return start + np.flatnonzero(words <= self._last)

    def _gaps(self, step: int, first: int, count: int) -> NDArray[np.int64]:
        """Gaps first … first+count−1 of a step; those that lead beyond the last record count as `records`."""
        words = self._stream.words(step, GAPS, 0, first, count).view(np.uint64) ^ np.uint64(2**63)
        v, left = (words + 0.5) * 2.0**-64, (~words + 0.5) * 2.0**-64  # V and 1 − V, both to 53 bits
        per_record = -math.log1p(-self._rate)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):  # log1p(−1), unused; rates below 10⁻³⁰⁰
            quotient = -np.where(v < 0.5, np.log1p(-v), np.log(left)) / per_record
            off = quotient * TOLERANCE + 2.0**-64 / (left * per_record)
            beyond = quotient - off >= self._records
        gaps = np.floor(np.minimum(quotient, float(self._records)))
        certain = ((quotient > gaps + off) | (gaps == 0)) & (quotient + off < gaps + 1) & (left >= LEAST_TAIL)
        result: NDArray[np.int64] = gaps.astype(np.int64)
        for index in np.flatnonzero(~(certain | beyond)).tolist():
            digits = Digits(self._stream, step, GAPS, first + index)
            result[index] = exact_gap(self._rate, digits, int(result[index]), self._records)
        return result


def exact_gap(rate: float, digits: Digits, guess: int, largest: int) -> int:
    """min(G, most) with G = ⌊ln(1−V) / ln(1−q)⌋, exactly.

    Args:
        rate: q, a float taken as an exact real.
        digits: V.
        guess: where to start the search, from 0 to `largest`.
    """
    near, far = max(guess - 2, 0), min(guess + 2, largest)
    low = near if _reaches(near, rate, digits) else 0
    high = largest if far == largest or _reaches(far, rate, digits) else far
    if high == largest and _reaches(largest, rate, digits):
        return largest
    while high - low > 1:  # it reaches `low`, and not `high`
        middle = (low + high) // 2
        low, high = (middle, high) if _reaches(middle, rate, digits) else (low, middle)
    return low


def _reaches(gap: int, rate: float, digits: Digits) -> bool:
    """Returns True if G ≥ gap, that is V ≥ 1 − (1−q)^gap."""
    words = 1
    while gap > 0:
        bits = WORD_BITS * words
        mp.context.prec = bits + GUARD_BITS + gap.bit_length()
        boundary = mp.context.ldexp(-mp.context.expm1(gap * mp.context.log1p(-mp.context.mpf(rate))), bits)
        ahead = digits.leading(words) - boundary
        if ahead >= 2.0**-16:  # exceeds the error of the guarded arithmetic
            return True
        if ahead <= -(1.0 + 2.0**-16):
            return False
        words += 1
    return True
