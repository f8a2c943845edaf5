"""What canaries show: bounds that are wrong as seldom as they say, and find what is wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from core.contracts.base import Epsilon
from core.privacy import gdp, one_run
from core.privacy.canary_bound import Finding, coins, decoys, found
from core.privacy.events import Event, noisy_sums
from tests.by_night import but

DELTA = 1e-5


def steps(mu: float, count: int = 4) -> Event:
    """Full-batch steps that are μ-GDP together."""
    return noisy_sums(1.0, math.sqrt(count) / mu, count)


def charged(mu: float) -> Epsilon:
    return Epsilon(value=gdp.epsilon_from_mu(mu, DELTA), delta=DELTA, accountant="gdp")


def released(mu: float, job: str, canaries: int, generator: np.random.Generator) -> np.ndarray:
    """What a Gaussian mechanism leaves at the coordinates: μ where a canary is in, and noise."""
    noise = generator.standard_normal(canaries + decoys(canaries))
    noise[:canaries] += mu * coins(job, canaries)
    return noise


def audited(mu: float, run: int, *, claimed: float | None = None, canaries: int = 1000) -> Finding:
    job, claim = f"job_{run}", mu if claimed is None else claimed
    numbers = released(mu, job, canaries, np.random.default_rng(run))
    return found(numbers, job, canaries, steps(claim), charged(claim))


def test_coins_are_fair_and_the_job_s_own() -> None:
    tossed = np.array([coins(f"job_{k}", 1000) for k in range(200)])
    assert stats.binomtest(int(tossed.sum()), tossed.size).pvalue > 1e-4
    agreeing = int((tossed[0] == tossed[1]).sum())
    assert stats.binomtest(agreeing, 1000).pvalue > 1e-4
    assert coins("job_a", 1000).tolist() == coins("job_a", 1000).tolist()


def test_the_p_value_is_the_paper_s() -> None:
    """Steinke, Nasr & Jagielski 2023, Appendix D, by its own loop; and their example, ε ≥ 0.673."""
    for m, r, v, epsilon, delta in ((1000, 100, 75, 0.7, 1e-4), (500, 50, 50, 2.0, 1e-6), (200, 40, 0, 0.1, 1e-3)):
        q, alpha, total = 1.0 / (1.0 + math.exp(-epsilon)), 0.0, 0.0
        for i in range(1, v + 1):
            total += float(stats.binom.pmf(v - i, r, q))
            alpha = max(alpha, total / i)
        expected = min(1.0, float(stats.binom.sf(v - 1, r, q)) + 2.0 * m * delta * alpha)
        assert one_run.p_value(m, r, v, epsilon, delta) == pytest.approx(expected, rel=1e-12)
    assert one_run.epsilon_at_least(1000, 100, 75, 1e-4, 0.05) == pytest.approx(0.673, abs=5e-4)


@pytest.mark.parametrize("mu", but([0.268, 1.0, 3.0], lambda mu: mu == 1.0))
def test_a_bound_exceeds_the_truth_in_at_most_one_of_twenty_runs(mu: float) -> None:
    """In 100 runs at most 5 are to be expected; 14 have probability 10⁻³ even then."""
    runs = [audited(mu, run) for run in range(100)]
    assert sum(each.epsilon_at_least > each.charged.value for each in runs) <= 13
    assert sum((each.mu_at_least or 0.0) > mu for each in runs) <= 13
    assert not any(each.exceeded for each in runs)
    if mu >= 1.0:  # a thousand canaries do not see less
        assert np.median([each.mu_at_least or 0.0 for each in runs]) > mu / 2


def test_the_one_run_bound_is_wrong_as_seldom_as_it_says() -> None:
    """The extreme case: randomised response with e^ε = 3. The bound is wrong with exactly the level's probability or
    less, and not with far less."""
    for level in (0.05, 0.025):
        chances = stats.binom.pmf(np.arange(101), 100, 0.75)
        wrong = [one_run.p_value(1000, 100, right, math.log(3.0), 0.0) < level for right in range(101)]
        assert level / 2 < chances[wrong].sum() <= level


@pytest.mark.parametrize("canaries", [100, 1000, 10_000])
def test_without_noise_the_bound_is_about_as_large_as_canaries_can_show(canaries: int) -> None:
    """All k guesses are right: ε is about ln(k / ln 40)."""
    one = audited(40.0, 1, claimed=1.0, canaries=canaries)
    assert one.right == one.guesses == 2 * (canaries // 10)
    assert one.epsilon_at_least > math.log(one.guesses / math.log(40.0)) - 0.1
    assert one.exceeded, "and far more than was claimed"


@pytest.mark.parametrize("mu", [1.0, 2.0])
def test_noise_of_four_fifths_is_found(mu: float) -> None:
    faulty = [audited(mu / 0.8, run, claimed=mu, canaries=20_000) for run in range(5)]
    assert all(each.exceeded for each in faulty)
    assert all((each.mu_at_least or 0.0) > mu for each in faulty)
    assert not any(audited(mu, run, canaries=20_000).exceeded for run in range(5))


def test_a_sampled_job_is_held_to_its_own_curve() -> None:
    sampled = noisy_sums(0.1, 1.0, 20)
    said = Epsilon(value=2.0, delta=DELTA, accountant="pld")
    generator = np.random.default_rng(0)
    for scale, wrong in ((0.3, False), (12.0, True)):
        numbers = released(scale, "job_s", 5000, generator)
        finding = found(numbers, "job_s", 5000, sampled, said)
        assert finding.exceeded is wrong and finding.mu_at_least is None


def test_numbers_that_are_not_finite_tell_nothing() -> None:
    numbers = np.full(150, np.nan)
    finding = found(numbers, "job_n", 100, steps(1.0), charged(1.0))
    assert finding.epsilon_at_least == 0.0 and not finding.exceeded
    with pytest.raises(ValueError, match="so many canaries"):
        found(numbers[:-1], "job_n", 100, steps(1.0), charged(1.0))


def test_it_is_said_in_one_sentence() -> None:
    finding = audited(2.0, 3, canaries=5000)
    low = math.floor(100 * finding.epsilon_at_least) / 100
    up = math.ceil(100 * finding.charged.value) / 100
    assert finding.statement == f"charged {up:.2f}; the audit found at least {low:.2f} (95 %)"
    assert 0.0 < low < up
