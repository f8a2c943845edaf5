"""Which of very many independent Gaussians reach a threshold, and how far: exactly, without drawing the others.

D Gaussians s·Z have places 0 … D − 1. Those with s·Z ≥ b are as many as a binomial number of D trials with chance
p = Q(b/s) says; they are a uniform subset of that size; and each is a Gaussian above b. So the number is drawn first,
then the places, then each one's value when it is asked for. The others are Gaussians below b.

Each number is a function of one uniform number U with all its digits, as in worker.noise.rounding: mpmath takes as many
of them as decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from core.errors import PrivacyError
from worker.noise.generator import WORD_BITS, KeyedStream
from worker.noise.rounding import GUARD_BITS, Digits, grid, mp

SLACK = 2.0**-16  # exceeds the error of the guarded arithmetic, in units of the last digit


@dataclass(frozen=True)
class Tail:
    """s·Z ≥ b, for one of the Gaussians.

    Attributes:
        std: s.
        bound: b.
    """

    std: float
    bound: float

    def beyond(self, bound: Any) -> Any:
        """Q(bound/s), in the precision of the moment, relative to itself."""
        context = mp.context
        return context.erfc(context.mpf(bound) / (context.mpf(self.std) * context.sqrt(2))) / 2


@dataclass(frozen=True)
class Exceedance:
    """One of the Gaussians that reach the bound; its value's digits are still to be drawn."""

    tail: Tail
    digits: Digits

    def rounded_sum(self, private: int) -> float:
        """R = g · ⌊(S + s·Z)/g⌉ of the sum S, as worker.noise.rounding has it."""
        g = grid(self.tail.std)
        low = high = round((self.tail.bound + private) / g) - 1
        width = 1
        while not self._below(high, private, g):
            low, high, width = high + 1, high + width, 2 * width
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._below(middle, private, g) else (middle + 1, high)
        return float(low) * g

    def _below(self, cell: int, private: int, g: float) -> bool:
        """True if S + s·Z < (cell + ½) g: with Q(s·Z) = U·p, that is U > Q((cell + ½) g − S) / p."""
        words = 1
        while True:
            bits = WORD_BITS * words
            mp.context.prec = bits + GUARD_BITS
            boundary = mp.context.mpf(2 * cell + 1) / 2 * mp.context.mpf(g) - private
            if boundary <= self.tail.bound:
                return False
            ratio = self.tail.beyond(boundary) / self.tail.beyond(self.tail.bound)
            ahead = self.digits.leading(words) - mp.context.ldexp(ratio, bits)
            if ahead >= SLACK:
                return True
            if ahead <= -1.0 - SLACK:
                return False
            words += 1


def exceedances(count: int, tail: Tail, stream: KeyedStream, step: int, tensor: int) -> dict[int, Exceedance]:
    """The places of those that reach the bound.

    Args:
        count: D.
        stream: of uniform words; tensor `tensor` of step `step` is used for nothing else.
    """
    by_place = dict[int, Exceedance]()
    position = 1
    total = _how_many(count, tail, Digits(stream, step, tensor, 0))
    while len(by_place) < total:
        place = _place(count, Digits(stream, step, tensor, position))
        if place not in by_place:
            by_place[place] = Exceedance(tail, Digits(stream, step, tensor, position + 1))
        position += 2
    return by_place


def _how_many(count: int, tail: Tail, digits: Digits) -> int:
    """The least k with U < P[at most k reach the bound]."""
    words = 1
    while True:
        bits = WORD_BITS * words
        mp.context.prec = bits + GUARD_BITS + count.bit_length()
        chance = tail.beyond(tail.bound)
        if chance >= 1:
            raise PrivacyError("a threshold must be above what noise always reaches")
        scaled = digits.leading(words)
        term = mp.context.exp(count * mp.context.log1p(-chance))
        below, k = term, 0
        while mp.context.ldexp(below, bits) <= scaled - SLACK and k < count:
            term *= chance / (1 - chance) * (count - k) / (k + 1)
            below, k = below + term, k + 1
        if k == count or mp.context.ldexp(below, bits) >= scaled + 1 + SLACK:
            return k
        words += 1


def _place(count: int, digits: Digits) -> int:
    """⌊U · D⌋."""
    words = -(-count.bit_length() // WORD_BITS) + 1
    while True:
        low = digits.leading(words)
        place = low * count >> WORD_BITS * words
        if ((low + 1) * count - 1) >> WORD_BITS * words == place:
            return place
        words += 1
