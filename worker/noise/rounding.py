"""The Gaussian mechanism on finite machines: what is released is the correctly rounded sum, in every bit.

    R = g · ⌊(S + s·Z) / g⌉      s: the noise's std;  g: the power of two with s/2¹¹ < g ≤ s/2¹⁰;  ⌊·⌉: nearest integer

Here S is the private sum, floats taken as the reals that they are, and Z a true Gaussian, a real number with all its
digits: Z = Φ⁻¹(U), where the words w₀, w₁, … of lanes 0, 1, … at the number's position are the digits of
U = 0.w₀w₁w₂… in base 2⁶⁴.

Guarantee: R is a function of S + s·Z alone, so it is post-processing of the Gaussian mechanism over the reals, and
every guarantee of that (ε and δ, Gaussian, Rényi, privacy loss distributions, sampling and composition included)
holds for R as it stands, with nothing added to δ. No bit of R tells more: neither the gaps of floating-point noise
(Mironov 2012) nor the precision of a sum's last bit (Haney et al. 2022), against which a sum of several Gaussians
(Holohan & Braghin 2021) does not help.

How: float64 gives S/g + (s/g)·z with an error below TOLERANCE. Where no boundary between two integers lies so near, the
nearest integer is certain. Else (3 of a million numbers, the far tails among them) it is settled exactly: a boundary c
is above Z iff U < Φ(c), which mpmath decides with as many digits of U as that takes.

The rounding adds g²/12 < 10⁻⁷ s² to the noise's variance. R depends on S and on words only, not on any library's
last bits: it is the same on every CPU and GPU.

Source: Haney, Desfontaines, Hartman, Shrestha & Hay 2022, "Precision-based attacks and interval refining: how to break,
then fix, differential privacy on finite computers"; post-processing: Dwork & Roth 2014, Proposition 2.1.
"""

from __future__ import annotations

import math

import mpmath
import torch
from torch import Tensor

from app.errors import PrivacyError
from worker.noise.generator import CHUNK, LANES, WORD_BITS, KeyedStream

GRID_BITS = 10
# What float64 may be wrong by, in grid cells, up to |z| = 4.9. U lies within ½·2⁻⁵³ of the number that erf⁻¹ is given,
# and erf⁻¹ is assumed to answer for a number within 7·2⁻⁵³ of that (tests find ½·2⁻⁵³): in all 8·2⁻⁵³ / φ(4.9) · 2¹¹ =
# 2⁻²⁰·³ cells. Everything else stays below 2⁻³⁵.
TOLERANCE = 2.0**-20
TAIL = 4.85
GUARD_BITS = 64


def grid(std: float) -> float:
    """g, the power of two with std/2¹¹ < g ≤ std/2¹⁰."""
    return math.ldexp(1.0, math.frexp(std)[1] - 1 - GRID_BITS)


def add_noise(values: Tensor, z: Tensor, std: float, stream: KeyedStream, step: int, tensor: int) -> Tensor:
    """R, in the memory of z.

    Args:
        values: S, float64, private.
        z: float64 Gaussians of the stream (step, tensor), as many, on the same device; overwritten.
        std: s.
        stream: where z's words came from.

    Returns:
        R in the shape of `values`, float64.

    Raises:
        PrivacyError: S is not finite.
    """
    flat, result = values.reshape(-1), z.view(-1)
    size = CHUNK if values.device.type == "cpu" else max(len(flat), 1)
    scratch = torch.empty(3, min(size, len(flat)), dtype=torch.float64, device=values.device)
    for start in range(0, len(flat), size):
        part = result[start : start + size]
        whole, rest, nearest = scratch[:, : len(part)]
        doubtful = _round_sums(flat[start : start + size], part, std, whole, rest, nearest)
        for index in doubtful:
            digits = Digits(stream, step, tensor, start + index)
            exact = settle(float(rest[index]), std / grid(std), digits, float(nearest[index]))
            part[index] = (float(whole[index]) + exact) * grid(std)
    return result.view_as(values)


def _round_sums(values: Tensor, z: Tensor, std: float, whole: Tensor, rest: Tensor, nearest: Tensor) -> list[int]:
    """R as float64 sees it, into z; and where that is not certain.

    With W = ⌊S/g⌉ into `whole`, S/g − W into `rest` and the integer nearest to that with noise into `nearest`,
    R = g·(W + integer). That S/g may be huge does no harm: R then is a rounded sum of integers.
    """
    g = grid(std)
    torch.mul(values, 1.0 / g, out=rest)  # exact, as g is a power of two
    torch.round(rest, out=whole)
    rest -= whole  # exact too
    torch.add(rest, z, alpha=std / g, out=z)
    torch.round(z, out=nearest)
    distance = z.sub_(nearest)
    limit, tail = 0.5 - TOLERANCE, TAIL * std / g
    doubtful: list[int] = []
    if not (_within(distance, limit) and _within(nearest, tail)):
        doubtful = torch.nonzero(~((distance.abs() <= limit) & (nearest.abs() <= tail))).view(-1).tolist()
    torch.add(whole, nearest, out=z).mul_(g)
    return doubtful


def _within(values: Tensor, bound: float) -> bool:
    """Whether all lie in [−bound, bound]. A NaN does not."""
    lowest, highest = torch.aminmax(values)
    return -bound <= float(lowest) and float(highest) <= bound


class Digits:
    """The uniform number of one position, to any number of digits."""

    def __init__(self, stream: KeyedStream, step: int, tensor: int, position: int) -> None:
        self._stream, self._step, self._tensor, self._position = stream, step, tensor, position
        self._words: list[int] = []

    def leading(self, words: int) -> int:
        """⌊U · 2^(64·words)⌋.

        Raises:
            PrivacyError: there are no more; of a uniform number, 16,384 bits are never needed.
        """
        while len(self._words) < words:
            lane = len(self._words)
            if lane == LANES:
                raise PrivacyError("a uniform number has no more digits")
            word = int(self._stream.words(self._step, self._tensor, lane, self._position, 1)[0])
            self._words.append(word + 2 ** (WORD_BITS - 1))
        return sum(word << WORD_BITS * at for at, word in enumerate(reversed(self._words[:words])))


def settle(rest: float, scale: float, digits: Digits, guess: float) -> int:
    """⌊rest + scale·Z⌉, exactly.

    Args:
        rest, scale: floats, taken as the reals that they are.
        digits: U, of which Z = Φ⁻¹(U).
        guess: where to begin to look.

    Raises:
        PrivacyError: `rest` is not finite.
    """
    if not math.isfinite(rest):
        raise PrivacyError("a private sum is not finite")
    low = high = round(guess)  # to be: Z above the lower boundary of low, and below the upper one of high
    width = 1
    while not _below(high, rest, scale, digits):
        low, high, width = high + 1, high + width, 2 * width
    while _below(low - 1, rest, scale, digits):
        low, high, width = low - width, low - 1, 2 * width
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _below(middle, rest, scale, digits) else (middle + 1, high)
    return low


def _below(cell: int, rest: float, scale: float, digits: Digits) -> bool:
    """Whether rest + scale·Z < cell + ½, that is U < Φ((cell + ½ − rest) / scale)."""
    words = 1
    while True:
        bits = WORD_BITS * words
        with mpmath.workprec(bits + GUARD_BITS):
            boundary = (mpmath.mpf(2 * cell + 1) / 2 - mpmath.mpf(rest)) / mpmath.mpf(scale)
            ahead = mpmath.ldexp(mpmath.ncdf(boundary), bits) - digits.leading(words)
            if ahead >= 1.0 + 2.0**-16:  # 2⁻¹⁶: more than what guarded arithmetic can be wrong by
                return True
            if ahead <= -(2.0**-16):
                return False
        words += 1
