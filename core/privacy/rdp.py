"""Rényi differential privacy through dp_accounting: the `rdp` filter's currency and a figure for comparison.

Source: Mironov 2017; Mironov, Talwar & Zhang 2019 (the sampled Gaussian mechanism); conversion to (ε, δ): Canonne,
Kamath & Steinke 2020, Proposition 12.
"""

from __future__ import annotations

import math

from core.privacy import best_of, events
from core.privacy.events import Event, Leaf

# dp_accounting's default orders, copied so that reading them does not import it.
ORDERS: tuple[float, ...] = (
    *(1 + x / 10 for x in range(1, 100)),
    *map(float, range(11, 64)),
    128.0,
    256.0,
    512.0,
    1024.0,
)


def _divergences(event: Event, orders: tuple[float, ...]) -> list[float]:
    leaves_of = events.leaves(event)
    if any(leaf.overflow > 0.0 or leaf.weights for leaf in leaves_of):
        return [math.fsum(count * divergence(leaf, order) for leaf, count in leaves_of.items()) for order in orders]
    from dp_accounting.rdp import RdpAccountant  # noqa: PLC0415 - slow to import

    accountant = RdpAccountant(orders)
    accountant.compose(events.to_dp_event(event))
    return [float(r) for r in accountant.rdp]


def divergence(leaf: Leaf, order: float) -> float:
    """One noisy sum's divergence. A truncated one's e^{(α−1)D} is at most the mixture of its parts'."""
    if leaf.weights:
        return best_of.divergence(leaf.weights, 1.0 / leaf.noise_multiplier, order)
    if leaf.overflow == 0.0:
        return rdp_at(events.noisy_sums(leaf.sample_rate, leaf.noise_multiplier, 1), order)
    free, taken = ((order - 1.0) * divergence(part, order) for part in leaf.parts)
    if not math.isfinite(taken):
        return math.inf
    if leaf.overflow >= 1.0:
        return taken / (order - 1.0)
    terms = free + math.log1p(-leaf.overflow), taken + math.log(leaf.overflow)
    return (max(terms) + math.log1p(math.exp(min(terms) - max(terms)))) / (order - 1.0)


def rdp_at(event: Event, order: float) -> float:
    """Computes the Rényi divergence bound of `event` at one order, in nats.

    For fractional orders dp_accounting's series sometimes does not converge. (α−1)·D_α is convex in α and 0 at α = 1,
    so the line through its values at the neighbouring whole orders is an upper bound and replaces the series there.

    Args:
        event: an account's event.
        order: α > 1.

    Returns:
        An upper bound up to float rounding (core.privacy.filters adds a bound on that). Public.
    """
    value = _divergences(event, (order,))[0]
    if math.isfinite(value) or order == math.floor(order):
        return value
    low, high = float(math.floor(order)), float(math.ceil(order))
    at_low, at_high = (0.0 if a == 1.0 else (a - 1.0) * _divergences(event, (a,))[0] for a in (low, high))
    return ((high - order) * at_low + (order - low) * at_high) / (order - 1.0)


def epsilon(event: Event, delta: float) -> tuple[float, float]:
    """Returns the smallest ε at δ over ORDERS, and its order.

    Valid for one mechanism that is fixed in advance. The filter never takes this minimum: its order is fixed.

    Args:
        event: an account's event.
        delta: δ in (0, 1).
    """
    from dp_accounting.rdp import compute_epsilon  # noqa: PLC0415 - slow to import

    best, order = compute_epsilon(ORDERS, _divergences(event, ORDERS), delta)
    return float(best), float(order)
