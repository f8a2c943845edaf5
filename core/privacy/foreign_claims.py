"""What another system says of its mechanism, and what that costs under a data set's privacy filter.

A filter adds one currency. So a claim is accepted only where a theorem bounds its cost in that currency. Everything
else is refused, and the error says why.

    currency       Gaussian T, σ   μ-GDP    ρ-zCDP   ε-DP, Laplace             RDP curve   Poisson   (ε, δ)
    rdp at α       α T/(2σ²)       α μ²/2   α ρ      randomized response at α  at α' ≥ α   its RDP   –
    gdp, μ²        T/σ²            μ²       –        (2 Φ⁻¹(e^ε/(1+e^ε)))²     –           –         –

A mechanism with pure ε is a processing of randomized response with the same ε, and one with μ a processing of the
Gaussian with the same μ, so its Rényi divergence is at most that one's. Pure ε is μ-GDP for the μ above: both trade-off
curves pass through the same point of the diagonal, and a convex curve lies below its chords.

Sources: Mironov 2017, Propositions 5 to 7 and 9 (randomized response, Laplace, Gaussian; divergences do not fall with
the order); Bun & Steinke 2016 (zCDP); Kairouz, Oh & Viswanath 2015 (pure ε); Dong, Roth & Su 2022 (trade-off curves).
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Annotated, Literal, assert_never

from pydantic import Field, model_validator

from core.contracts.base import Document, EpsilonValue, NoiseMultiplier, Steps
from core.errors import InvalidRequest
from core.privacy import rdp
from core.privacy.events import Gaussian, PoissonSampled
from core.privacy.filters import Filter, GdpFilter, RdpFilter
from core.privacy.price_requests import FilterChoice

MECHANISM = "/mechanism"
ROUNDING = 1e-12  # relative: far above the error of the few operations here
UNBOUNDED = (
    "(ε, δ) alone bounds neither a Rényi divergence nor a μ, so its sum with other jobs has no bound: state the "
    "mechanism behind it, or pure ε"
)
PER_RDP, PER_MU2 = 1e9, 1e12  # units of the two currencies

Positive = Annotated[float, Field(strict=True, gt=0.0, le=1e6)]
Order = Annotated[float, Field(strict=True, gt=1.0, le=1e6)]


class GaussianClaim(Document):
    """`count` Gaussian releases, each with noise of std `noise_multiplier` times its ℓ₂ sensitivity.

    Costs `count` α / (2σ²) under `rdp`, at the data set's order α, and `count` / σ² under `gdp`.
    """

    kind: Literal["gaussian"]
    noise_multiplier: NoiseMultiplier
    count: Steps = 1


class PoissonClaim(Document):
    """`count` Gaussian releases, each of a fresh Poisson sample with rate `sample_rate`.

    Costs `count` times its divergence under `rdp`; `gdp` refuses it.
    """

    kind: Literal["poisson_sampled"]
    sample_rate: Annotated[float, Field(strict=True, gt=0.0, lt=1.0)]
    noise_multiplier: NoiseMultiplier
    count: Steps = 1


class LaplaceClaim(Document):
    """`count` releases, each with Laplace noise of `scale` times its ℓ₁ sensitivity.

    Costs `count` times Laplace's divergence under `rdp`, and that of ε = 1 / `scale` under `gdp`.
    """

    kind: Literal["laplace"]
    scale: Annotated[float, Field(strict=True, ge=0.01, le=1e6)]
    count: Steps = 1


class PureClaim(Document):
    """ε-differential privacy, with δ = 0.

    Costs randomized response's divergence, at most ε, under `rdp`, and (2 Φ⁻¹(e^ε / (1 + e^ε)))² under `gdp`.
    """

    kind: Literal["pure"]
    epsilon: EpsilonValue


class GdpClaim(Document):
    """μ-Gaussian differential privacy. Costs α μ² / 2 under `rdp`, and μ² under `gdp`."""

    kind: Literal["gdp"]
    mu: Positive


class ZcdpClaim(Document):
    """ρ-zero-concentrated differential privacy. Costs α ρ under `rdp`; `gdp` refuses it."""

    kind: Literal["zcdp"]
    rho: Positive


class RdpClaim(Document):
    """A Rényi curve: the divergence is at most `epsilons[i]` at order `orders[i]`.

    Costs the smallest value at an order of α or more under `rdp`; `gdp` refuses it.
    """

    kind: Literal["rdp"]
    orders: Annotated[tuple[Order, ...], Field(min_length=1, max_length=500)]
    epsilons: Annotated[tuple[Annotated[float, Field(strict=True, ge=0.0, le=1e6)], ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _pairs(self) -> RdpClaim:
        if len(self.orders) != len(self.epsilons):
            raise ValueError("`orders` and `epsilons` must have one length")
        return self


class ApproximateClaim(Document):
    """(ε, δ)-differential privacy. Always refused: it bounds neither a Rényi divergence nor a μ. State the mechanism
    behind it."""

    kind: Literal["approximate"]
    epsilon: EpsilonValue
    delta: Annotated[float, Field(strict=True, gt=0.0, lt=1.0)]


UNBOUNDED_BY_MU = (PoissonClaim, ZcdpClaim, RdpClaim)  # what a `gdp` filter has no theorem for
Claim = Annotated[
    GaussianClaim | PoissonClaim | LaplaceClaim | PureClaim | GdpClaim | ZcdpClaim | RdpClaim | ApproximateClaim,
    Field(discriminator="kind"),
]


class ClaimRequest(Document):
    """Asks what a claim costs under a data set's filter."""

    claim: Claim
    filter: FilterChoice


class ClaimPrice(Document):
    """A claim's cost in the filter's units."""

    units: int


def price(request: ClaimRequest) -> ClaimPrice:
    """Prices a claim; raises as `units_of`."""
    return ClaimPrice(units=units_of(request.claim, request.filter.build()))


def units_of(claim: Claim, under: Filter) -> int:
    """The cost of a claim in a filter's units, rounded up; at least one.

    >>> units_of(GdpClaim(kind="gdp", mu=0.5), GdpFilter())
    250000000001

    Raises:
        InvalidRequest: no theorem bounds this claim in the filter's currency.
    """
    match under:
        case RdpFilter():
            return max(1, math.ceil(_divergence(claim, under.order) * (1.0 + ROUNDING) * PER_RDP))
        case GdpFilter():
            return max(1, math.ceil(_squared_mu(claim) * (1.0 + ROUNDING) * PER_MU2))
        case _:
            assert_never(under)


def _divergence(claim: Claim, order: float) -> float:
    """The Rényi divergence at an order, at most."""
    value: float
    match claim:
        case GaussianClaim():
            value = order * claim.count / (2.0 * claim.noise_multiplier**2)
        case PoissonClaim():
            value = claim.count * _poisson(claim, order)
        case LaplaceClaim():
            value = claim.count * min(_laplace(claim.scale, order), _pure(1.0 / claim.scale, order))
        case PureClaim():
            value = _pure(claim.epsilon, order)
        case GdpClaim():
            value = order * claim.mu**2 / 2.0
        case ZcdpClaim():
            value = order * claim.rho
        case RdpClaim():
            value = _from_curve(claim, order)
        case ApproximateClaim():
            raise _refused(UNBOUNDED)
        case _:
            assert_never(claim)
    return value


def _squared_mu(claim: Claim) -> float:
    """μ², at most; μ² adds up over mechanisms."""
    match claim:
        case GaussianClaim():
            return claim.count / claim.noise_multiplier**2
        case GdpClaim():
            return claim.mu**2
        case PureClaim():
            return _mu_of_pure(claim.epsilon) ** 2
        case LaplaceClaim():
            return claim.count * _mu_of_pure(1.0 / claim.scale) ** 2
        case ApproximateClaim():
            raise _refused(UNBOUNDED)
        case PoissonClaim() | ZcdpClaim() | RdpClaim():
            raise _refused(
                f"this data set's `gdp` filter has no bound for `{claim.kind}`: it takes `gaussian`, `gdp`, `laplace` "
                "and `pure`; a data set with the filter `rdp` takes more"
            )
        case _:
            assert_never(claim)


def _poisson(claim: PoissonClaim, order: float) -> float:
    step = PoissonSampled(sample_rate=claim.sample_rate, event=Gaussian(noise_multiplier=claim.noise_multiplier))
    value = rdp.rdp_at(step, order)
    if not math.isfinite(value):
        raise _refused(f"its Rényi divergence at order {order:g}, this data set's, could not be computed")
    # As core.privacy.filters: the series is summed in floats.
    log_moment = max(0.0, (order - 1.0) * value)
    return (log_moment + 1e-14 * order * (1.0 + log_moment)) / (order - 1.0)


def _pure(epsilon: float, order: float) -> float:
    """Of randomized response, which every ε-DP mechanism is a processing of."""
    other = -math.log1p(math.exp(-epsilon))  # ln p, p = e^ε / (1 + e^ε)
    lie = other - epsilon  # ln (1 − p)
    value = _log_sum(order * other + (1.0 - order) * lie, order * lie + (1.0 - order) * other) / (order - 1.0)
    return min(epsilon, max(value, 0.0) + 1e-13 * order * (1.0 + epsilon) / (order - 1.0))


def _laplace(scale: float, order: float) -> float:
    """Source: Mironov 2017, Proposition 6."""
    near = math.log(order / (2.0 * order - 1.0)) + (order - 1.0) / scale
    far = math.log((order - 1.0) / (2.0 * order - 1.0)) - order / scale
    return max(_log_sum(near, far), 0.0) / (order - 1.0) + 1e-13 * order * (1.0 + 1.0 / scale) / (order - 1.0)


def _from_curve(claim: RdpClaim, order: float) -> float:
    enough = [(at, value) for at, value in zip(claim.orders, claim.epsilons, strict=True) if at >= order]
    if not enough:
        raise _refused(
            f"this data set adds divergences at order {order:g}: the curve needs a value at this order or a larger one"
        )
    return min(value for _, value in enough)


def _mu_of_pure(epsilon: float) -> float:
    """2 Φ⁻¹(e^ε / (1 + e^ε)), rounded up; by the lower tail, which keeps its digits."""
    tail = math.exp(-epsilon) / (1.0 + math.exp(-epsilon))
    return -2.0 * NormalDist().inv_cdf(tail) * (1.0 + 1e-9) + 1e-12


def _log_sum(one: float, other: float) -> float:
    larger = max(one, other)
    return larger + math.log(math.exp(one - larger) + math.exp(other - larger))


def _refused(reason: str) -> InvalidRequest:
    return InvalidRequest.at(MECHANISM, reason)
