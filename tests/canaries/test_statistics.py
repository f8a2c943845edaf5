"""The audit's statistics: their bounds hold as often as they say, and they find what is wrong."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from core.privacy import events, gdp, pld
from scrimp import recompute
from scrimp.audit import claimed_curve
from scrimp.audit.audit_statistics import (
    Claim,
    Finding,
    agreement,
    examine,
    lower_bound,
    quantile_thresholds,
    upper_bound,
)
from scrimp.audit.audited_kinds import KINDS
from scrimp.audit.run import SPREAD

LEVEL = 1e-3 / (2 * len(SPREAD) * len(KINDS))  # of a run of all kinds
MU = 2.0


def audited(
    mu: float, random: np.random.Generator, *, canaries: int = 8000, scale: float = 1.0, level: float = LEVEL
) -> Finding:
    """A Gaussian mechanism that claims μ, with `scale` times the noise that it needs."""
    inside = int(random.binomial(canaries, 0.5))
    present, absent = random.normal(mu, scale, inside), random.normal(0.0, scale, canaries - inside)
    thresholds = quantile_thresholds(random.normal(0.0, scale, canaries // 2), mu, SPREAD)
    return examine(present, absent, thresholds, Claim.gaussian(mu), level)


def test_bounds_are_those_of_clopper_and_pearson() -> None:
    for hits, trials in ((0, 10), (3, 10), (10, 10), (57, 200)):
        interval = stats.binomtest(hits, trials).proportion_ci(0.95, method="exact")
        assert lower_bound(hits, trials, 0.025) == pytest.approx(interval.low, abs=1e-12)
        assert upper_bound(hits, trials, 0.025) == pytest.approx(interval.high, abs=1e-12)


@pytest.mark.parametrize("rate", [0.003, 0.06, 0.5])
def test_a_bound_fails_as_seldom_as_it_says(rate: float) -> None:
    level, trials = 0.02, 400
    hits = np.arange(trials + 1)
    weights = stats.binom.pmf(hits, trials, rate)
    lower = np.array([lower_bound(int(hit), trials, level) for hit in hits])
    upper = np.array([upper_bound(int(hit), trials, level) for hit in hits])
    assert 0.0 < weights[lower > rate].sum() <= level
    assert weights[upper < rate].sum() <= level


def test_a_claim_is_the_exact_curve_of_a_gaussian_mechanism() -> None:
    claim = Claim.gaussian(1.3)
    for epsilon, delta in list(zip(claim.epsilons, claim.deltas, strict=True))[::97]:
        assert delta == pytest.approx(gdp.delta_from_mu(1.3, float(epsilon)), rel=1e-6, abs=1e-13)
    assert claim.deltas[-1] < 1e-12


def test_a_certificate_s_tree_becomes_its_curve() -> None:
    tree = events.composed([events.noisy_sums(1.0, 2.0, 16), events.noisy_sums(1.0, 0.5, 1)]).model_dump(mode="json")
    epsilon = gdp.epsilon_from_mu(np.sqrt(8.0), 1e-5)
    claim = claimed_curve.claim_of(tree, epsilon, 1e-5)
    assert claim.exact and claim.mu == pytest.approx(np.sqrt(8.0))
    assert claimed_curve.mu_of(epsilon, 1e-5) == pytest.approx(claim.mu, rel=1e-9)


def test_a_sampled_tree_s_curve_is_the_accountant_s() -> None:
    event = events.composed([events.noisy_sums(0.5, 1.0, 10)])
    tree = event.model_dump(mode="json")
    epsilon = pld.epsilon(event, 1e-5)
    claim = claimed_curve.claim_of(tree, epsilon, 1e-5)
    assert not claim.exact
    for delta in (1e-4, 1e-2, 0.1):
        there = float(np.interp(pld.epsilon(event, delta), claim.epsilons, claim.deltas))
        assert delta <= there * 1.02 and there <= delta * 1.1


def test_an_unknown_event_is_not_guessed_at() -> None:
    with pytest.raises(ValueError, match="laplace"):
        recompute.precision_of({"kind": "composed", "events": [{"kind": "laplace"}]})


def test_a_right_mechanism_is_accused_no_more_often_than_said() -> None:
    """At a level that single bounds do fail at; the tests of a run together fail a thousand times less."""
    random, level, runs = np.random.default_rng(1), 0.02, 600
    accused = sum(not audited(MU, random, canaries=1000, level=level).stands for _ in range(runs))
    allowed = 2 * len(SPREAD) * level
    assert stats.binomtest(accused, runs, allowed, alternative="greater").pvalue > 1e-6
    assert all(audited(MU, random).stands for _ in range(50))


def test_the_fitted_mu_is_centred_and_the_bound_is_below() -> None:
    random = np.random.default_rng(2)
    found = [audited(MU, random) for _ in range(60)]
    fitted = np.array([each.fitted_mu for each in found])
    assert abs(fitted.mean() - MU) < 0.05
    assert all(each.lower_mu < each.fitted_mu for each in found)
    assert max(each.lower_mu for each in found) < MU
    assert fitted.std() < 0.06


@pytest.mark.parametrize(("scale", "mu"), [(0.8, 2.0), (0.5, 2.0), (0.8, 3.0)])
def test_too_little_noise_is_found(scale: float, mu: float) -> None:
    random = np.random.default_rng(3)
    found = [audited(mu, random, scale=scale) for _ in range(40)]
    assert not any(each.stands for each in found)
    assert min(each.lower_mu for each in found) > mu


def test_a_leak_in_few_cases_is_found_beside_a_good_average() -> None:
    """One canary in twenty is shown as it is: rates in the middle hardly move, the curve's end does."""
    random = np.random.default_rng(4)
    present, absent = random.normal(0.3, 1.0, 8000), random.normal(0.0, 1.0, 8000)
    present[random.random(8000) < 0.05] = 50.0
    found = examine(present, absent, [0.0, 1.0, 10.0], Claim.gaussian(0.5), LEVEL)
    middle = examine(present, absent, [0.0], Claim.gaussian(0.5), LEVEL)
    assert middle.stands and middle.fitted_mu < 0.5
    assert not found.stands and found.excess.epsilon > 1.0


def test_both_directions_are_tested() -> None:
    """Low scores that only absent canaries have tell as much as high ones that only present ones have."""
    random = np.random.default_rng(5)
    present, absent = random.normal(0.3, 1.0, 8000), random.normal(0.0, 1.0, 8000)
    absent[random.random(8000) < 0.05] = -50.0
    assert not examine(present, absent, [-10.0], Claim.gaussian(0.5), LEVEL).stands


def test_canaries_on_one_side_are_no_test() -> None:
    with pytest.raises(ValueError, match="both sides"):
        examine(np.ones(3), np.zeros(0), [0.0], Claim.gaussian(1.0), 0.01)


def test_independent_noises_agree_by_chance_alone() -> None:
    """Their p-values are no smaller than uniform ones (Kolmogorov-Smirnov, one-sided)."""
    random = np.random.default_rng(6)
    chances = [agreement(random.normal(size=2000), random.normal(size=2000) * 3.0).chance for _ in range(400)]
    assert stats.kstest(chances, "uniform", alternative="greater").pvalue > 1e-3


@pytest.mark.parametrize("share", [1.0, -1.0, 0.4])
def test_shared_noise_is_found(share: float) -> None:
    random = np.random.default_rng(7)
    one = random.normal(size=8000)
    other = share * one + np.sqrt(1.0 - share**2) * random.normal(size=8000)
    assert agreement(one, other).chance < LEVEL
