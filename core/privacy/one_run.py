"""What right guesses say of a mechanism, in one run and however the canaries depend on each other.

m canaries are in or out by fair coins. From what the mechanism released, k of them are guessed; k is fixed by m. Let W
be the number of right guesses.

* **(ε, δ)-DP.** P(W ≥ v) is at most `p_value` (Steinke, Nasr & Jagielski 2023, Theorem 5.2 and Appendix D).
* **f-DP.** Let p_j = P(W = j) and g = 1 − f. Fix a canary and what is true of all others. Flipping its coin turns a
  right guess at W = j into a wrong one at W = j − 1. So for all levels j ≥ i at once

      P(guessed right, W ≥ i) ≤ g(P(guessed wrong, W ≥ i − 1)).

  The mean over canaries, as g is concave, is

      Σ_{j ≥ i} j p_j / m ≤ g(Σ_{j ≥ i−1} (k − j) p_j / m)   for each i ≥ 1.

  If P(W ≥ v) were γ, all mass above v could lie at v, and each p_{i−1} be the smallest that the line for i allows: any
  other choice has more mass at or above each level. `refuted` adds this mass up. Where it exceeds 1, P(W ≥ v) < γ
  (Mahloujifar, Melis & Chaudhuri 2025, "Auditing f-differential privacy in one run").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Inverse = Callable[[float], float]  # g⁻¹: the least false-positive rate at which a mechanism allows a true-positive one

LARGEST_MU = 64.0


def p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Bounds the probability of so many right guesses under (ε, δ)-DP.

    β + 2 m δ α, with β = P(X ≥ v) and α = max_i P(v > X ≥ v − i)/i for X ~ Binomial(guesses, 1/(1 + e^−ε)).
    """
    import numpy as np  # noqa: PLC0415
    from scipy import stats  # noqa: PLC0415 - slow to import

    rate = 1.0 / (1.0 + math.exp(-epsilon))
    beyond = float(stats.binom.sf(right - 1, guesses, rate))
    below = np.cumsum(stats.binom.pmf(np.arange(right - 1, -1, -1), guesses, rate))
    alpha = float((below / np.arange(1, right + 1)).max(initial=0.0))
    return min(1.0, beyond + 2.0 * canaries * delta * alpha)


def epsilon_at_least(canaries: int, guesses: int, right: int, delta: float, level: float) -> float:
    """The largest ε that so many right guesses refute, except with probability `level`; 0 if none.

    >>> round(epsilon_at_least(1000, 100, 75, 1e-4, 0.05), 3)  # the paper's example
    0.673
    """
    return _largest(lambda epsilon: p_value(canaries, guesses, right, epsilon, delta) < level, 40)


def mu_at_least(canaries: int, guesses: int, right: int, level: float) -> float:
    """The largest μ for which so many right guesses refute μ-GDP, except with probability `level`; 0 if none.

    >>> round(mu_at_least(1000, 200, 200, 0.025), 3)
    1.417
    """
    return _largest(lambda mu: refuted(gaussian(mu), canaries, guesses, right, level), 20, LARGEST_MU)


def refuted(inverse: Inverse, canaries: int, guesses: int, right: int, level: float) -> bool:
    """True if an f-DP mechanism has fewer right guesses, except with probability `level`."""
    true, false = level * right / canaries, level * (guesses - right) / canaries
    for count in range(right, 0, -1):
        needed = max(false, inverse(true))
        true += (count - 1) / (guesses - count + 1) * (needed - false)
        false = needed
        if true + false > guesses / canaries:
            return True
    return False


def gaussian(mu: float) -> Inverse:
    """g⁻¹ of a μ-GDP mechanism: Φ(Φ⁻¹(r) − μ)."""
    from scipy import special  # noqa: PLC0415

    return lambda rate: float(special.ndtr(special.ndtri(min(rate, 1.0)) - mu))


def of_curve(epsilons: Sequence[float], deltas: Sequence[float]) -> Inverse:
    """g⁻¹ of a mechanism with these points on its (ε, δ) curve, ε ≥ 0: fewer points allow the mechanism more.

    From r ≤ e^ε x + δ, and 1 − x ≤ e^ε (1 − r) + δ.
    """
    import numpy as np  # noqa: PLC0415

    grown, claimed = np.exp(np.asarray(epsilons)), np.asarray(deltas)

    def inverse(rate: float) -> float:
        low, high = (rate - claimed) / grown, 1.0 - claimed - grown * (1.0 - rate)
        return max(0.0, float(low.max()), float(high.max()))

    return inverse


def _largest(refutes: Callable[[float], bool], halvings: int, largest: float = math.inf) -> float:
    """The largest number that is refuted, from below; 0 if none is."""
    low, high = 0.0, 1.0
    while high < largest and refutes(high):
        low, high = high, 2.0 * high
    for _ in range(halvings):
        middle = (low + high) / 2.0
        low, high = (middle, high) if refutes(middle) else (low, middle)
    return low
