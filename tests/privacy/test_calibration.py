"""ε(calibrated plan) ≤ target, always, and not much below it."""

from __future__ import annotations

import math

import dp_accounting as dp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import InvalidRequest
from core.privacy import calibration, events, gdp, pld
from core.privacy.calibration import SLACK, noise_multiplier
from tests.privacy.support import DELTA

RELATIVE = 1.0 - 1e-3


@settings(max_examples=60)
@given(
    target=st.floats(-4.0, 2.0).map(lambda x: 10.0**x),
    log_delta=st.floats(-15.0, -2.01),
    steps=st.integers(1, 10**7),
)
def test_full_batch_never_spends_more_than_the_target(target: float, log_delta: float, steps: int) -> None:
    delta = 10.0**log_delta
    try:
        sigma = noise_multiplier(target, delta, 1.0, steps)
    except InvalidRequest:
        exact = math.sqrt(steps) / gdp.mu_from_epsilon(target, delta)
        assert not calibration.SIGMA_MIN * (1 + 1e-9) < exact < calibration.SIGMA_MAX * (1 - 1e-9)
        return
    spent = gdp.epsilon_from_mu(gdp.mu_of_event(events.noisy_sums(1.0, sigma, steps)) or 0.0, delta)
    assert target * (1.0 - 1e-8) <= spent <= target


@settings(max_examples=12)
@given(
    target=st.floats(-1.5, 0.3).map(lambda x: 10.0**x),
    log_delta=st.floats(-6.0, -3.0),
    rate=st.floats(-1.5, -0.02).map(lambda x: 10.0**x),
    steps=st.integers(20, 3000),
)
def test_poisson_never_spends_more_than_the_target(target: float, log_delta: float, rate: float, steps: int) -> None:
    delta = 10.0**log_delta
    sigma, claimed = calibration.calibrate(target, delta, rate, steps)
    spent = pld.epsilon(events.noisy_sums(rate, sigma, steps), delta)
    assert spent == claimed
    assert target * RELATIVE <= spent <= target


@pytest.mark.parametrize(
    ("target", "rate", "steps"),
    [(1.0, 512 / 50_000, 1953), (1.0, 64 / 25_000, 39_062), (0.01, 0.01, 1000), (2.0, 0.05, 20)],
)
def test_dp_accounting_itself_finds_no_more_than_the_target(target: float, rate: float, steps: int) -> None:
    sigma = noise_multiplier(target, DELTA, rate, steps)
    accountant = dp.pld.PLDAccountant(value_discretization_interval=pld.GRID)
    accountant.compose(events.to_dp_event(events.noisy_sums(rate, sigma, steps)))
    assert target * RELATIVE <= accountant.get_epsilon(DELTA) <= target


def test_a_calibrated_noise_multiplier_is_not_rounded_down() -> None:
    """1.862 gives ε = 1.00007 at 1,954 steps: to stay below 1 it takes a little more."""
    assert 1.8620 < noise_multiplier(1.0, DELTA, 512 / 50_000, 1954) < 1.8640


def test_the_fine_grid_is_asked_no_more_than_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain bisection asks it a dozen times or more."""
    asked: list[float] = []
    inner = pld.epsilon

    def counted(tree: events.Event, delta: float, grid: float = pld.GRID) -> float:
        asked.append(grid)
        return inner(tree, delta, grid)

    monkeypatch.setattr(pld, "epsilon", counted)
    noise_multiplier(1.0, DELTA, 512 / 50_000, 1953)
    assert asked.count(pld.GRID) <= 2
    assert len(asked) <= 14


@pytest.mark.parametrize("rate", [1.0, 0.05])
def test_what_else_the_account_pays_for_comes_out_of_the_target(rate: float) -> None:
    score = events.noisy_sums(1.0, 20.0, 4)
    sigma, spent = calibration.calibrate(1.0, DELTA, rate, 200, [score])
    assert sigma > noise_multiplier(1.0, DELTA, rate, 200)
    tight = pld.epsilon(events.composed([events.noisy_sums(rate, sigma, 200), score]), DELTA)
    assert 1.0 - SLACK <= spent <= 1.0
    assert tight == pytest.approx(spent, rel=1e-6)


@pytest.mark.parametrize("target", [0.0, -1.0, math.nan, math.inf])
def test_a_target_that_is_no_positive_number_is_refused(target: float) -> None:
    with pytest.raises(InvalidRequest) as refused:
        noise_multiplier(target, DELTA, 1.0, 10)
    assert refused.value.members["errors"][0]["pointer"] == "/privacy/target_epsilon"


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_delta_lies_strictly_between_zero_and_one(delta: float) -> None:
    with pytest.raises(InvalidRequest) as refused:
        noise_multiplier(1.0, delta, 0.1, 10)
    assert refused.value.members["errors"][0]["pointer"] == "/privacy/target_delta"


@pytest.mark.parametrize(
    ("target", "rate", "steps", "says"),
    [
        (100.0, 1.0, 1, "below 0.1"),
        (1e-4, 1.0, 10**7, "up to 100000"),
        (5.0, 1e-7, 1, "below 0.1"),
        (1e-4, 0.9, 10**6, "up to 100000"),
    ],
)
def test_a_target_out_of_reach_is_refused_with_the_reason(target: float, rate: float, steps: int, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as refused:
        noise_multiplier(target, DELTA, rate, steps)
    assert refused.value.members["errors"][0]["pointer"] == "/privacy/target_epsilon"


def test_a_delta_that_no_grid_resolves_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="double precision"):
        noise_multiplier(1.0, 1e-12, 0.01, 5000)


def test_others_that_cost_more_than_the_target_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="evaluation alone"):
        noise_multiplier(0.1, DELTA, 1.0, 10, [events.noisy_sums(1.0, 2.0, 1)])
