"""What a certificate's events lose at other δ than the planned one, and what an attacker finds: signed with the rest.

The attacker knows all units but one, and accuses a share α of the absent ones wrongly. With μ it finds at most

    TPR(α) = Φ(Φ⁻¹(α) + μ),        and any curve δ(ε) gives TPR(α) ≤ e^ε α + δ and TPR(α) ≤ 1 − e^−ε (1 − δ − α).

Its advantage is TPR − α at most, over all α: δ at ε = 0. A unit lies in the training part or in the hold-out, so that
each figure is the larger one of the two accounts.

Sources: Wasserman & Zhou 2010; Kairouz, Oh & Viswanath 2015; Dong, Roth & Su 2022, "Gaussian Differential Privacy".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Annotated

from pydantic import Field

from core.contracts.base import Document
from core.privacy import gdp, pld, renyi
from core.privacy.events import AccountEvents, Event

DELTAS = (1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10)
FALSE_POSITIVES = (0.001, 0.01, 0.1)
_EPSILONS = tuple(0.05 * at for at in range(401))  # where a sampled event's curve is read: any ε gives a bound
_FINE = 10.0  # up to this ε the grid is the finest
_ROUNDING = 1.0 + 1e-9

Share = Annotated[float, Field(ge=0.0, le=1.0)]


class AtDelta(Document):
    """ε at a δ; None where double precision cannot resolve it after this many steps."""

    delta: float
    epsilon: float | None


class Attack(Document):
    """The share of those who took part that an attacker finds at most, at a share of wrong accusations."""

    false_positive: Share
    true_positive: Share


class Profile(Document):
    """The privacy profile of all events of a certificate.

    Attributes:
        mu: the exact Gaussian's μ; None if anything is sampled.
        advantage: TPR − α at most.
    """

    mu: float | None
    epsilons: tuple[AtDelta, ...]
    attacks: tuple[Attack, ...]
    advantage: Share


def profile_of(events: AccountEvents, epsilon: float) -> Profile:
    """Computes the profile of both accounts' events. Public: a function of the plan.

    >>> from core.privacy.events import composed, noisy_sums
    >>> found = profile_of(AccountEvents(train=composed([noisy_sums(1.0, 10.0, 100)]), holdout=None), 4.4)
    >>> found.mu, round(found.epsilons[0].epsilon, 2), round(found.attacks[1].true_positive, 3)
    (1.0, 4.38, 0.092)

    Args:
        epsilon: the planned one. Sampled events with a larger one are read on a coarser grid, which takes no longer:
            a bound on any grid.
    """
    grid = pld.GRID * max(1, math.ceil(epsilon / _FINE))
    profiles = [
        _of_event(event, grid) for event in (events.train, events.holdout) if event is not None and event.events
    ]
    if not profiles:
        return _gaussian(0.0)
    mus = [each.mu for each in profiles]
    return Profile(
        mu=None if None in mus else max(each for each in mus if each is not None),
        epsilons=tuple(
            AtDelta(delta=delta, epsilon=_largest([each.epsilons[at].epsilon for each in profiles]))
            for at, delta in enumerate(DELTAS)
        ),
        attacks=tuple(
            Attack(false_positive=alpha, true_positive=max(each.attacks[at].true_positive for each in profiles))
            for at, alpha in enumerate(FALSE_POSITIVES)
        ),
        advantage=max(each.advantage for each in profiles),
    )


def _largest(values: Sequence[float | None]) -> float | None:
    return None if None in values else max(each for each in values if each is not None)


@lru_cache(maxsize=256)  # a study's trials, and jobs that are alike, have the same events
def _of_event(event: Event, grid: float) -> Profile:
    mu = gdp.mu_of_event(event)
    if mu is not None:
        return _gaussian(mu)
    return _selected(event) if renyi.takes(event) else _sampled(event, grid)


def _selected(event: Event) -> Profile:
    """Of the best of several runs: ε by the Rényi accountant, and what follows from these pairs. No distribution of its
    losses is known here, so no bound on the advantage is stated but 1."""
    pairs = [(delta, renyi.epsilon(event, delta)) for delta in DELTAS]
    curve = [(epsilon, delta) for delta, epsilon in pairs]
    return Profile(
        mu=None,
        epsilons=tuple(AtDelta(delta=delta, epsilon=epsilon) for delta, epsilon in pairs),
        attacks=tuple(
            Attack(false_positive=alpha, true_positive=_largest_rate(curve, alpha)) for alpha in FALSE_POSITIVES
        ),
        advantage=1.0,
    )


def _gaussian(mu: float) -> Profile:
    normal = NormalDist()
    rates = [(alpha, normal.cdf(normal.inv_cdf(alpha) + mu)) for alpha in FALSE_POSITIVES]
    return Profile(
        mu=mu,
        epsilons=tuple(AtDelta(delta=delta, epsilon=gdp.epsilon_from_mu(mu, delta)) for delta in DELTAS),
        attacks=tuple(
            Attack(false_positive=alpha, true_positive=min(1.0, _ROUNDING * rate if mu else alpha))
            for alpha, rate in rates
        ),
        advantage=min(1.0, _ROUNDING * gdp.delta_from_mu(mu, 0.0)),
    )


def _sampled(event: Event, grid: float) -> Profile:
    """From one distribution: that of the smallest δ which can be resolved."""
    sampled = next(((delta, each) for delta in sorted(DELTAS) if (each := pld.losses(event, delta, grid))), None)
    resolved, losses = sampled or (math.inf, None)
    curve = [] if losses is None else list(zip(_EPSILONS, losses.deltas(_EPSILONS), strict=True))
    return Profile(
        mu=None,
        epsilons=tuple(
            AtDelta(delta=delta, epsilon=losses.epsilon(delta) if losses is not None and delta >= resolved else None)
            for delta in DELTAS
        ),
        attacks=tuple(
            Attack(false_positive=alpha, true_positive=_largest_rate(curve, alpha)) for alpha in FALSE_POSITIVES
        ),
        advantage=curve[0][1] if curve else 1.0,
    )


def _largest_rate(curve: Sequence[tuple[float, float]], alpha: float) -> float:
    bounds = (min(math.exp(e) * alpha + delta, 1.0 - math.exp(-e) * (1.0 - delta - alpha)) for e, delta in curve)
    return min(1.0, min(bounds, default=1.0) * _ROUNDING)
