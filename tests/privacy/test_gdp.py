"""Exact Gaussian differential privacy, against sixty digits and against the published numbers of linear scaling."""

from __future__ import annotations

import math

import dp_accounting
import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.privacy import events, gdp
from tests.privacy.support import DELTA

RANGES = {"mu": st.floats(-5.0, 1.3).map(lambda x: 10.0**x), "log_delta": st.floats(-15.0, -2.01)}


def exact_delta(mu: float, epsilon: float) -> mpmath.mpf:
    with mpmath.workdps(60):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


@pytest.mark.parametrize("mu", [1e-5, 1e-3, 0.05, 0.268, 1.0, 4.0, 12.0, 40.0])
@pytest.mark.parametrize("widths", [0.0, 0.5, 2.0, 5.0, 8.0])
def test_delta_against_sixty_digits(mu: float, widths: float) -> None:
    epsilon = widths * mu + 0.5 * mu * mu
    exact = exact_delta(mu, epsilon)
    # The two terms agree to all but a part in 1/μ: nothing in double precision can do better than that.
    assert gdp.delta_from_mu(mu, epsilon) == pytest.approx(float(exact), rel=1e-13 * (1.0 + 10.0 / mu))


def test_an_estimate_is_the_quick_epsilon_itself() -> None:
    event = events.noisy_sums(1.0, 10.0, 100)
    assert gdp.estimate(event, DELTA, target=1.0, steps=3) == gdp.epsilon(event, DELTA) > 0.0


def test_delta_is_the_integral_of_its_definition() -> None:
    mu, epsilon = 0.7, 1.3
    with mpmath.workdps(40):
        start = mpmath.mpf(epsilon) / mu + mpmath.mpf(mu) / 2
        gap = lambda x: mpmath.npdf(x - mu) - mpmath.exp(epsilon) * mpmath.npdf(x)  # noqa: E731
        integral = mpmath.quad(gap, [start, start + 3, start + 10, mpmath.inf])
    assert gdp.delta_from_mu(mu, epsilon) == pytest.approx(float(integral), rel=1e-12)


@pytest.mark.parametrize(("mu", "epsilon"), [(0.0, 1.0), (1e-6, 50.0), (1.0, 100.0), (1e-3, 30.0)])
def test_the_far_tail_is_a_number(mu: float, epsilon: float) -> None:
    delta = gdp.delta_from_mu(mu, epsilon)
    assert 0.0 <= delta < 1e-15


@pytest.mark.parametrize("epsilon", [0.0, 1e-3])
def test_below_the_floats_resolution_delta_is_nothing(epsilon: float) -> None:
    assert gdp.delta_from_mu(1e-20, epsilon) == 0.0


@pytest.mark.parametrize("mu", [1e-5, 2.0135848547830884e-05])
@pytest.mark.parametrize("delta", [1.8013456765350206e-06, 3.33903327748252e-06, 7.594404697796033e-06])
def test_epsilon_is_safe_where_double_precision_is_worst(mu: float, delta: float) -> None:
    """δ(ε) is the difference of two nearly equal terms there; ε was below the least one by 5e-17."""
    epsilon = gdp.epsilon_from_mu(mu, delta)
    assert exact_delta(mu, epsilon) <= delta
    if epsilon > 0.0:
        assert exact_delta(gdp.mu_from_epsilon(epsilon, delta), epsilon) <= delta


@given(**RANGES)
def test_the_two_inverses_are_each_on_the_safe_side(mu: float, log_delta: float) -> None:
    """Double precision knows δ(ε) to ten digits at the smallest μ, so sixty digits judge."""
    delta = 10.0**log_delta
    epsilon = gdp.epsilon_from_mu(mu, delta)
    assert exact_delta(mu, epsilon) <= delta
    if epsilon > 0.0:
        back = gdp.mu_from_epsilon(epsilon, delta)
        assert back == pytest.approx(mu, rel=1e-9)
        assert exact_delta(back, epsilon) <= delta
        assert gdp.epsilon_from_mu(back, delta) <= epsilon


@settings(max_examples=40)
@given(mu=st.floats(0.02, 10.0), log_delta=st.floats(-15.0, -2.01))
def test_epsilon_agrees_with_dp_accounting(mu: float, log_delta: float) -> None:
    theirs = dp_accounting.get_epsilon_gaussian(1.0 / mu, 10.0**log_delta)
    assert gdp.epsilon_from_mu(mu, 10.0**log_delta) == pytest.approx(theirs, rel=1e-6, abs=1e-11)


def test_no_epsilon_is_needed_below_the_total_variation() -> None:
    assert gdp.epsilon_from_mu(1e-6, DELTA) == 0.0
    assert gdp.epsilon_from_mu(0.0, DELTA) == 0.0


def test_golden_total_of_one() -> None:
    assert gdp.mu_from_epsilon(1.0, DELTA) == pytest.approx(0.268051, abs=5e-7)
    assert math.sqrt(50) / gdp.mu_from_epsilon(1.0, DELTA) == pytest.approx(26.380, abs=1e-3)


def test_golden_noise_of_a_hundred_steps_at_a_small_epsilon() -> None:
    assert math.sqrt(100) / gdp.mu_from_epsilon(0.01, DELTA) == pytest.approx(2437.9, abs=0.05)


@pytest.mark.parametrize(
    ("first", "second", "final"),
    [(0.01, 0.05, 0.9927), (0.05, 0.1, 0.9685), (0.05, 0.2, 0.9031), (0.1, 0.2, 0.8840), (0.2, 0.3, 0.6933)],
)
def test_golden_final_run_of_linear_scaling(first: float, second: float, final: float) -> None:
    """Panda et al. 2024, Table 13: what three pilots at each of two levels leave of a total of 1."""
    pilots = [gdp.mu_from_epsilon(level, DELTA) for level in (first, second) for _ in range(3)]
    left = math.sqrt(gdp.mu_from_epsilon(1.0, DELTA) ** 2 - sum(mu * mu for mu in pilots))
    assert gdp.epsilon_from_mu(left, DELTA) == pytest.approx(final, abs=1e-4)


def test_golden_final_run_when_six_scores_are_charged() -> None:
    pilots = [gdp.mu_from_epsilon(level, DELTA) for level in (0.1, 0.2) for _ in range(3)]
    spent = sum(mu * mu for mu in pilots) + 6 * 0.01**2
    left = math.sqrt(gdp.mu_from_epsilon(1.0, DELTA) ** 2 - spent)
    assert gdp.epsilon_from_mu(left, DELTA) == pytest.approx(0.8790, abs=1e-4)


def test_sampling_has_no_exact_mu() -> None:
    """The central limit form would say ε = 1.25 of this plan; it is 3.65."""
    assert gdp.mu_of_event(events.noisy_sums(0.001, 0.5, 2000)) is None
    assert gdp.mu_of_event(events.noisy_sums(1.0, 10.0, 100)) == pytest.approx(1.0)
    mixed = events.composed([events.noisy_sums(1.0, 10.0, 100), events.noisy_sums(0.5, 10.0, 1)])
    assert gdp.mu_of_event(mixed) is None
