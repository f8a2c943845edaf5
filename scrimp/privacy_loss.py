"""What a certificate's events lose, and what an attacker can find: the reader's own accountant, of numpy alone.

A privacy loss distribution has a point mass p_i at each loss i·g of a grid g, and a mass at infinity:

    δ(ε) = p_∞ + Σ_{i·g > ε} (1 − e^{ε − i·g}) p_i

An interval between two points of the grid, of masses P and Q under the two neighbours, becomes two masses at its ends
with the same P and Q ("connect the dots"). The result dominates the mechanism's, so that ε is never too small. Steps
are composed by convolution; tails that are cut count as infinite losses.

Gaussians alone need no grid and no numpy: they are one Gaussian of μ² = Σ 1/σ², and

    δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ),        TPR(α) = Φ(Φ⁻¹(α) + μ).

Sources: Doroshenko et al. 2022, "Connect the Dots"; Dong, Roth & Su 2022, "Gaussian Differential Privacy".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from scrimp.recompute import precision_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Tree = Mapping[str, Any]
GRID = 1e-4
TAIL = 1e-15  # of each cut, added to the infinite losses
SPREAD = 9.0  # standard deviations; more lie outside with probability 1e-19
LARGEST = 100.0  # losses above are counted as infinite
STEP, MOST = 0.01, 20.0  # the ε at which the curve is read for an attacker
ROUNDING = 1e-12  # relative, of a sum of a million terms


@dataclass(frozen=True)
class Losses:
    """A distribution of privacy losses.

    Attributes:
        first: the grid's number of the first mass.
        masses: at (first + i) · grid.
        infinite: the mass at infinity.
    """

    grid: float
    first: int
    masses: Floats
    infinite: float

    def compose(self, other: Losses) -> Losses:
        """The losses of both together: their convolution, by FFT."""
        import numpy as np

        size = len(self.masses) + len(other.masses) - 1
        length = 1 << (size - 1).bit_length()
        spectrum = np.fft.rfft(self.masses, length) * np.fft.rfft(other.masses, length)
        masses = np.maximum(np.fft.irfft(spectrum, length)[:size], 0.0)
        infinite = 1.0 - (1.0 - self.infinite) * (1.0 - other.infinite)
        return _cut(Losses(self.grid, self.first + other.first, masses, infinite))

    def times(self, count: int) -> Losses:
        """The losses of this many steps: the count's power of the Fourier transform, on a window that Chernoff's bound
        leaves with probability at most TAIL at each end. What wraps around is counted as infinite once more."""
        import numpy as np

        numbers = np.arange(self.first, self.first + len(self.masses))
        with np.errstate(divide="ignore"):
            logs = np.log(self.masses)
        low = max(-self._end(-numbers, logs, count), count * int(numbers[0]))
        high = min(self._end(numbers, logs, count), count * int(numbers[-1]))
        length = 1 << (max(high - low, len(numbers)) + 1).bit_length()
        buffer = np.zeros(length)
        np.add.at(buffer, numbers % length, self.masses)
        masses = np.maximum(np.fft.irfft(np.fft.rfft(buffer) ** count, length), 0.0)
        infinite = -math.expm1(count * math.log1p(-self.infinite)) + 2.0 * TAIL
        window = np.roll(masses, -(low % length))[: high - low + 1]
        return _cut(Losses(self.grid, low, window, infinite))

    def _end(self, numbers: Any, logs: Floats, count: int) -> int:
        """The number that the sum of this many steps' exceeds with probability at most TAIL: for any λ > 0,
        P(sum ≥ u) ≤ E[e^{λ loss}]^count e^{−λ u}."""
        import numpy as np

        ends = []
        for rate in 10.0 ** np.arange(-3.0, 3.01, 0.125):
            exponents = rate * self.grid * numbers + logs
            largest = exponents.max()
            log_mean = largest + math.log(np.exp(exponents - largest).sum())
            ends.append((count * log_mean - math.log(TAIL)) / rate)
        smallest: float = min(ends)
        return math.ceil(smallest / self.grid)

    def delta(self, epsilon: float) -> float:
        """δ(ε), never too small."""
        import numpy as np

        losses = self.grid * np.arange(self.first, self.first + len(self.masses))
        above = losses > epsilon
        parts = -np.expm1(epsilon - losses[above]) * self.masses[above]
        return min(1.0, self.infinite + math.fsum(parts.tolist()))

    def curve(self, epsilons: Sequence[float]) -> list[float]:
        """δ at each ε by sums from above, whose rounding ROUNDING covers: quicker than `delta` for many."""
        import numpy as np

        losses = self.grid * np.arange(self.first, self.first + len(self.masses))
        above = np.append(np.cumsum(self.masses[::-1])[::-1], 0.0)
        other = np.append(np.cumsum((self.masses * np.exp(-losses))[::-1])[::-1], 0.0)
        at = np.searchsorted(losses, np.asarray(epsilons), side="right")
        scale = np.exp(epsilons)
        found = self.infinite + above[at] - scale * other[at] + ROUNDING * (above[at] + scale * other[at])
        return [min(1.0, max(0.0, each)) for each in found.tolist()]


def epsilon(tree: Tree, delta: float, grid: float = GRID) -> float:
    """ε at δ: exact for Gaussians, otherwise from the grid, never too small; ∞ if the grid cannot resolve δ.

    Args:
        tree: an account's events, as a certificate prints them.

    Raises:
        ValueError: an event of an unknown kind.
        ModuleNotFoundError: batches are sampled, and numpy is not installed.
    """
    mu = mu_of(tree)
    if mu is not None:
        return _smallest(lambda e: gaussian_delta(mu, e), delta)
    sides = losses(tree, grid)
    if max(side.infinite for side in sides) >= delta:
        return math.inf
    return max(_smallest(side.delta, delta) for side in sides)


def attack(tree: Tree, rates: Sequence[float], grid: float = GRID) -> dict[float, float]:
    """The share of members that an attacker finds at most, for each rate of false accusations. Raises as `epsilon`.

    >>> {a: round(tpr, 4) for a, tpr in attack({"kind": "gaussian", "noise_multiplier": 3.73}, [0.001, 0.1]).items()}
    {0.001: 0.0024, 0.1: 0.1553}
    """
    mu = mu_of(tree)
    if mu is not None:
        return {alpha: _cdf(NormalDist().inv_cdf(alpha) + mu) for alpha in rates}
    epsilons = [STEP * at for at in range(round(MOST / STEP) + 1)]
    curve = deltas(tree, epsilons, grid)
    return {alpha: _of_curve(epsilons, curve, alpha) for alpha in rates}


def deltas(tree: Tree, epsilons: Sequence[float], grid: float = GRID) -> list[float]:
    """δ at each ε, which ascend; never too small. Raises as `epsilon`."""
    mu = mu_of(tree)
    if mu is not None:
        return [gaussian_delta(mu, each) for each in epsilons]
    return [max(pair) for pair in zip(*(side.curve(epsilons) for side in losses(tree, grid)), strict=True)]


def mu_of(tree: Tree) -> float | None:
    """μ of a tree of Gaussians, √(Σ 1/σ²); None if anything is sampled.

    Raises:
        ValueError: an event of an unknown kind.
    """
    precision = precision_of(tree)
    return None if precision is None else math.sqrt(precision)


def losses(tree: Tree, grid: float = GRID) -> tuple[Losses, Losses]:
    """The losses of a tree of events if a unit is removed, and if one is added."""
    kind = tree["kind"]
    if kind == "composed":
        sides = [losses(event, grid) for event in tree["events"]]
        return reduce(Losses.compose, [each[0] for each in sides]), reduce(Losses.compose, [each[1] for each in sides])
    if kind == "self_composed":
        removed, added = losses(tree["event"], grid)
        return removed.times(tree["count"]), added.times(tree["count"])
    if kind == "gaussian":
        return _sampled(tree["noise_multiplier"], 1.0, grid)
    if kind not in ("poisson_sampled", "truncated_sampled") or tree["event"]["kind"] != "gaussian":
        raise ValueError(f"an event of unknown kind {kind!r}")
    sigma, rate = tree["event"]["noise_multiplier"], tree["sample_rate"]
    single = _sampled(sigma, rate, grid)
    if kind == "poisson_sampled":
        return single
    from scrimp.recompute import chance_of_a_full_batch

    # With the chance of a full batch a unit takes another's place, at twice the distance.
    full = chance_of_a_full_batch(tree["records"], tree["largest_batch"], rate)
    twice = _sampled(sigma / 2.0, rate, grid)
    return _mixed(twice[0], single[0], full), _mixed(twice[1], single[1], full)


def _sampled(sigma: float, rate: float, grid: float) -> tuple[Losses, Losses]:
    """Of N(0, σ²) beside (1 − q) N(0, σ²) + q N(1, σ²): with the mixture, and with the plain one, as the true one."""
    import numpy as np

    if not (sigma > 0.0 and 0.0 < rate <= 1.0):
        raise ValueError(f"σ = {sigma}, q = {rate}: no sampled Gaussian")

    def loss(x: float) -> float:
        exponent = (2.0 * x - 1.0) / (2.0 * sigma**2)
        small = math.log1p(rate * math.expm1(min(exponent, 30.0)))
        return small if exponent < 30.0 else exponent + math.log(rate) + (1.0 - rate) / rate * math.exp(-exponent)

    low = max(loss(-SPREAD * sigma), -LARGEST)
    high = min(loss(1.0 + SPREAD * sigma), LARGEST)
    first, last = math.floor(low / grid), math.ceil(high / grid)
    points = grid * np.arange(first, last + 1)
    # Where the loss is a point of the grid; below the smallest loss, log(1 − q), it is nowhere.
    odds = (np.expm1(points) + rate) / rate
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = np.where(odds > 0.0, sigma**2 * np.log(np.maximum(odds, 0.0)) + 0.5, -np.inf) / sigma
    plain, shifted = _between(ends), _between(ends - 1.0 / sigma)
    mixture = (1.0 - rate) * plain + rate * shifted
    removed = _connected(grid, first, mixture, plain)
    # The other way round the loss is its negative: points in reverse.
    added = _connected(grid, -last, plain[::-1], mixture[::-1])
    return removed, added


def _between(ends: Floats) -> Floats:
    """The standard normal's mass below the first end, between neighbouring ends, and above the last one."""
    import numpy as np

    tails = np.array([math.erfc(abs(each) / math.sqrt(2.0)) / 2.0 for each in ends.tolist()])
    signs = ends < 0.0
    below = np.where(signs, tails, 1.0 - tails)  # Φ of each end, and 1 − Φ: the smaller one is exact
    above = np.where(signs, 1.0 - tails, tails)
    middle = np.where(signs[:-1], np.diff(below), -np.diff(above))
    return np.concatenate([below[:1], np.maximum(middle, 0.0), above[-1:]])


def _connected(grid: float, first: int, p: Floats, q: Floats) -> Losses:
    """Masses at the grid's points, from those between them. What is below the first point counts as the first; what is
    above the last one as infinite."""
    import numpy as np

    points = grid * np.arange(first, first + len(p) - 1)
    inner_p, inner_q = p[1:-1], q[1:-1]
    upper = np.clip((inner_p - np.exp(points[:-1]) * inner_q) / -math.expm1(-grid), 0.0, inner_p)
    masses = np.zeros(len(points))
    masses[1:] += upper
    masses[:-1] += inner_p - upper
    masses[0] += p[0]
    return _cut(Losses(grid, first, masses, float(p[-1])))


def _cut(found: Losses) -> Losses:
    """Without tails of mass TAIL: the upper one becomes infinite, the lower one moves up."""
    import numpy as np

    low = int(np.searchsorted(np.cumsum(found.masses), TAIL))
    high = len(found.masses) - int(np.searchsorted(np.cumsum(found.masses[::-1]), TAIL))
    low = min(low, high - 1)
    masses = found.masses[low:high].copy()
    masses[0] += found.masses[:low].sum()
    return Losses(found.grid, found.first + low, masses, found.infinite + float(found.masses[high:].sum()))


def _mixed(one: Losses, other: Losses, share: float) -> Losses:
    """Losses of which a known share comes from the one: the attacker is told which."""
    import numpy as np

    first = min(one.first, other.first)
    masses = np.zeros(max(each.first + len(each.masses) for each in (one, other)) - first)
    for each, weight in ((one, share), (other, 1.0 - share)):
        masses[each.first - first : each.first - first + len(each.masses)] += weight * each.masses
    return _cut(Losses(one.grid, first, masses, share * one.infinite + (1.0 - share) * other.infinite))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """δ(ε) of the Gaussian mechanism with this μ."""
    if mu == 0.0:
        return 0.0
    far = _cdf(-mu / 2.0 - epsilon / mu)
    return _cdf(mu / 2.0 - epsilon / mu) - (math.exp(epsilon + math.log(far)) if far > 0.0 else 0.0)


def _smallest(delta_of: Any, delta: float) -> float:
    """The smallest ε ≥ 0 with δ(ε) ≤ δ, rounded up."""
    if delta_of(0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while delta_of(high) > delta:
        low, high = high, 2.0 * high
        if high > 1e6:
            return math.inf
    while high - low > 1e-9 * max(1.0, high):
        middle = (low + high) / 2.0
        low, high = (middle, high) if delta_of(middle) > delta else (low, middle)
    return high


def _of_curve(epsilons: Sequence[float], deltas: Sequence[float], alpha: float) -> float:
    """min over ε of e^ε α + δ and 1 − e^−ε (1 − δ − α): any point of the curve gives two bounds."""
    bounds = [1.0]
    for each, delta in zip(epsilons, deltas, strict=True):
        bounds += [math.exp(each) * alpha + delta, 1.0 - math.exp(-each) * (1.0 - delta - alpha)]
    return min(bounds)


def _cdf(x: float) -> float:
    """Φ(x), exact in both tails."""
    return math.erfc(-x / math.sqrt(2.0)) / 2.0
