"""What an attacker can find: golden numbers, and the exact trade-off of one sampled sum by its best tests."""

from __future__ import annotations

import math

import pytest
from scipy import optimize, special

from app.privacy import gdp
from app.privacy.events import composed, noisy_sums
from app.privacy.profile import DELTAS, FALSE_POSITIVES, profile
from tests.by_night import but


@pytest.mark.parametrize(
    ("epsilon", "found", "advantage"), [(1.0, 0.0024, 0.107), (2.5, 0.0066, 0.240), (4.0, 0.0152, 0.356)]
)
def test_golden_numbers_of_a_full_batch(epsilon: float, found: float, advantage: float) -> None:
    mu = gdp.mu_from_epsilon(epsilon, 1e-5)
    got = profile(noisy_sums(1.0, math.sqrt(50) / mu, 50))
    assert got.true_positives[0.001] == pytest.approx(found, abs=5e-5)
    assert got.advantage == pytest.approx(advantage, abs=5e-4)
    assert got.mu == pytest.approx(mu)
    assert got.epsilons[1e-5] == pytest.approx(epsilon)
    assert list(got.epsilons) == list(DELTAS) and sorted(got.epsilons.values()) == list(got.epsilons.values())


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
    got = profile(noisy_sums(q, sigma, 1))
    assert got.mu is None
    for alpha in FALSE_POSITIVES:
        exact = of_one_sampled_sum(q, sigma, alpha)
        assert exact <= got.true_positives[alpha] <= exact * 1.03 + 1e-4
    advantage = q * math.erf(0.5 / sigma / math.sqrt(2.0))
    assert advantage <= got.advantage <= advantage * 1.01 + 1e-4


def test_many_sampled_steps_are_never_below_a_gaussian_with_the_same_limit() -> None:
    """By the central limit theorem they come close to μ² = q² T (e^{1/σ²} − 1)."""
    q, sigma, steps = 0.01, 1.0, 2000
    limit = math.sqrt(q * q * steps * math.expm1(1.0 / sigma**2))
    got = profile(composed([noisy_sums(q, sigma, steps)]))
    for alpha in FALSE_POSITIVES:
        assert got.true_positives[alpha] == pytest.approx(
            float(special.ndtr(special.ndtri(alpha) + limit)), rel=0.15, abs=1e-3
        )


def test_what_cannot_be_resolved_is_not_guessed() -> None:
    got = profile(noisy_sums(1e-6, 50.0, 10**9))
    assert got.epsilons[1e-5] < 0.2 and got.epsilons[1e-6] == got.epsilons[1e-10] == math.inf
    assert got.true_positives == dict.fromkeys(FALSE_POSITIVES, 1.0)
    assert got.advantage == 1.0


def test_nothing_released_is_nothing_found() -> None:
    got = profile(composed([]))
    assert got.true_positives == pytest.approx({alpha: alpha for alpha in FALSE_POSITIVES})
    assert (got.mu, got.advantage) == (0.0, 0.0)
