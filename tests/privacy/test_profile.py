"""The profile that a certificate signs: against the reader's own accountant, and the exact trade-off of a sum."""

from __future__ import annotations

import math
from statistics import NormalDist

import mpmath
import numpy as np
import pytest

from core.privacy.events import AccountEvents, composed, noisy_sums
from core.privacy.profile import DELTAS, FALSE_POSITIVES, Profile, profile_of
from scrimp.privacy_loss import Curve

PLANS = {
    "full batch": (noisy_sums(1.0, 26.38, 50), 1.0),
    "sampled": (noisy_sums(0.02, 1.1, 500), 2.0),
    "one sampled sum": (noisy_sums(0.3, 0.8, 1), 2.0),
    "large": (noisy_sums(0.3, 1.0, 1000), 130.0),
}


def profile(name: str) -> Profile:
    event, epsilon = PLANS[name]
    return profile_of(AccountEvents(train=composed([event]), holdout=None), epsilon)


@pytest.mark.parametrize("name", PLANS)
def test_it_is_that_of_the_reader_s_accountant_or_a_little_above(name: str) -> None:
    found, curve = profile(name), Curve.of(composed([PLANS[name][0]]).model_dump(mode="json"), min(DELTAS))
    epsilons = [each.epsilon for each in found.epsilons]
    assert epsilons == pytest.approx(curve.epsilons(DELTAS), rel=1e-3)
    rates = curve.attack(FALSE_POSITIVES)
    for each in found.attacks:
        assert rates[each.false_positive] * (1.0 - 1e-6) <= each.true_positive <= rates[each.false_positive] * 1.005
    assert found.advantage == pytest.approx(curve.deltas([0.0])[0], rel=1e-4)


def test_no_attack_on_one_sampled_sum_is_better() -> None:
    """The best test between N(0, σ²) and its mixture with N(1, σ²) accuses above a threshold, and the other way round
    below one: Neyman and Pearson."""
    rate, sigma, normal = 0.3, 0.8, NormalDist()
    for each in profile("one sampled sum").attacks:
        alpha = each.false_positive
        threshold = normal.inv_cdf(1.0 - alpha) * sigma
        removed = (1.0 - rate) * alpha + rate * (1.0 - normal.cdf((threshold - 1.0) / sigma))
        xs = np.linspace(-8.0, 9.0, 200_001)
        absent = np.array(
            [(1.0 - rate) * normal.cdf(x / sigma) + rate * normal.cdf((x - 1.0) / sigma) for x in xs[::50]]
        )
        added = normal.cdf(float(np.interp(alpha, absent, xs[::50])) / sigma)
        best = max(removed, added)
        assert best <= each.true_positive <= best * 1.05


@pytest.mark.parametrize("sigma", [0.3, 1.0, 3.7, 26.38, 400.0])
def test_a_sum_s_advantage_has_a_margin_for_rounding(sigma: float) -> None:
    """2Φ(μ/2) − 1, to 50 digits."""
    found = profile_of(AccountEvents(train=composed([noisy_sums(1.0, sigma, 1)]), holdout=None), 1.0)
    with mpmath.workdps(50):
        exact = mpmath.erf(mpmath.mpf(found.mu) / (2 * mpmath.sqrt(2)))
        assert exact * (1 + mpmath.mpf(10) ** -10) < found.advantage <= min(1, exact * (1 + mpmath.mpf(10) ** -8))


def test_the_larger_account_counts() -> None:
    large, small = composed([noisy_sums(1.0, 5.0, 1)]), composed([noisy_sums(1.0, 50.0, 1)])
    alone = profile_of(AccountEvents(train=large, holdout=None), 1.0)
    for events in (AccountEvents(train=large, holdout=small), AccountEvents(train=small, holdout=large)):
        assert profile_of(events, 1.0) == alone
    mixed = profile_of(AccountEvents(train=composed([noisy_sums(0.1, 5.0, 1)]), holdout=large), 1.0)
    assert mixed.mu is None and mixed.epsilons == alone.epsilons


def test_what_cannot_be_resolved_is_unknown_and_never_small() -> None:
    found = profile_of(AccountEvents(train=composed([noisy_sums(0.001, 8.0, 10**6)]), holdout=None), 1.0)
    assert [each.epsilon is None for each in found.epsilons] == [False] * 4 + [True] * 2
    lost = profile_of(AccountEvents(train=composed([noisy_sums(0.5, 8.0, 10**12)]), holdout=None), 1.0)
    assert {each.epsilon for each in lost.epsilons} == {None}
    assert {each.true_positive for each in lost.attacks} == {1.0} and lost.advantage == 1.0
    nothing = profile_of(AccountEvents(train=composed([]), holdout=None), 0.0)
    assert nothing.mu == 0.0 and [each.true_positive for each in nothing.attacks] == list(FALSE_POSITIVES)
    assert all(each.epsilon is not None and math.isclose(each.epsilon, 0.0) for each in nothing.epsilons)
