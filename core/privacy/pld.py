"""Privacy loss distributions through dp_accounting: the accountant of record for Poisson-sampled jobs.

Pessimistic throughout: the discretization is "connect the dots" (Doroshenko et al. 2022, Algorithm 1), an upper bound
on any grid, and δ is reduced by the possible error of floating-point convolution. dp_accounting composes. This module
only evaluates a single step's δ(ε), for all grid points at once (six times faster than its loop, same formula).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from core.contracts.base import AccountantName
from core.privacy import events
from core.privacy.events import Event, Leaf

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

NAME: AccountantName = "pld"

GRID = 1e-4  # stated in every certificate; at 1e-3 some plans would be charged a fifth too much

# The T-th power of a discrete Fourier transform has a relative error that grows with T. Compared with convolutions in
# long double, over 750 plans, δ was off by at most 3.4e-16 · T, in either direction: three times this is subtracted.
CONVOLUTION_ERROR_PER_STEP = 1e-15

# Tails of at most this share of δ are cut and counted as infinite loss: smaller arrays, and ε up by less than 1e-6.
TAIL_SHARE = 1e-7

_COARSE = 0.04  # coarse spacing h = 0.04 ε/√T: a grid errs by about 1.5 T h²/ε, here a quarter of a percent
_COARSEST = 5e-3

_LARGEST_PRECISION = 700.0  # Σ 1/σ² of plain Gaussians: above it e^ε overflows (ε > 350 at any δ < ½)


def takes(event: Event) -> bool:
    """True: it takes every event."""
    return True


def noise_multiplier(mu_squared: float, queries: int) -> float | None:
    """Returns None: σ has no closed form."""
    return None


def resolves(delta: float, steps: int) -> bool:
    """Returns True if the rounding of a `steps`-fold convolution takes less than half of δ."""
    return CONVOLUTION_ERROR_PER_STEP * steps < 0.5 * delta


def epsilon(event: Event, delta: float, grid: float = GRID) -> float:
    """Computes an upper bound on ε at δ, tight up to the grid.

    Folds all plain Gaussians of the event into one exactly (T-fold Gaussian(σ) = Gaussian(σ/√T)). Composes equal
    sampled events T-fold by one Fourier transform.

    Args:
        event: an account's event.
        delta: δ in (0, 1).
        grid: spacing of the discretized privacy losses, in nats.

    Returns:
        ε ≥ 0; ∞ if double precision cannot resolve δ after this many steps. Public.
    """
    composed = losses(event, delta, grid)
    return math.inf if composed is None else composed.epsilon(delta)


def estimate(event: Event, delta: float, target: float, steps: int) -> float:
    """Extrapolates ε on the fine grid from two coarse grids: connecting the dots errs by c·h² (h: the spacing)."""
    h = min(_COARSE * target / math.sqrt(steps), _COARSEST)
    if h < 2.0 * GRID:
        return epsilon(event, delta)
    at_2h, at_h = epsilon(event, delta, 2.0 * h), epsilon(event, delta, h)
    if math.isinf(at_2h):
        return at_h
    return max(at_h - (at_2h - at_h) / 3.0 * (1.0 - (GRID / h) ** 2), 0.0)


@dataclass(frozen=True)
class Losses:
    """The distribution of an event's privacy loss, on a grid.

    Attributes:
        distribution: dp_accounting's; None if nothing is lost.
        error: how much its δ may be too small.
    """

    distribution: Any
    error: float

    def epsilon(self, delta: float) -> float:
        """Returns an upper bound on ε at δ, which must be at least what the distribution resolves."""
        return 0.0 if self.distribution is None else float(self.distribution.get_epsilon_for_delta(delta - self.error))

    def deltas(self, epsilons: Sequence[float]) -> list[float]:
        """Returns upper bounds on δ at several ε, which ascend."""
        if self.distribution is None:
            return [0.0 for _ in epsilons]
        return [min(1.0, float(each) + self.error) for each in self.distribution.get_delta_for_epsilon(list(epsilons))]


def losses(event: Event, delta: float, grid: float = GRID) -> Losses | None:
    """Computes the distribution of an event's privacy loss.

    Args:
        event: an account's event.
        delta: the smallest δ that matters.
        grid: spacing of the discretized privacy losses, in nats.

    Returns:
        None if double precision cannot resolve δ after this many steps: half of it or more may be rounding. Also
        for the best of several runs, whose losses have no distribution here.
    """
    sampled = events.leaves(event)
    if any(leaf.weights for leaf in sampled):
        return None
    gaussian_precision = math.fsum(
        sampled.pop(leaf) / leaf.noise_multiplier**2 for leaf in list(sampled) if leaf.sample_rate >= 1.0
    )
    if not resolves(delta, sampled.total()) or gaussian_precision > _LARGEST_PRECISION:
        return None
    tail = TAIL_SHARE * delta
    parts = [_composed(leaf, count, grid, tail) for leaf, count in sampled.items()]
    if gaussian_precision > 0.0:
        parts.append(_composed(Leaf(1.0, gaussian_precision**-0.5), 1, grid, tail))
    joined = reduce(lambda one, other: one.compose(other), parts) if parts else None
    return Losses(joined, CONVOLUTION_ERROR_PER_STEP * sampled.total())


def _composed(leaf: Leaf, count: int, grid: float, tail: float) -> Any:
    """Returns the privacy loss distribution of `count` equal noisy sums, for adding and for removing a record. It cuts
    a mass of `tail` once before and once after composing."""
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution  # noqa: PLC0415 - slow to import

    def pmf(low: int, deltas: npt.NDArray[np.float64]) -> Any:
        high = low + len(deltas) - 1
        sparse = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(grid, low, high, deltas)
        # Composing a sparse one T times computes size**T, which has millions of digits.
        return sparse.to_dense_pmf() if count == 1 else _power(sparse.to_dense_pmf(), count, tail)

    parts = _deltas(leaf, grid, tail / count) if leaf.overflow == 0.0 else _mixed(leaf, grid, tail / count)
    return privacy_loss_distribution.PrivacyLossDistribution(*(pmf(*part) for part in parts))


def _power(dense: Any, count: int, tail: float) -> Any:
    """Computes dp_accounting's `self_compose` of one distribution. Its Chernoff bounds on the result's tails,

        (T ln Σ p_i e^{ti} + ln(2/tail)) / t,    t = ±1/n … ±20/n,

    use multiplication here: as forty sums of logarithms they took most of a price's time.
    """
    import numpy as np  # noqa: PLC0415
    from dp_accounting.pld import pld_pmf  # noqa: PLC0415 - slow to import
    from scipy import fft  # noqa: PLC0415 - slow to import

    probs = dense._probs
    size = len(probs)

    def reach(sign: float) -> float:
        ratio, weighted, bounds = np.exp(sign * np.arange(size) / size), probs.copy(), []
        for k in range(1, 21):
            weighted *= ratio  # p_i e^{ti}: at most e^20
            bounds.append((count * math.log(weighted.sum()) + math.log(2.0 / tail)) * size / k)
        return min(bounds)

    first, last = max(0, math.floor(-reach(-1.0))), min((size - 1) * count, math.ceil(reach(1.0)))
    length = last - first + 1
    transform = fft.fft(probs, fft.next_fast_len(max(length, size)))
    convolved = np.roll(np.real(fft.ifft(transform**count)), -first)[:length]
    infinite = tail - math.expm1(count * math.log1p(-dense._infinity_mass))
    return pld_pmf.DensePLDPmf(dense._discretization, dense._lower_loss * count + first, convolved, infinite, True)


def _mixed(leaf: Leaf, grid: float, tail: float) -> Iterator[tuple[int, npt.NDArray[np.float64]]]:
    """Yields what `_deltas` yields, of a truncated sample: δ is at most (1 − w) times one part's and w times the
    other's, at every point of a grid that holds both."""
    import numpy as np  # noqa: PLC0415

    free, taken = leaf.parts
    ranges = zip(_deltas(free, grid, tail), _deltas(taken, grid, tail), strict=True)
    bounds = [(min(one[0], two[0]), max(one[0] + len(one[1]), two[0] + len(two[1]))) for one, two in ranges]
    parts = (_deltas(part, grid, tail, bounds) for part in (free, taken))
    for (low, one), (_, two) in zip(*parts, strict=True):
        yield low, np.clip((1.0 - leaf.overflow) * one + leaf.overflow * two, 0.0, 1.0)


def _deltas(
    leaf: Leaf, grid: float, tail: float, bounds: Sequence[tuple[int, int]] | None = None
) -> Iterator[tuple[int, npt.NDArray[np.float64]]]:
    """Yields (index of the first grid point, δ at every grid point): for removing a record, then for adding one if
    that differs. `bounds`: the first point and the one after the last, for each of these; None: as the loss needs.

    Removing a record: P = (1−q)·N(0, σ²) + q·N(−1, σ²) against Q = N(0, σ²). Adding a record: P = N(0, σ²) against
    Q = (1−q)·N(0, σ²) + q·N(1, σ²). The loss ln(dP/dQ) falls with x, so δ(ε) = P(−∞, x] − e^ε Q(−∞, x] at the x with
    loss ε.
    """
    import numpy as np  # noqa: PLC0415
    from dp_accounting.pld import privacy_loss_mechanism  # noqa: PLC0415 - slow to import

    adjacency = privacy_loss_mechanism.AdjacencyType
    q, sigma = leaf.sample_rate, leaf.noise_multiplier
    for number, kind in enumerate([adjacency.REMOVE] if q == 1.0 else [adjacency.REMOVE, adjacency.ADD]):
        loss = privacy_loss_mechanism.GaussianPrivacyLoss(
            sigma, log_mass_truncation_bound=math.log(tail), sampling_prob=q, adjacency_type=kind
        )
        reach = loss.connect_dots_bounds()
        low, high = math.floor(reach.epsilon_lower / grid), math.ceil(reach.epsilon_upper / grid)
        if bounds is not None:
            low, high = bounds[number][0], bounds[number][1] - 1
        eps = np.arange(low, high + 1) * grid
        sign = 1.0 if kind is adjacency.REMOVE else -1.0
        ratio = np.expm1(sign * eps) / q
        inside = ratio > -1.0  # outside, no x has loss ε: the bounded side of a sampled mechanism
        x = sign * (-0.5 - sigma * sigma * np.log1p(ratio[inside]))
        delta = np.maximum(0.0, -np.expm1(eps))
        delta[inside] = loss.mu_upper_cdf(x) - np.exp(eps[inside] + loss.mu_lower_log_cdf(x))
        yield low, np.clip(delta, 0.0, 1.0)
