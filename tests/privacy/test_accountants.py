"""RDP and PLD: golden numbers, independent integrals, and each against the other."""

from __future__ import annotations

import math

import dp_accounting as dp
import mpmath
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st

from core.privacy import events, gdp, pld, rdp
from core.privacy.events import noisy_sums
from tests.privacy.support import DELTA, paper_jobs

IMDB = noisy_sums(64 / 25_000, 1.0, 39_062)


@pytest.mark.parametrize(
    ("tree", "tight", "renyi"),
    [
        (paper_jobs(1.862), 1.00007, 1.0973),
        (paper_jobs(2.002), 0.9111, 1.0003),
        (paper_jobs(1.862, 10), 3.5486, 3.8450),
        (paper_jobs(2.002, 10), 3.2272, 3.4988),
        (noisy_sums(0.04, 1.5, 2250), 6.7688, 7.3293),
        (IMDB, 2.789, 3.033),
    ],
)
def test_golden(tree: events.Event, tight: float, renyi: float) -> None:
    assert pld.epsilon(tree, DELTA) == pytest.approx(
        tight, abs=1e-5 if tight == 1.00007 else 5e-4 if tree is IMDB else 5e-5
    )
    assert rdp.epsilon(tree, DELTA)[0] == pytest.approx(renyi, abs=5e-4 if tree is IMDB else 5e-5)


def test_the_central_limit_form_is_no_guarantee() -> None:
    """Seen in a library: ε = 1.25 of a plan that costs 3.65."""
    tree = noisy_sums(0.001, 0.5, 2000)
    clt = 0.001 * math.sqrt(2000 * math.expm1(1 / 0.5**2))
    assert gdp.epsilon_from_mu(clt, DELTA) == pytest.approx(1.25, abs=0.05)
    assert pld.epsilon(tree, DELTA) == pytest.approx(3.65, abs=0.005)


def test_a_coarse_grid_would_double_the_price() -> None:
    tree = noisy_sums(64 / 25_000, 14.0, 39_062)
    fine, coarse = pld.epsilon(tree, DELTA), pld.epsilon(tree, DELTA, 1e-3)
    assert pld.GRID == 1e-4
    assert coarse > 1.9 * fine


@settings(max_examples=12)
@given(
    rate=st.floats(-3.0, -0.05).map(lambda x: 10.0**x),
    sigma=st.floats(1.5, 20.0),
    steps=st.integers(1, 800),
    log_delta=st.floats(-8.0, -3.0),
)
def test_pld_lies_below_rdp(rate: float, sigma: float, steps: int, log_delta: float) -> None:
    tree, delta = noisy_sums(rate, sigma, steps), 10.0**log_delta
    renyi = rdp.epsilon(tree, delta)[0]
    # What a grid of 1e-4 adds over T steps is about 1.5 T h²/ε.
    assert pld.epsilon(tree, delta) <= renyi + 2.0 * steps * pld.GRID**2 / max(renyi, pld.GRID) + 2.0 * pld.GRID


@settings(max_examples=25)
@given(mu=st.floats(0.02, 3.0), count=st.integers(1, 10_000), log_delta=st.floats(-9.0, -3.0))
def test_pld_lies_at_or_above_the_exact_gaussian(mu: float, count: int, log_delta: float) -> None:
    tree, delta = noisy_sums(1.0, math.sqrt(count) / mu, count), 10.0**log_delta
    exact = gdp.epsilon_from_mu(mu, delta)
    assert exact * (1.0 - 1e-9) <= pld.epsilon(tree, delta, max(pld.GRID, mu / 100.0)) <= exact * (1.0 + 1e-4) + 1e-5


@pytest.mark.parametrize(("rate", "sigma"), [(0.3, 1.0), (0.01, 0.8), (0.9, 5.0), (0.001, 0.5)])
def test_one_sampled_step_against_its_integral(rate: float, sigma: float) -> None:
    """Removing a record: (1−q) N(0, σ²) + q N(1, σ²) against N(0, σ²); adding one, the other way round."""
    tree = noisy_sums(rate, sigma, 1)
    epsilon = pld.epsilon(tree, DELTA)

    def divergence(sign: int) -> float:
        def density(x: mpmath.mpf, mean: int) -> mpmath.mpf:
            return mpmath.npdf(x, mean, sigma)

        def gap(x: mpmath.mpf) -> mpmath.mpf:
            mixture, plain = (1 - rate) * density(x, 0) + rate * density(x, 1), density(x, 0)
            return mixture - mpmath.exp(epsilon) * plain if sign > 0 else plain - mpmath.exp(epsilon) * mixture

        ratio = mpmath.expm1(sign * epsilon) / rate
        if ratio <= -1:
            return 0.0
        crossing = mpmath.mpf(sigma) ** 2 * mpmath.log1p(ratio) + mpmath.mpf(1) / 2
        beyond = [crossing + sign * sigma * k for k in (0, 1, 3, 6, 12, 40)]
        return float(sign * mpmath.quad(gap, beyond))

    with mpmath.workdps(30):
        worst = max(divergence(1), divergence(-1))
    assert worst == pytest.approx(DELTA, rel=1e-4)
    assert worst <= DELTA


@pytest.mark.parametrize("tree", [paper_jobs(1.862), noisy_sums(0.3, 4.0, 300), noisy_sums(0.002, 1.2, 50)])
def test_the_faster_discretization_is_the_librarys(tree: events.Event) -> None:
    accountant = dp.pld.PLDAccountant(value_discretization_interval=pld.GRID)
    accountant.compose(events.to_dp_event(tree))
    assert pld.epsilon(tree, DELTA) == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-6)


def test_gaussians_are_folded_and_composed_with_what_is_sampled() -> None:
    sampled, extra = noisy_sums(0.01, 3.0, 100), noisy_sums(1.0, 100.0, 7)
    both = events.composed([extra, sampled, noisy_sums(1.0, 100.0, 2)])
    accountant = dp.pld.PLDAccountant(value_discretization_interval=pld.GRID)
    accountant.compose(events.to_dp_event(both))
    assert pld.epsilon(both, DELTA) == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-5)
    assert pld.epsilon(both, DELTA) > pld.epsilon(sampled, DELTA)


def test_nothing_costs_nothing() -> None:
    assert pld.epsilon(events.composed([]), DELTA) == 0.0
    assert rdp.epsilon(events.composed([]), DELTA)[0] == 0.0


def test_what_double_precision_hides_is_taken_off_delta() -> None:
    """Fourier powers err by up to 3.4e-16 a step. Untreated, ε falls below the exact figure where δ is that small."""
    sigma, steps, delta = 100.0, 10_000, 1e-12
    untreated = (
        privacy_loss_distribution.from_gaussian_mechanism(sigma).self_compose(steps).get_epsilon_for_delta(delta)
    )
    assert untreated < 0.9995 * gdp.epsilon_from_mu(1.0, delta)
    assert not pld.resolves(delta, steps)
    assert pld.epsilon(noisy_sums(0.5, sigma, steps), delta) == math.inf
    assert pld.resolves(DELTA, 10**7 // 2)


@pytest.mark.parametrize("order", [2.0, 6.0, 32.0, 256.0])
@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 2.0), (0.3, 0.7), (1e-5, 1.0)])
def test_rdp_at_whole_orders_against_sixty_digits(order: float, rate: float, sigma: float) -> None:
    with mpmath.workdps(60):
        q, s, a = mpmath.mpf(rate), mpmath.mpf(sigma), int(order)
        terms = (
            mpmath.binomial(a, i) * q**i * (1 - q) ** (a - i) * mpmath.expm1((i * i - i) / (2 * s * s))
            for i in range(2, a + 1)
        )
        exact = float(mpmath.log1p(mpmath.fsum(terms)) / (a - 1))
    assert rdp.rdp_at(noisy_sums(rate, sigma, 1), order) == pytest.approx(exact, rel=1e-9, abs=1e-13)


def test_a_fractional_order_that_does_not_converge_is_bounded_by_its_neighbours() -> None:
    tree = noisy_sums(0.4828, 0.969, 1)
    assert math.isinf(rdp._divergences(tree, (1.25,))[0])
    value = rdp.rdp_at(tree, 1.25)
    assert 0.0 < value <= rdp.rdp_at(tree, 2.0)
    with mpmath.workdps(30):
        q, s, a = mpmath.mpf(0.4828), mpmath.mpf(0.969), mpmath.mpf(1.25)
        density = lambda z: mpmath.npdf(z, 0, s) * (1 - q + q * mpmath.exp((2 * z - 1) / (2 * s * s))) ** a  # noqa: E731
        exact = mpmath.log(mpmath.quad(density, [-14, -5, 0, 2, 5, 14])) / (a - 1)
    assert value >= float(exact)


@given(st.floats(-4.0, -0.3), st.floats(-0.2, 1.5), st.integers(2, 5000), st.sampled_from([1e-3, 5e-3]))
@settings(max_examples=25)
def test_composing_is_dp_accountings(log_rate: float, log_sigma: float, count: int, grid: float) -> None:
    """The same distribution, to the bit: only where its tails begin is found another way."""
    leaf, tail = events.Leaf(10.0**log_rate, 10.0**log_sigma), 1e-12
    ours = pld._composed(leaf, count, grid, tail)
    theirs = pld._composed(leaf, 1, grid, tail / count).self_compose(count, tail)
    for name in ("_pmf_remove", "_pmf_add"):
        one, other = getattr(ours, name), getattr(theirs, name)
        assert (one._lower_loss, one._infinity_mass) == (other._lower_loss, other._infinity_mass)
        assert one._probs.tolist() == other._probs.tolist()
