"""The reader's own accountant: against dp_accounting, golden numbers, and the exact trade-off of one sampled sum."""

from __future__ import annotations

import math
from typing import Any

import pytest
from scipy import optimize, special

from app.privacy import gdp, pld
from app.privacy.events import Event, composed, noisy_sums, read
from scrimp.explain import FALSE_POSITIVES
from scrimp.privacy_loss import attack, deltas, epsilon, losses, mu_of
from tests.by_night import but


def tree(event: Event) -> Any:
    return event.model_dump(mode="json")


def sampled(rate: float, sigma: float, count: int, cut: dict[str, int] | None = None) -> dict[str, Any]:
    event: dict[str, Any] = {"kind": "gaussian", "noise_multiplier": sigma}
    if cut is not None:
        event = {**cut, "kind": "truncated_sampled", "sample_rate": rate, "event": event}
    elif rate < 1.0:
        event = {"kind": "poisson_sampled", "sample_rate": rate, "event": event}
    return {"kind": "self_composed", "count": count, "event": event}


@pytest.mark.parametrize(
    ("epsilon_", "found", "advantage"), [(1.0, 0.0024, 0.107), (2.5, 0.0066, 0.240), (4.0, 0.0152, 0.356)]
)
def test_golden_numbers_of_a_full_batch(epsilon_: float, found: float, advantage: float) -> None:
    mu = gdp.mu_from_epsilon(epsilon_, 1e-5)
    got = tree(noisy_sums(1.0, math.sqrt(50) / mu, 50))
    assert attack(got, [0.001])[0.001] == pytest.approx(found, abs=5e-5)
    assert deltas(got, [0.0])[0] == pytest.approx(advantage, abs=5e-4)
    assert mu_of(got) == pytest.approx(mu)
    assert epsilon(got, 1e-5) == pytest.approx(epsilon_, abs=1e-8)


CUT = {"records": 5000, "largest_batch": 80}
TREES: dict[str, list[dict[str, Any]]] = {
    "a thousand sampled steps": [sampled(0.01024, 1.86, 1953)],
    "little noise": [sampled(0.001, 0.6, 5000)],
    "sampled, with a mean": [sampled(0.3, 4.0, 200), sampled(1.0, 10.0, 1)],
    "truncated": [sampled(0.01, 1.0, 100, CUT)],
    "large losses": [sampled(0.5, 0.5, 3)],
}


@pytest.mark.parametrize("name", TREES)
def test_epsilon_is_dp_accountings(name: str) -> None:
    """On the same grid the two differ by the rounding of their transforms, which the service adds once more."""
    event = {"kind": "composed", "events": TREES[name]}
    for delta in (1e-3, 1e-5):
        theirs = pld.epsilon(read(event), delta)
        assert epsilon(event, delta) == pytest.approx(theirs, rel=1e-6)
    assert deltas(event, [0.5, 1.0])[1] == pytest.approx(max_delta(event, 1.0), rel=1e-6)


def max_delta(event: Any, epsilon_: float) -> float:
    return max(side.delta(epsilon_) for side in losses(event))


def of_one_sampled_sum(q: float, sigma: float, alpha: float) -> float:
    """The best test accuses above a threshold. Of N(0, σ²) against the mixture, or of the mixture against N(0, σ²),
    whichever finds more."""
    adding = (1.0 - q) * alpha + q * special.ndtr(special.ndtri(alpha) + 1.0 / sigma)

    def accused(threshold: float) -> float:  # of the mixture, below a threshold
        return float((1.0 - q) * special.ndtr(threshold) + q * special.ndtr(threshold - 1.0 / sigma)) - alpha

    return max(float(adding), float(special.ndtr(optimize.brentq(accused, -40.0, 40.0))))


SAMPLED = [(sigma, q) for sigma in (0.5, 1.0, 4.0) for q in (0.01, 0.3, 0.9)]


@pytest.mark.parametrize(("sigma", "q"), but(SAMPLED, {(0.5, 0.01), (1.0, 0.3), (4.0, 0.9)}.__contains__))
def test_a_sampled_sum_is_bounded_closely(q: float, sigma: float) -> None:
    got = tree(noisy_sums(q, sigma, 1))
    assert mu_of(got) is None
    rates = attack(got, FALSE_POSITIVES)
    for alpha in FALSE_POSITIVES:
        exact = of_one_sampled_sum(q, sigma, alpha)
        assert exact <= rates[alpha] <= exact * 1.03 + 1e-4
    advantage = q * math.erf(0.5 / sigma / math.sqrt(2.0))
    assert advantage <= deltas(got, [0.0])[0] <= advantage * 1.01 + 1e-4


def test_many_sampled_steps_are_never_below_a_gaussian_with_the_same_limit() -> None:
    """By the central limit theorem they come close to μ² = q² T (e^{1/σ²} − 1)."""
    q, sigma, steps = 0.01, 1.0, 2000
    limit = math.sqrt(q * q * steps * math.expm1(1.0 / sigma**2))
    got = attack(tree(composed([noisy_sums(q, sigma, steps)])), FALSE_POSITIVES)
    for alpha in FALSE_POSITIVES:
        assert got[alpha] == pytest.approx(float(special.ndtr(special.ndtri(alpha) + limit)), rel=0.15, abs=1e-3)


def test_what_cannot_be_resolved_is_not_guessed() -> None:
    got = tree(noisy_sums(1e-6, 50.0, 10**9))
    assert epsilon(got, 1e-5) < 0.2
    with pytest.raises(ValueError, match="unknown kind"):
        epsilon({"kind": "laplace"}, 1e-5)


def test_nothing_released_is_nothing_found() -> None:
    nothing = tree(composed([]))
    assert attack(nothing, FALSE_POSITIVES) == pytest.approx({alpha: alpha for alpha in FALSE_POSITIVES})
    assert (mu_of(nothing), epsilon(nothing, 1e-5), deltas(nothing, [0.0])) == (0.0, 0.0, [0.0])
