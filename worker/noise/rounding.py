"""The Gaussian mechanism on finite machines: what is released is the correctly rounded sum, in every bit.

    R = g · ⌊(S + s·Z) / g⌉      s: the noise's std;  g: the power of two with s/2¹¹ < g ≤ s/2¹⁰;  ⌊·⌉: nearest integer

S is the private sum, with floats taken as exact reals. Z is a true Gaussian, a real number with all its digits: Z =
Φ⁻¹(U), where the words w₀, w₁, … of lanes 0, 1, … at the number's position are the digits of U = 0.w₀w₁w₂… in base 2⁶⁴.

Guarantee: R is a function of S + s·Z alone, so it is post-processing of the Gaussian mechanism over the reals. Every
guarantee of that mechanism (ε and δ, Gaussian, Rényi, privacy loss distributions, sampling and composition included)
holds for R unchanged, with nothing added to δ. No bit of R reveals more: neither the gaps of floating-point noise
(Mironov 2012) nor the precision of a sum's last bit (Haney et al. 2022). A sum of several Gaussians (Holohan & Braghin
2021) does not prevent the latter.

How: float64 computes S + s·z with an error below TOLERANCE·g. If no boundary between two integers is that near, the
nearest integer is certain. Otherwise (3 in a million numbers, the far tails among them) an exact computation decides: a
boundary c is above Z iff U < Φ(c), which mpmath evaluates with as many digits of U as needed.

The rounding adds g²/12 < 10⁻⁷ s² to the noise's variance. R depends on S and on words only, not on any library's last
bits: it is the same on every CPU and GPU.

Source: Haney, Desfontaines, Hartman, Shrestha & Hay 2022, "Precision-based attacks and interval refining: how to break,
then fix, differential privacy on finite computers"; post-processing: Dwork & Roth 2014, Proposition 2.1.
"""

from __future__ import annotations

import math
import threading

import torch
from mpmath import MPContext
from torch import Tensor

from core.errors import PrivacyError
from worker.noise.generator import CHUNK, LANES, WORD_BITS, KeyedStream, gaussians

GRID_BITS = 10
# The error of float64 in grid cells, up to |z| = 4.9. U lies within ½·2⁻⁵³ of erf⁻¹'s argument. erf⁻¹ is assumed exact
# for a number within 7·2⁻⁵³ of that (tests find ½·2⁻⁵³): in all 8·2⁻⁵³ / φ(4.9) · 2¹¹ = 2⁻²⁰·³ cells. Adding it to a
# sum of less than 2²⁷ cells is off by less than 2⁻²⁵, everything else by less than 2⁻³⁵.
TOLERANCE = 2.0**-20
TAIL = 4.85
NEAR = 2.0**27
GUARD_BITS = 64


def grid(std: float) -> float:
    """g, the power of two with std/2¹¹ < g ≤ std/2¹⁰."""
    return math.ldexp(1.0, math.frexp(std)[1] - 1 - GRID_BITS)


def add_noise(
    values: Tensor, z: Tensor, std: float, stream: KeyedStream, step: int, tensor: int, first: int = 0
) -> Tensor:
    """R, in z's memory.

    Args:
        values: S, float64, private, on the processor.
        z: the stream's float64 Gaussians for (step, tensor), in equal number; overwritten.
        std: s.
        stream: the source of z's words.
        first: the first number's position in its stream.

    Returns:
        R in the shape of `values`, float64.

    Raises:
        PrivacyError: S is not finite.
    """
    flat, result = values.reshape(-1), z.view(-1)
    scratch = torch.empty(min(CHUNK, len(flat)), dtype=torch.float64)
    for start in range(0, len(flat), CHUNK):
        value, part = flat[start : start + CHUNK], result[start : start + CHUNK]
        for index in _round_sums(value, part, std, scratch[: len(part)]):
            digits = Digits(stream, step, tensor, first + start + index)
            part[index] = _settled_sum(float(value[index]), std, digits, float(part[index]))
    return result.view_as(values)


def settle_at(value: float, std: float, stream: KeyedStream, step: int, tensor: int, position: int) -> float:
    """R of the sum `value` with the noise at one position, by exact arithmetic alone.

    Raises:
        PrivacyError: the sum is not finite.
    """
    z = gaussians(torch.from_numpy(stream.words(step, tensor, 0, position, 1) >> 11))
    return _settled_sum(value, std, Digits(stream, step, tensor, position), value + std * float(z))


def _round_sums(values: Tensor, z: Tensor, std: float, scratch: Tensor) -> list[int]:
    """Writes R as float64 computes it into z; returns the positions where that is not certain.

    Sums that are large relative to the grid are split exactly into a multiple of g and a rest. Rounding the rest gives
    the same result.
    """
    g = grid(std)
    multiples = None
    if not _within(values, NEAR * g):
        multiples = torch.round(values / g).mul_(g)
        values = values - multiples
    tails = not _within(z, TAIL)
    torch.add(values, z, alpha=std, out=scratch)
    # Adding 1.5·2⁵²·g rounds to a multiple of g on this thread; torch.round would use all threads.
    torch.add(scratch, 1.5 * 2.0**52 * g, out=z).sub_(1.5 * 2.0**52 * g)
    limit = (0.5 - TOLERANCE) * g
    doubtful: list[int] = []
    if not _within(scratch.sub_(z), limit) or tails:
        certain = (scratch.abs() <= limit) & ((z - values).abs() <= TAIL * std)
        doubtful = torch.nonzero(~certain).view(-1).tolist()
    if multiples is not None:
        z += multiples  # rounds if R has more than 53 bits, which is still a function of R
    return doubtful


def _within(values: Tensor, bound: float) -> bool:
    """Returns True if all values lie in [−bound, bound]. A NaN does not."""
    lowest, highest = torch.aminmax(values)
    return -bound <= float(lowest) and float(highest) <= bound


class _Arithmetic(threading.local):
    """mpmath with a precision for each thread: the library's own is global."""

    def __init__(self) -> None:
        self.context = MPContext()


mp = _Arithmetic()


class Digits:
    """The uniform number of one position, to any number of digits."""

    def __init__(self, stream: KeyedStream, step: int, tensor: int, position: int) -> None:
        self._stream, self._step, self._tensor, self._position = stream, step, tensor, position
        self._words: list[int] = []

    def leading(self, words: int) -> int:
        """⌊U · 2^(64·words)⌋.

        Raises:
            PrivacyError: no words are left. A uniform number never needs 16,384 bits.
        """
        while len(self._words) < words:
            lane = len(self._words)
            if lane == LANES:
                raise PrivacyError("a uniform number ran out of digits")
            word = int(self._stream.words(self._step, self._tensor, lane, self._position, 1)[0])
            self._words.append(word + 2 ** (WORD_BITS - 1))
        return sum(word << WORD_BITS * at for at, word in enumerate(reversed(self._words[:words])))


def _settled_sum(value: float, std: float, digits: Digits, guess: float) -> float:
    """R of one sum, computed exactly and returned as a float, so to 53 bits."""
    g = grid(std)
    cells = value / g  # exact: g is a power of two
    if not math.isfinite(cells):
        raise PrivacyError("a private sum is not finite")
    nearest = round(cells)
    return float(nearest + settle(cells - nearest, std / g, digits, round((guess - value) / g))) * g


def settle(remainder: float, scale: float, digits: Digits, guess: int) -> int:
    """⌊rest + scale·Z⌉, exactly.

    Args:
        rest, scale: floats, taken as exact reals.
        digits: U, with Z = Φ⁻¹(U).
        guess: where to start the search.
    """
    low = high = guess  # goal: Z is above low's lower boundary and below high's upper boundary
    width = 1
    while not _below(high, remainder, scale, digits):
        low, high, width = high + 1, high + width, 2 * width
    while _below(low - 1, remainder, scale, digits):
        low, high, width = low - width, low - 1, 2 * width
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _below(middle, remainder, scale, digits) else (middle + 1, high)
    return low


def _below(cell: int, remainder: float, scale: float, digits: Digits) -> bool:
    """Returns True if rest + scale·Z < cell + ½, that is U < Φ((cell + ½ − rest) / scale)."""
    words = 1
    while True:
        bits = WORD_BITS * words
        mp.context.prec = bits + GUARD_BITS
        boundary = (mp.context.mpf(2 * cell + 1) / 2 - mp.context.mpf(remainder)) / mp.context.mpf(scale)
        ahead = mp.context.ldexp(mp.context.ncdf(boundary), bits) - digits.leading(words)
        if ahead >= 1.0 + 2.0**-16:  # 2⁻¹⁶ exceeds the error of the guarded arithmetic
            return True
        if ahead <= -(2.0**-16):
            return False
        words += 1
