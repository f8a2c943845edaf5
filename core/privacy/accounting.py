"""ε by the accountant of record, and the other accountants' figures for comparison."""

from __future__ import annotations

import math
from collections import Counter

from core.contracts.base import AccountantName, Epsilon, Unit
from core.errors import InvalidRequest
from core.privacy import accountants, events, gdp, pld, rdp
from core.privacy.events import Event, Leaf
from core.privacy.price_requests import CompareRequest, StudyRequest
from core.privacy.prices import BasicSum, Compared, Comparison


def of_record(*, sampled: bool) -> AccountantName:
    """The accountant of record: exact where nothing is sampled, else pessimistic on the fine grid."""
    return accountants.of(events.noisy_sums(0.5 if sampled else 1.0, 1.0, 1)).NAME


def epsilon_of_trial(request: StudyRequest | None, value: float | None) -> Epsilon | None:
    """Wraps the ε of a study's trial by the accountant of record; None without privacy."""
    if request is None or value is None:
        return None
    accountant = of_record(sampled=request.training.sampling == "poisson")
    return Epsilon(value=value, delta=request.target_delta, accountant=accountant, unit=request.unit)


def epsilon_of(event: Event, delta: float, unit: Unit = "example") -> Epsilon:
    """Computes ε by the accountant of record: exact where nothing is sampled, else pessimistic on the fine grid.

    Raises:
        InvalidRequest: δ is too small for a grid after this many sampled steps.
    """
    accountant = accountants.of(event)
    value = accountant.epsilon(event, delta)
    if math.isinf(value):
        detail = f"δ = {delta:g} is too small: double precision cannot resolve it after this many sampled steps"
        raise InvalidRequest.at("/privacy/target_delta", detail)
    return Epsilon(value=value, delta=delta, accountant=accountant.NAME, unit=unit)


def comparison(event: Event, epsilon: Epsilon) -> Comparison | None:
    """Compares three accountants on an event; its ε by the accountant of record is known already. None for the best of
    several runs, of which only the Rényi one knows a bound."""
    if epsilon.accountant == "rdp":
        return None
    exact = epsilon.accountant == "gdp"
    return Comparison(
        gdp=epsilon.value if exact else None,
        rdp=rdp.epsilon(event, epsilon.delta)[0],
        pld=_tight(event, epsilon.delta) if exact else epsilon.value,
    )


def compare(request: CompareRequest) -> Compared:
    """Composes all jobs of one account by the accountants that no filter enforces.

    Returns:
        `rdp_best_order`: Rényi composition, best order. `pld_if_fixed_in_advance`: the tight composition. It is valid
        only if all jobs were fixed before the first result. The Rényi bound replaces it where δ is too small for a grid
        after this many steps.
    """
    together = events.composed(
        event if count == 1 else events.SelfComposed(count=count, event=event) for event, count in request.jobs
    )
    return Compared(
        rdp_best_order=rdp.epsilon(together, request.delta)[0],
        pld_if_fixed_in_advance=_tight(together, request.delta),
    )


def basic(request: CompareRequest) -> BasicSum:
    """Basic composition of k jobs at one δ: Σ εᵢ(δ/k). For one job, its own ε.

    k mechanisms that are (εᵢ, δ/k)-DP are (Σ εᵢ, δ)-DP together, even if each is chosen after the results of those
    before. The sum of their ε's at δ each holds at k δ only.

    Source: Dwork & Roth 2014, Theorem 3.16.
    """
    if not request.events:
        return BasicSum(epsilon=0.0)
    delta = request.delta / sum(count for _, count in request.jobs)
    by_leaves, one_of = Counter[tuple[tuple[Leaf, int], ...]](), dict[tuple[tuple[Leaf, int], ...], Event]()
    for event, count in request.jobs:
        leaves = tuple(sorted(events.leaves(event).items()))
        by_leaves[leaves] += count
        one_of[leaves] = event
    return BasicSum(epsilon=math.fsum(count * _own(one_of[leaves], delta) for leaves, count in by_leaves.items()))


def _own(event: Event, delta: float) -> float:
    """The job's own ε at δ, by the accountant of its price."""
    mu = gdp.mu_of_event(event)
    return _tight(event, delta) if mu is None else gdp.epsilon_from_mu(mu, delta)


def _tight(event: Event, delta: float) -> float:
    """Returns the PLD's ε for comparison only, or the Rényi bound where no grid resolves δ.

    For plain Gaussians alone a grid of μ/100 is fine enough (1e-5 of ε), and equally fast for any μ.
    """
    mu = gdp.mu_of_event(event)
    value = pld.epsilon(event, delta, pld.GRID if mu is None else max(pld.GRID, mu / 100.0))
    return value if math.isfinite(value) else rdp.epsilon(event, delta)[0]
