"""Gaussian differential privacy: the exact accountant for full-batch jobs and for noisy sums.

A mechanism is μ-GDP if distinguishing two neighbours is at least as hard as distinguishing N(0, 1) from N(μ, 1). A
Gaussian sum with noise multiplier σ is (1/σ)-GDP, and μ's compose as √(Σ μ²), so T full-batch steps are exactly
(√T/σ)-GDP. Poisson sampling has no exact μ (the central limit form can be low by a factor of three): `mu_of_event`
returns None.

    δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2)

Source: Dong, Roth & Su 2022, "Gaussian Differential Privacy", Corollary 1 and Theorem 3; Balle & Wang 2018, Theorem 8.
"""

from __future__ import annotations

import math
from functools import lru_cache

from core.contracts.base import AccountantName
from core.privacy import events
from core.privacy.events import Event

NAME: AccountantName = "gdp"

_SQRT2 = math.sqrt(2.0)
_RTOL = 1e-15  # relative tolerance of the roots: about four units in the last place
# ε is rounded up by these. Measured against 60 digits, over μ from 1e-6 to 30 and δ from 1e-15 to 1e-2, its error is at
# most 1.1e-15 up to μ = 1, where δ(ε) is the difference of two nearly equal terms, and 1e-14 of ε above.
_RELATIVE_ERROR, _ABSOLUTE_ERROR = 1e-13, 3e-15
# Roots that are kept: the plans of a service are few, and each POST asked for the same ones.
_KEPT = 4096


def _log_delta(mu: float, epsilon: float) -> float:
    """Computes ln δ(ε) without cancellation between the two terms.

    With a = μ/2 − ε/μ and b = a − μ, e^ε φ(b) = φ(a), so both terms carry the factor e^{−a²/2}:
    δ = ½ e^{−a²/2} (erfcx(−a/√2) − erfcx(−b/√2)). Where a > 0 the first erfcx would overflow, but Φ(a) ≥ ½ is safe.
    """
    from scipy import special  # noqa: PLC0415 - slow to import, and most of the app never asks

    a = 0.5 * mu - epsilon / mu
    b = a - mu
    lower = float(special.erfcx(-b / _SQRT2))
    if a > 0.0:
        log_upper = float(special.log_ndtr(a))
        log_lower = math.log(0.5 * lower) - 0.5 * a * a
        return log_upper + math.log(-math.expm1(log_lower - log_upper)) if log_lower < log_upper else -math.inf
    difference = float(special.erfcx(-a / _SQRT2)) - lower
    return math.log(0.5 * difference) - 0.5 * a * a if difference > 0.0 else -math.inf


def delta_from_mu(mu: float, epsilon: float) -> float:
    """Computes δ(ε) of a μ-GDP mechanism.

    Args:
        mu: μ ≥ 0.
        epsilon: ε ≥ 0.

    Returns:
        The smallest δ for which the mechanism is (ε, δ)-DP. Public: a function of the plan alone.
    """
    return math.exp(_log_delta(mu, epsilon)) if mu > 0.0 else 0.0


@lru_cache(_KEPT)
def epsilon_from_mu(mu: float, delta: float) -> float:
    """Computes the smallest ε for which a μ-GDP mechanism is (ε, δ)-DP, rounded up by the possible float error.

    >>> round(epsilon_from_mu(1.0, 1e-5), 2)
    4.38

    Args:
        mu: μ ≥ 0.
        delta: δ in (0, 1).
    """
    from scipy import optimize  # noqa: PLC0415 - slow to import

    log_delta = math.log(delta)
    if mu <= 0.0 or _log_delta(mu, 0.0) <= log_delta:
        return 0.0
    # μ-GDP is (μ²/2)-zCDP, whose conversion is an upper bound (Bun & Steinke 2016, Proposition 1.3).
    upper = 0.5 * mu * mu + mu * math.sqrt(-2.0 * log_delta)
    root = float(optimize.brentq(lambda e: _log_delta(mu, e) - log_delta, 0.0, upper, xtol=1e-300, rtol=_RTOL))
    return root * (1.0 + _RELATIVE_ERROR) + _ABSOLUTE_ERROR


@lru_cache(_KEPT)
def mu_from_epsilon(epsilon: float, delta: float) -> float:
    """Computes the largest μ for which every μ-GDP mechanism is (ε, δ)-DP, rounded down: epsilon_from_mu(μ, δ) ≤ ε.

    Args:
        epsilon: ε > 0.
        delta: δ in (0, 1).
    """
    from scipy import optimize  # noqa: PLC0415 - slow to import

    log_delta = math.log(delta)
    # zCDP gives the lower bound; doubling gives the upper one, since δ(ε) grows to 1 with μ.
    low = math.sqrt(-2.0 * log_delta + 2.0 * epsilon) - math.sqrt(-2.0 * log_delta)
    high = 2.0 * low
    while _log_delta(high, epsilon) <= log_delta:
        high *= 2.0
    root = float(
        optimize.brentq(lambda m: _log_delta(m, epsilon) - log_delta, 0.5 * low, high, xtol=1e-300, rtol=_RTOL)
    )
    nudge = _RELATIVE_ERROR
    while epsilon_from_mu(root, delta) > epsilon:
        root *= 1.0 - nudge
        nudge *= 2.0
    return root


def mu_of_event(event: Event) -> float | None:
    """Returns √(Σ 1/σ²) for plain Gaussian events; None where anything is sampled, or the best of several runs."""
    counts = events.leaves(event)
    if not all(leaf.is_plain for leaf in counts):
        return None
    return math.sqrt(math.fsum(count / leaf.noise_multiplier**2 for leaf, count in counts.items()))


def takes(event: Event) -> bool:
    """True if all of the event are plain Gaussians."""
    return mu_of_event(event) is not None


def resolves(delta: float, steps: int) -> bool:
    """True: a closed form knows no smallest δ."""
    return True


def epsilon(event: Event, delta: float) -> float:
    """Computes ε of an event of plain Gaussians.

    Raises:
        ValueError: something is sampled.
    """
    mu = mu_of_event(event)
    if mu is None:
        raise ValueError("a sampled event has no μ")
    return epsilon_from_mu(mu, delta)


def estimate(event: Event, delta: float, target: float, steps: int) -> float:
    """Computes `epsilon`, which is quick."""
    return epsilon(event, delta)


def noise_multiplier(mu_squared: float, queries: int) -> float | None:
    """Returns σ = √(T/μ²)."""
    return math.sqrt(queries / mu_squared)
