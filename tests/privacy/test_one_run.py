"""Bounds from right guesses: wrong as seldom as they say, whatever depends on what."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize

from core.privacy import gdp, one_run

EPSILONS = (0.0, 0.5, 1.0, 2.0)


def most_likely(canaries: int, guesses: int, right: int, epsilons: tuple[float, ...], deltas: list[float]) -> float:
    """The largest P(W ≥ right) that the inequalities of core.privacy.one_run allow, by linear programming."""
    levels = np.arange(guesses + 1)
    rows, bounds = [], []
    for i in range(1, guesses + 1):
        true = np.where(levels >= i, levels, 0) / canaries
        false = np.where(levels >= i - 1, guesses - levels, 0) / canaries
        for epsilon, delta in zip(epsilons, deltas, strict=True):
            rows += [true - math.exp(epsilon) * false, true - math.exp(-epsilon) * false]
            bounds += [delta, 1.0 - math.exp(-epsilon) * (1.0 - delta)]
    found = optimize.linprog(
        -(levels >= right).astype(float),
        A_ub=np.array(rows),
        b_ub=np.array(bounds),
        A_eq=np.ones((1, guesses + 1)),
        b_eq=[1.0],
    )
    assert found.success
    return float(-found.fun)


@pytest.mark.parametrize(("canaries", "guesses", "right"), [(12, 12, 10), (20, 10, 9), (40, 8, 8), (30, 20, 16)])
def test_the_recursion_finds_what_a_linear_program_finds(canaries: int, guesses: int, right: int) -> None:
    """So no distribution of right guesses that the claim allows has more mass at or above `right`."""
    deltas = [gdp.delta_from_mu(1.0, each) for each in EPSILONS]
    most = most_likely(canaries, guesses, right, EPSILONS, deltas)
    inverse = one_run.of_curve(EPSILONS, deltas)
    assert 0.0 < most < 1.0
    assert one_run.refuted(inverse, canaries, guesses, right, most * 1.01)
    assert not one_run.refuted(inverse, canaries, guesses, right, most * 0.99)


def test_the_curve_of_a_gaussian_is_its_inverse() -> None:
    epsilons = np.linspace(0.0, 8.0, 2000).tolist()
    inverse = one_run.of_curve(epsilons, [gdp.delta_from_mu(1.0, each) for each in epsilons])
    for rate in (1e-6, 0.01, 0.3, 0.7, 0.99):
        assert inverse(rate) == pytest.approx(one_run.gaussian(1.0)(rate), rel=1e-3, abs=1e-6)
        assert inverse(rate) <= one_run.gaussian(1.0)(rate) + 1e-9, "fewer points allow more"


@pytest.mark.parametrize("mu", [0.268, 1.0, 3.0])
def test_a_bound_exceeds_the_truth_in_at_most_one_of_forty_runs(mu: float) -> None:
    """Of 1,000 Gaussian scores the highest and lowest tenth are guessed. In 200 runs 5 wrong bounds are to be expected
    at most; 14 have probability 10⁻³ even then."""
    generator, wrong = np.random.default_rng(3), 0
    for _ in range(200):
        inside = generator.random(1000) < 0.5
        order = np.argsort(generator.standard_normal(1000) + mu * inside)
        right = int(inside[order[-100:]].sum() + (~inside[order[:100]]).sum())
        wrong += one_run.refuted(one_run.gaussian(mu), 1000, 200, right, 0.025)
    assert wrong <= 13


def test_a_mechanism_that_tells_all_or_nothing_is_not_accused() -> None:
    """With probability δ it tells every coin, else none: (0, δ)-DP. All guesses are right with probability δ."""
    told = one_run.of_curve([0.0], [0.03])
    assert not one_run.refuted(told, 1000, 200, 200, 0.025)
    assert one_run.refuted(told, 1000, 1000, 1000, 0.05)


def test_more_right_guesses_show_more() -> None:
    shown = [one_run.mu_at_least(1000, 200, right, 0.025) for right in range(100, 201, 10)]
    assert shown == sorted(shown) and shown[0] == 0.0 and shown[-1] == pytest.approx(1.417, abs=1e-3)
