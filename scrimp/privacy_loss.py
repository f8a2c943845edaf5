"""What a certificate's events lose, and what an attacker can find: the reader's own accountant, of numpy alone.

A privacy loss distribution has a point mass p_i at each loss i·g of a grid g, and a mass at infinity:

    δ(ε) = p_∞ + Σ_{i·g > ε} (1 − e^{ε − i·g}) p_i

An interval between two points of the grid, of masses P and Q under the two neighbours, becomes two masses at its ends
with the same P and Q ("connect the dots"). The result dominates the mechanism's, so that ε is never too small. All
steps are composed by one Fourier transform. Tails that are cut, a share of δ in all, and what the transform may be off
by count as infinite losses. Plain Gaussians beside sampled ones are one event first, exactly.

Gaussians alone need no grid and no numpy: they are one Gaussian of μ² = Σ 1/σ², and

    δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ),        TPR(α) = Φ(Φ⁻¹(α) + μ).

Sources: Doroshenko et al. 2022, "Connect the Dots"; Dong, Roth & Su 2022, "Gaussian Differential Privacy".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from scrimp.recompute import Leaf, leaves, precision_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Tree = Mapping[str, Any]
NO_LOSSES = (
    "no distribution of the losses of a selection of random size is known: recompute its ε by `scrimp.recompute`"
)
GRID = 1e-4
FINEST = 1e-10  # the smallest δ that matters where none is named
TAIL_SHARE = 1e-7  # of δ: what is cut before composing, and at each end after it
# Of δ, for each step of a Fourier power: in long doubles it was found too small by at most 3.1e-16. The service counts
# 1e-15, which leaves room for the rounding of its own transform: an honest figure is not below the one here.
STEP_ROUNDING = 5e-16
MOST_CELLS = 1 << 22  # of a distribution: 419 nats at GRID; its transform takes about 150 MiB
LARGEST = 700.0  # e^ε is a float up to here
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

    def delta(self, epsilon: float) -> float:
        """δ(ε), never too small."""
        import numpy as np

        losses = self.grid * np.arange(self.first, self.first + len(self.masses))
        above = losses > epsilon
        parts = -np.expm1(epsilon - losses[above]) * self.masses[above]
        return min(1.0, self.infinite + math.fsum(parts.tolist()))

    def curve(self, epsilons: Sequence[float]) -> list[float]:
        """δ at each ε ≥ 0 by sums from above, whose rounding ROUNDING covers: quicker than `delta` for many."""
        import numpy as np

        losses, above, other = self._sums()
        at = np.searchsorted(losses, np.asarray(epsilons), side="right")
        scale = np.exp(epsilons)
        bounds = self.infinite + above[at] - scale * other[at] + ROUNDING * (above[at] + scale * other[at])
        return [min(1.0, max(0.0, each)) for each in bounds.tolist()]

    def epsilons(self, deltas: Sequence[float]) -> list[float]:
        """The smallest ε ≥ 0 of each δ, rounded up: between two points of the grid δ(ε) = p_∞ + A − e^ε B, where A and
        B are sums from above. ∞ if no more than δ is finite."""
        import numpy as np

        losses, above, other = self._sums()
        points = np.concatenate([[0.0], losses])
        curve = self.infinite + above - np.exp(points) * other  # at a point, its own loss adds nothing
        return [self._epsilon(delta, points, curve, above, other) for delta in deltas]

    def _epsilon(self, delta: float, points: Floats, curve: Floats, above: Floats, other: Floats) -> float:
        if self.infinite >= delta:
            return math.inf
        at = int((curve <= delta).argmax())
        point = float(points[at])
        if at > 0 and other[at - 1] > 0.0 and self.infinite + above[at - 1] > delta:
            inner = math.log((self.infinite + above[at - 1] - delta) / other[at - 1])
            point = min(point, max(inner, float(points[at - 1])))
        step = 1e-10 * max(1.0, point)
        while self.delta(point) > delta:  # the sums' rounding
            point, step = point + step, 2.0 * step
        return point

    def _sums(self) -> tuple[Floats, Floats, Floats]:
        """The positive losses, and for each the masses from it on, as they are and times e^−loss; at the end 0."""
        import numpy as np

        start = max(0, 1 - self.first)
        losses: Floats = np.asarray(
            self.grid * np.arange(self.first + start, self.first + len(self.masses)), np.float64
        )
        masses = self.masses[start:]
        above = np.append(np.cumsum(masses[::-1])[::-1], 0.0)
        return losses, above, np.append(np.cumsum((masses * np.exp(-losses))[::-1])[::-1], 0.0)


@dataclass(frozen=True)
class Curve:
    """δ(ε) of an account: that of a Gaussian, or the larger one of two distributions.

    Attributes:
        mu: of a tree of Gaussians; None if anything is sampled.
        sides: the losses if a unit is removed, and if one is added; none beside μ.
    """

    mu: float | None
    sides: tuple[Losses, ...] = ()

    @classmethod
    def of(cls, tree: Tree, delta: float = FINEST, grid: float = GRID) -> Curve:
        """The curve of an account's events, as a certificate prints them.

        Args:
            delta: the smallest δ that matters.
            grid: spacing of the losses, in nats.

        Raises:
            ValueError: an event that is none, δ or grid outside (0, 1), or a distribution too large to compute.
            ModuleNotFoundError: batches are sampled, and numpy is not installed.
        """
        if not 0.0 < delta < 1.0:
            raise ValueError(f"δ = {delta}: it must lie between 0 and 1")
        mu = mu_of(tree)
        return cls(mu) if mu is not None else cls(None, losses(tree, delta, grid))

    def epsilons(self, deltas: Sequence[float]) -> list[float]:
        """ε at each δ, exact or rounded up; ∞ if the grid cannot resolve it."""
        mu = self.mu
        if mu is not None:
            return [_smallest(lambda e: gaussian_delta(mu, e), delta) for delta in deltas]
        return [max(pair) for pair in zip(*(side.epsilons(deltas) for side in self.sides), strict=True)]

    def deltas(self, epsilons: Sequence[float]) -> list[float]:
        """δ at each ε ≥ 0, which ascend; never too small."""
        mu = self.mu
        if mu is not None:
            return [gaussian_delta(mu, each) for each in epsilons]
        return [max(pair) for pair in zip(*(side.curve(epsilons) for side in self.sides), strict=True)]

    def attack(self, rates: Sequence[float]) -> dict[float, float]:
        """The share of members that an attacker finds at most, for each rate of false accusations.

        >>> gaussian = {"kind": "gaussian", "noise_multiplier": 3.73}
        >>> {a: round(tpr, 4) for a, tpr in Curve.of(gaussian).attack([0.001, 0.1]).items()}
        {0.001: 0.0024, 0.1: 0.1553}
        """
        if self.mu is not None:
            return {alpha: _cdf(NormalDist().inv_cdf(alpha) + self.mu) for alpha in rates}
        epsilons = [STEP * at for at in range(round(MOST / STEP) + 1)]
        curve = self.deltas(epsilons)
        return {alpha: _of_curve(epsilons, curve, alpha) for alpha in rates}


def epsilon(tree: Tree, delta: float, grid: float = GRID) -> float:
    """ε at δ: exact for Gaussians, otherwise from the grid, never too small; ∞ if the grid cannot resolve δ.

    Raises as `Curve.of`.
    """
    return Curve.of(tree, delta, grid).epsilons([delta])[0]


def mu_of(tree: Tree) -> float | None:
    """μ of a tree of Gaussians, √(Σ 1/σ²); None if anything is sampled.

    Raises:
        ValueError: an event that is none.
    """
    precision = precision_of(tree)
    return None if precision is None else math.sqrt(precision)


def losses(tree: Tree, delta: float = FINEST, grid: float = GRID) -> tuple[Losses, Losses]:
    """The losses of a tree of events if a unit is removed, and if one is added. Raises as `Curve.of`."""
    if not 0.0 < grid < 1.0:
        raise ValueError(f"a grid of {grid}: it must lie between 0 and 1")
    counts = leaves(tree)
    if any(leaf.runs for leaf in counts):
        raise ValueError(NO_LOSSES)
    plain = math.fsum(counts.pop(leaf) * leaf.noise_multiplier**-2 for leaf in list(counts) if leaf.is_plain)
    if plain > 0.0:
        counts[Leaf(1.0, plain**-0.5)] = 1
    tail = TAIL_SHARE * delta
    sides = [(_single(leaf, grid, tail / count), count) for leaf, count in counts.items()]
    return (
        _composed([(side[0], count) for side, count in sides], grid, tail),
        _composed([(side[1], count) for side, count in sides], grid, tail),
    )


def _single(leaf: Leaf, grid: float, tail: float) -> tuple[Losses, Losses]:
    """Of one noisy sum. With the chance of a full batch a unit takes another's place, at twice the distance."""
    single = _sampled(leaf.noise_multiplier, leaf.sample_rate, grid, tail)
    if leaf.full == 0.0:
        return single
    twice = _sampled(leaf.noise_multiplier / 2.0, leaf.sample_rate, grid, tail)
    return _mixed(twice[0], single[0], leaf.full), _mixed(twice[1], single[1], leaf.full)


def _composed(parts: Sequence[tuple[Losses, int]], grid: float, tail: float) -> Losses:
    """The losses of each part so many times, all together: the product of powers of Fourier transforms, on a window
    that Chernoff's bound leaves with probability at most `tail` at each end. What wraps around is counted as infinite
    once more."""
    import numpy as np

    steps = sum(count for _, count in parts)
    if STEP_ROUNDING * steps >= 1.0:
        return Losses(grid, 0, np.zeros(1), 1.0)
    if steps == 1:
        return parts[0][0]
    low, high = -_end(parts, -1, grid, tail), _end(parts, 1, grid, tail)
    length = max(high - low + 1, *(len(part.masses) for part, _ in parts))
    _check_size(length, high, grid)
    length = 1 << (length - 1).bit_length()
    product = np.ones(length // 2 + 1, dtype=np.complex128)
    for part, count in parts:
        buffer = np.zeros(length)
        buffer[np.arange(part.first, part.first + len(part.masses)) % length] = part.masses
        product *= np.fft.rfft(buffer) ** count
    masses = np.roll(np.fft.irfft(product, length), -(low % length))[: high - low + 1]
    finite = math.fsum(count * math.log1p(-part.infinite) for part, count in parts)
    return Losses(grid, low, masses, min(1.0, -math.expm1(finite) + 2.0 * tail + STEP_ROUNDING * steps))


def _end(parts: Sequence[tuple[Losses, int]], sign: int, grid: float, tail: float) -> int:
    """The number that the parts' sum (or its negative) exceeds with probability at most `tail`, at most its largest:
    for any λ > 0, P(sum ≥ u) ≤ Π E[e^{λ loss}]^count e^{−λ u}."""
    import numpy as np

    largest, rates = 0, 10.0 ** np.arange(-3.0, 3.01, 0.25)
    log_means = np.zeros(len(rates))
    for part, count in parts:
        numbers = sign * np.arange(part.first, part.first + len(part.masses))
        largest += count * int(numbers.max())
        with np.errstate(divide="ignore"):
            logs = np.log(part.masses)
        for at, rate in enumerate(rates):
            exponents = rate * grid * numbers + logs
            top = exponents.max()
            log_means[at] += count * (top + math.log(np.exp(exponents - top).sum()))
    smallest = float(((log_means - math.log(tail)) / rates).min())
    return min(largest, math.ceil(smallest / grid))


def _check_size(cells: float, last: float, grid: float) -> None:
    """Before memory is taken: whoever wrote the certificate chose the size."""
    if not (cells <= MOST_CELLS and last * grid <= LARGEST):
        raise ValueError(
            f"the events' privacy losses span {cells:.3g} cells of {grid:g} up to {last * grid:.3g}, and this "
            f"accountant computes {MOST_CELLS} up to {LARGEST:g}: their ε is too large to mean anything"
        )


def _sampled(sigma: float, rate: float, grid: float, tail: float) -> tuple[Losses, Losses]:
    """Of N(0, σ²) beside (1 − q) N(0, σ²) + q N(1, σ²): with the mixture, and with the plain one, as the true one."""
    import numpy as np

    def loss(x: float) -> float:
        exponent = (2.0 * x - 1.0) / (2.0 * sigma**2)
        if rate == 1.0:
            return exponent
        if exponent < 30.0:
            return math.log1p(rate * math.expm1(exponent))
        return exponent + math.log(rate) + math.log1p((1.0 - rate) / rate * math.exp(-exponent))

    spread = math.sqrt(-2.0 * math.log(tail))  # standard deviations: more lie outside with probability below tail / 2
    low, high = loss(-spread * sigma), loss(1.0 + spread * sigma)
    _check_size((high - low) / grid, high / grid, grid)
    first, last = math.floor(low / grid), math.ceil(high / grid)
    points = grid * np.arange(first, last + 1)
    # Where the loss is a point of the grid; below the smallest loss, log(1 − q), it is nowhere.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        odds = (np.expm1(points) + rate) / rate
        ends = np.where(odds > 0.0, sigma**2 * np.log(np.maximum(odds, 0.0)) + 0.5, -np.inf) / sigma
    plain, shifted = _between(ends), _between(ends - 1.0 / sigma)
    mixture = (1.0 - rate) * plain + rate * shifted
    removed = _connected(grid, first, mixture, plain, tail)
    # The other way round the loss is its negative: points in reverse.
    added = _connected(grid, -last, plain[::-1], mixture[::-1], tail)
    return removed, added


def _between(ends: Floats) -> Floats:
    """The standard normal's mass below the first end, between neighbouring ends, and above the last one."""
    import numpy as np

    tails = np.fromiter(map(math.erfc, (np.abs(ends) / math.sqrt(2.0)).tolist()), float, len(ends)) / 2.0
    signs = ends < 0.0
    below = np.where(signs, tails, 1.0 - tails)  # Φ of each end, and 1 − Φ: the smaller one is exact
    above = np.where(signs, 1.0 - tails, tails)
    middle = np.where(signs[:-1], np.diff(below), -np.diff(above))
    return np.concatenate([below[:1], np.maximum(middle, 0.0), above[-1:]])


def _connected(grid: float, first: int, p: Floats, q: Floats, tail: float) -> Losses:
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
    return _cut(Losses(grid, first, masses, float(p[-1])), tail)


def _cut(uncut: Losses, tail: float) -> Losses:
    """Without tails of this mass: the upper one becomes infinite, the lower one moves up."""
    import numpy as np

    low = int(np.searchsorted(np.cumsum(uncut.masses), tail))
    high = len(uncut.masses) - int(np.searchsorted(np.cumsum(uncut.masses[::-1]), tail))
    low = min(low, high - 1)
    masses = uncut.masses[low:high].copy()
    masses[0] += uncut.masses[:low].sum()
    return Losses(uncut.grid, uncut.first + low, masses, uncut.infinite + float(uncut.masses[high:].sum()))


def _mixed(one: Losses, other: Losses, share: float) -> Losses:
    """Losses of which a known share comes from the one: the attacker is told which."""
    import numpy as np

    first = min(one.first, other.first)
    masses = np.zeros(max(each.first + len(each.masses) for each in (one, other)) - first)
    for component, weight in ((one, share), (other, 1.0 - share)):
        masses[component.first - first : component.first - first + len(component.masses)] += weight * component.masses
    return Losses(one.grid, first, masses, share * one.infinite + (1.0 - share) * other.infinite)


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
    for epsilon_at, delta in zip(epsilons, deltas, strict=True):
        bounds += [math.exp(epsilon_at) * alpha + delta, 1.0 - math.exp(-epsilon_at) * (1.0 - delta - alpha)]
    return min(bounds)


def _cdf(x: float) -> float:
    """Φ(x), exact in both tails."""
    return math.erfc(-x / math.sqrt(2.0)) / 2.0
