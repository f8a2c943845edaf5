"""The noise step where steps share noise: S_t + s (Z_t − λ Z_{t−1}), correctly rounded.

    R_t = g · ⌊(S_t + s Z_t − s λ Z_{t−1}) / g⌉      g: the grid of s (worker.noise.rounding)

Z_{t−1} is the last step's: the same words of the same key, made again. R_t is a function of S_t + s (Z_t − λ Z_{t−1})
over the reals, so it is post-processing of the mechanism that core.privacy.correlated_price prices, floating point
included.

How: float64 computes the sum with an error below TOLERANCE · g. Otherwise, and in the tails, both numbers are enclosed
between two floats of mpmath, with more and more of their digits, until the whole interval rounds to one multiple.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from core.errors import PrivacyError
from worker.data.shards import Span
from worker.noise.generator import CHUNK, WORD_BITS, GaussianGenerator
from worker.noise.rounding import GUARD_BITS, TAIL, Digits, grid, mp

# Twice the independent noise's (worker.noise.rounding), as two numbers err, and |λ| < 1.
TOLERANCE = 2.0**-19


def correlated_mean(
    private_sum: Tensor,
    generator: GaussianGenerator,
    std: float,
    decay: float,
    divisor: int,
    *,
    step: int,
    span: Span,
    first_step: int,
) -> Tensor:
    """R / L, float64, on the sum's own device. Computed on the processor, in pieces.

    Args:
        private_sum: S, float64.
        std, decay: s and λ.
        divisor: L.
        step, span: the address of Z_t: the sum's tensor and its first number there.
        first_step: the first step under this key: Z is 0 before it.

    Raises:
        PrivacyError: S is not finite.
    """
    flat = private_sum.detach().reshape(-1).cpu()
    if not bool(torch.isfinite(flat).all()):
        raise PrivacyError("a private sum is not finite")
    if len(flat) != span.count:
        raise PrivacyError("each number of a sum needs one word of noise")
    result = generator.noise(step, span.tensor, len(flat), first=span.first)
    earlier_noise = generator.noise(step - 1, span.tensor, len(flat), first=span.first) if step > first_step else None
    for start in range(0, len(flat), CHUNK):
        part = slice(start, start + CHUNK)
        earlier = None if earlier_noise is None else earlier_noise[part]
        for index in _round_sums(flat[part], result[part], earlier, std, decay):
            place = span.first + start + index
            digits = [Digits(generator.stream, each, span.tensor, place) for each in (step, step - 1)]
            result[start + index] = settled(
                float(flat[start + index]), std, decay, *digits[: 1 + (earlier_noise is not None)]
            )
    return result.div_(divisor).view(private_sum.shape).to(private_sum.device)


def _round_sums(values: Tensor, z: Tensor, earlier: Tensor | None, std: float, decay: float) -> list[int]:
    """Writes R as float64 computes it into z; returns the positions where that is not certain."""
    g = grid(std)
    multiples = torch.round(values / g).mul_(g)  # exact, and so is the rest
    remainders = values - multiples
    tails = z.abs() > TAIL
    total = torch.add(remainders, z, alpha=std)
    if earlier is not None:
        tails |= earlier.abs() > TAIL
        total.add_(earlier, alpha=-std * decay)
    rounded = torch.round(total / g).mul_(g)
    doubtful = tails | ((total - rounded).abs() > (0.5 - TOLERANCE) * g)
    torch.add(rounded, multiples, out=z)
    return torch.nonzero(doubtful).view(-1).tolist()


def settled(value: float, std: float, decay: float, now: Digits, earlier: Digits | None = None) -> float:
    """R of one sum, by exact arithmetic alone.

    Args:
        value: S, a float taken as an exact real.
        now, before: the digits of Z_t and of Z_{t−1}; None: there is no step before.
    """
    g, words = grid(std), 1
    while True:
        mp.context.prec = WORD_BITS * words + 2 * GUARD_BITS + 64
        m = mp.context
        low, high = _between(now, words)
        scale, center = m.mpf(std) / m.mpf(g), m.mpf(value) / m.mpf(g)
        if earlier is not None:
            earlier_low, earlier_high = _between(earlier, words)
            low, high = low - m.mpf(decay) * earlier_high, high - m.mpf(decay) * earlier_low
        cells = [m.floor(center + scale * each + m.mpf(1) / 2) for each in (low, high) if m.isfinite(each)]
        if len(cells) == 2 and cells[0] == cells[1]:
            return float(int(cells[0])) * g
        words += 1


def _between(digits: Digits, words: int) -> tuple[Any, Any]:
    """Two numbers with Z between them, from U's leading words: Φ⁻¹ of both ends, moved outwards until Φ confirms it."""
    m, leading = mp.context, digits.leading(words)
    ends = m.ldexp(leading, -WORD_BITS * words), m.ldexp(leading + 1, -WORD_BITS * words)
    return _quantile(ends[0], -1), _quantile(ends[1], 1)


def _quantile(u: Any, sign: int) -> Any:
    """A number beyond Φ⁻¹(u) in the direction of `sign`, within 2⁻⁴⁰ of what the digits of u allow."""
    m = mp.context
    if u <= 0 or u >= 1:
        return m.mpf(sign) * m.inf
    near = m.sqrt(2) * m.erfinv(2 * u - 1)
    margin = m.ldexp(1, -m.prec // 2)
    while (m.ncdf(near + sign * margin) - u) * sign <= 0:
        margin *= 2
    return near + sign * margin
