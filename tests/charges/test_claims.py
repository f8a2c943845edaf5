"""What a claim costs, against integrals in high precision and against numbers from elsewhere."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import pytest
from pydantic import ValidationError

from app.charges.schemas import CLAIM
from core.errors import InvalidRequest
from core.privacy.filters import GdpFilter, RdpFilter
from core.privacy.foreign_claims import units_of

GDP = GdpFilter()
ORDERS = [1.25, 2.0, 3.5, 8.0, 64.0, 1024.0]


def rdp_of(order: float, **claim: Any) -> float:
    return units_of(CLAIM.validate_python(claim), RdpFilter(order)) * 1e-9


def mu2_of(**claim: Any) -> float:
    return units_of(CLAIM.validate_python(claim), GDP) * 1e-12


def is_just_above(found: float, exact: Any, unit: float) -> bool:
    """An upper bound, by at most two units and a part in 10⁹."""
    return float(exact) <= found <= float(exact) * (1.0 + 2e-9) + 2.0 * unit


def integral(order: float, scale: float) -> Any:
    """The Rényi divergence of Laplace noise on 0 from that on 1."""
    with mpmath.workdps(40):
        at, b = mpmath.mpf(order), mpmath.mpf(scale)

        def ratio(x: Any) -> Any:
            return mpmath.exp(-(at * abs(x) + (1 - at) * abs(x - 1)) / b) / (2 * b)

        # The integrand is exponential on each side of the two kinks.
        pieces = mpmath.quad(ratio, [-mpmath.inf, 0, 1, mpmath.inf])
        return mpmath.log(pieces) / (at - 1)


@pytest.mark.parametrize("order", ORDERS[:5])
@pytest.mark.parametrize("scale", [0.5, 4.0, 100.0])
def test_laplace_is_its_integral(order: float, scale: float) -> None:
    assert is_just_above(rdp_of(order, kind="laplace", scale=scale), integral(order, scale), 1e-9)
    assert is_just_above(rdp_of(order, kind="laplace", scale=scale, count=7), 7 * integral(order, scale), 1e-9)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 3.0, 30.0])
def test_pure_epsilon_is_randomized_response(order: float, epsilon: float) -> None:
    with mpmath.workdps(60):
        true, at = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon))), mpmath.mpf(order)
        lie = 1 - true
        exact = mpmath.log(true**at * lie ** (1 - at) + lie**at * true ** (1 - at)) / (at - 1)
    found = rdp_of(order, kind="pure", epsilon=epsilon)
    assert is_just_above(found, exact, 1e-9)
    assert found <= min(epsilon, order * epsilon**2 / 2) + 2e-9  # Bun & Steinke 2016, Proposition 1.4


@pytest.mark.parametrize("order", ORDERS)
def test_gaussians_zcdp_and_gdp_agree(order: float) -> None:
    """σ = 4 is 1/4-GDP and 1/32-zCDP."""
    found = {
        rdp_of(order, kind="gaussian", noise_multiplier=4.0),
        rdp_of(order, kind="gdp", mu=0.25),
        rdp_of(order, kind="zcdp", rho=1 / 32),
        rdp_of(order, kind="rdp", orders=[order], epsilons=[order / 32]),
    }
    assert len(found) == 1 and is_just_above(found.pop(), order / 32, 1e-9)
    assert is_just_above(mu2_of(kind="gaussian", noise_multiplier=4.0, count=9), 9 / 16, 1e-12)
    assert is_just_above(mu2_of(kind="gdp", mu=0.75), 9 / 16, 1e-12)


def test_a_poisson_sample_costs_what_a_job_pays() -> None:
    """Mironov, Talwar & Zhang 2019, by the formula for whole orders."""
    q, sigma, order = 0.01, 1.0, 8
    terms = [
        math.comb(order, k) * (1 - q) ** (order - k) * q**k * math.exp(k * (k - 1) / (2 * sigma**2))
        for k in range(order + 1)
    ]
    exact = math.log(math.fsum(terms)) / (order - 1)
    claim = {"kind": "poisson_sampled", "sample_rate": q, "noise_multiplier": sigma}
    assert is_just_above(rdp_of(order, **claim), exact, 1e-9)
    assert is_just_above(rdp_of(order, **claim, count=100), 100 * exact, 1e-9)


@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 3.0, 20.0])
def test_pure_epsilon_as_mu(epsilon: float) -> None:
    """The Gaussian's trade-off curve lies nowhere above that of ε, and touches it on the diagonal."""
    mu = math.sqrt(mu2_of(kind="pure", epsilon=epsilon))
    with mpmath.workdps(40):
        for power in range(1, 60):
            alpha = mpmath.mpf(2) ** -power
            gaussian = mpmath.ncdf(-mpmath.sqrt(2) * mpmath.erfinv(2 * alpha - 1) - mu)
            pure = max(1 - mpmath.exp(epsilon) * alpha, mpmath.exp(-epsilon) * (1 - alpha))
            assert gaussian <= pure
        corner = 1 / (1 + mpmath.exp(epsilon))
        assert abs(mpmath.ncdf(-mpmath.mpf(mu) / 2) / corner - 1) < 1e-6


def test_a_curve_serves_orders_up_to_its_own() -> None:
    curve = {"kind": "rdp", "orders": [4.0, 16.0, 64.0], "epsilons": [0.1, 0.4, 2.0]}
    assert rdp_of(8.0, **curve) == rdp_of(16.0, **curve) == pytest.approx(0.4, abs=2e-9)
    with pytest.raises(InvalidRequest, match="order 128"):
        rdp_of(128.0, **curve)


@pytest.mark.parametrize(
    "claim",
    [
        {"kind": "zcdp", "rho": 0.1},
        {"kind": "rdp", "orders": [2.0], "epsilons": [0.1]},
        {"kind": "poisson_sampled", "sample_rate": 0.1, "noise_multiplier": 1.0},
    ],
)
def test_gdp_refuses_what_has_no_mu(claim: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="`gdp` filter has no bound"):
        mu2_of(**claim)


def test_approximate_privacy_is_refused_by_both() -> None:
    for ask in (mu2_of, lambda **claim: rdp_of(8.0, **claim)):
        with pytest.raises(InvalidRequest) as refused:
            ask(kind="approximate", epsilon=1.0, delta=1e-6)
        assert refused.value.members["errors"][0]["pointer"] == "/mechanism"


@pytest.mark.parametrize(
    "claim",
    [
        {"kind": "laplace", "scale": 0.0},
        {"kind": "laplace", "scale": math.inf},
        {"kind": "zcdp", "rho": -1.0},
        {"kind": "gdp", "mu": math.nan},
        {"kind": "gaussian", "noise_multiplier": 1.0, "count": 0},
        {"kind": "rdp", "orders": [2.0, 3.0], "epsilons": [0.1]},
        {"kind": "rdp", "orders": [1.0], "epsilons": [0.1]},
        {"kind": "pure", "epsilon": 1.0, "delta": 0.1},
        {"kind": "unknown"},
    ],
)
def test_nonsense_is_refused(claim: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        CLAIM.validate_python(claim)


def test_a_claim_for_users_does_not_cover_one_record() -> None:
    """A sum of users' clipped sums: one user changes it by at most 1, one record by 2."""

    def of_users(*users: list[float]) -> float:
        return sum(max(-1.0, min(1.0, sum(records))) for records in users)

    assert abs(of_users([1.0, -2.0]) - of_users()) == 1.0
    assert abs(of_users([1.0, -2.0]) - of_users([1.0])) == 2.0
