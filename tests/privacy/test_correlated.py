"""Correlated noise and cyclic batches: the price against brute force in exact fractions, and what a hold covers."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from core.contracts.job_spec import JobSpec
from core.privacy import events, gdp, rdp
from core.privacy.correlated_price import CorrelatedMechanism
from core.privacy.filters import GdpFilter, RdpFilter
from core.privacy.mechanism import TrainingMechanism
from core.privacy.price_requests import PlanRequest
from core.privacy.pricing import largest_that_fits, price
from scrimp import recompute
from tests.privacy.support import fits

DECAYS = (Fraction(1, 8), Fraction(1, 2), Fraction(15, 16))


def mechanism(steps: int = 100, cycle: int | None = 10, decay: float | None = 0.5, **more: Any) -> TrainingMechanism:
    made: dict[str, Any] = {
        "sampling": "cyclic" if cycle else "full_batch",
        "sample_rate": 1.0,
        "steps": steps,
        "noise_multiplier": 2.0,
        "max_grad_norm": 1.0,
        "clipping": "flat",
        "expected_batch_size": 100,
    }
    made |= {"cycle": cycle} if cycle else {}
    made |= {"noise": {"decay": decay}} if decay is not None else {}
    return TrainingMechanism.model_validate(made | more)


def squared(decay: Fraction, steps: int, taken: tuple[int, ...]) -> Fraction:
    """Σ_τ c_τ², step by step: c_τ = λ c_{τ−1} + [the unit takes part at τ]."""
    total, seen = Fraction(0), Fraction(0)
    for step in range(1, steps + 1):
        seen = decay * seen + (step in taken)
        total += seen**2
    return total


def patterns(steps: int, apart: int) -> list[tuple[int, ...]]:
    """All ways to take part in some of the steps, at least `apart` apart."""
    found: list[tuple[int, ...]] = []
    for some in itertools.product((0, 1), repeat=steps):
        places = tuple(at + 1 for at, each in enumerate(some) if each)
        if all(two - one >= apart for one, two in itertools.pairwise(places)):
            found.append(places)
    return found


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("apart", [1, 2, 3, 5])
def test_no_pattern_of_taking_part_costs_more_than_is_charged(decay: Fraction, apart: int) -> None:
    """Every pattern of ten steps, in exact fractions: Σ c² ≤ k · stretch², also where it ends after any step."""
    stretch = Fraction(CorrelatedMechanism(decay=float(decay)).stretch(apart))
    for taken in patterns(10, apart):
        assert squared(decay, 10, taken) <= len(taken) * stretch**2
        assert all(
            squared(decay, steps, taken) <= sum(each <= steps for each in taken) * stretch**2 for steps in range(1, 10)
        )


@pytest.mark.parametrize("decay", [0.999, math.nextafter(0.999, 0.0), 0.9985, 0.99, 0.5, 1e-9])
def test_rounding_takes_a_small_part_of_its_margin(decay: float) -> None:
    """The stretch in exact fractions; close to 1, 1 − λᵇ loses ten bits."""
    exact = Fraction(decay)
    for apart in (*range(1, 12), 30, 100):
        again = exact**apart
        square = (1 + again) / ((1 - exact**2) * (1 - again))
        found = Fraction(CorrelatedMechanism(decay=decay).stretch(apart)) ** 2 / square
        most = 2.0**-40
        assert 1 + 2 * Fraction(0.9 * most) <= found <= 1 + 2 * Fraction(1.1 * most)


@pytest.mark.parametrize("decay", DECAYS)
def test_a_smaller_stretch_would_be_too_small(decay: Fraction) -> None:
    """The bound is tight: six in a hundred less, and a job of 800 participations would cost more than is charged."""
    for apart in (1, 4, 20):
        steps, seen, total = apart * 800, 0.0, 0.0
        for step in range(steps):
            seen = float(decay) * seen + (step % apart == 0)
            total += seen * seen
        charged = 800 * CorrelatedMechanism(decay=float(decay)).stretch(apart) ** 2
        assert 0.94 * charged <= total <= charged


@pytest.mark.parametrize(("decay", "cycle", "steps"), [(0.9, 25, 500), (0.5, 10, 95), (0.99, 8, 64), (0.3, None, 40)])
def test_the_price_covers_the_matrix_mechanism_by_dp_accounting(decay: float, cycle: int | None, steps: int) -> None:
    """The whole mechanism written as matrices: C = (I − λ shift)⁻¹, its columns summed over a unit's steps.

    One Gaussian with that sensitivity costs at most what is charged, and not much less where a cycle is longer than the
    memory.
    """
    import dp_accounting as dp

    made = mechanism(steps, cycle, decay)
    inverse = np.eye(steps) - decay * np.eye(steps, k=-1)
    strategy = np.linalg.inv(inverse)
    apart = cycle or 1
    worst = max(np.linalg.norm(strategy[:, first::apart].sum(axis=1)) for first in range(apart))
    generator = np.random.default_rng(0)
    for _ in range(50):  # adversaries whose contributions point in many directions
        directions = generator.normal(size=(len(range(0, steps, apart)), 3))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        assert np.linalg.norm(strategy[:, ::apart] @ directions) <= worst * (1 + 1e-12)
    epsilon = gdp.epsilon_from_mu(gdp.mu_of_event(made.event) or 0.0, 1e-5)
    truth = dp.get_epsilon_gaussian(made.gradient_noise_multiplier / worst, 1e-5)
    assert truth <= epsilon
    if (cycle or 40) * (1 - decay) >= 2:  # elsewhere the planner warns: memory is longer than a cycle
        assert epsilon <= 1.2 * truth


def test_the_event_is_that_of_each_participation() -> None:
    made = mechanism(95, 10)
    assert made.event == events.noisy_sums(1.0, 2.0, 10) and made.participations == 10
    assert made.gradient_noise_multiplier == 2.0 * CorrelatedMechanism(decay=0.5).stretch(10)
    assert mechanism(95, 10, None).gradient_noise_multiplier == 2.0
    assert mechanism(95, None, 0.5).event == events.noisy_sums(1.0, 2.0, 95)
    assert made.step_noise_multiplier == pytest.approx(made.gradient_noise_multiplier * math.sqrt(1.25), rel=1e-12)


def test_both_filters_charge_it_as_gaussians() -> None:
    made = mechanism(100, 10)
    assert GdpFilter().charge_event(made.event) == GdpFilter().charge_event(events.noisy_sums(1.0, 2.0, 10))
    assert RdpFilter(8.0).charge_event(made.event) == math.ceil(8.0 * 10 / (2 * 4.0) * 1e9 * (1 + 1e-12))
    assert rdp.rdp_at(made.event, 8.0) == pytest.approx(10.0, rel=1e-12)


def test_it_is_stored_and_older_mechanisms_are_written_as_before() -> None:
    made = mechanism()
    assert TrainingMechanism.model_validate(made.model_dump(mode="json")) == made
    plain = mechanism(cycle=None, decay=None).model_dump(mode="json")
    assert not {"cycle", "noise"} & plain.keys()


@settings(max_examples=200)
@given(st.data())
def test_a_hold_covers_repeated_steps_under_other_keys(data: st.DataObject) -> None:
    """However the covered steps fall into segments, no unit takes part more often than was held or is charged."""
    steps, cycle = data.draw(st.integers(1, 60)), data.draw(st.integers(2, 12))
    segments = data.draw(st.integers(1, 5))
    made = mechanism(steps, cycle)
    covered = made.covers(segments)
    assert 0 <= covered <= steps and made.covers(1) == steps
    cuts = sorted(data.draw(st.lists(st.integers(0, covered), min_size=segments - 1, max_size=segments - 1)))
    parts = [end - begin for begin, end in itertools.pairwise([0, *cuts, covered])]
    taken = sum(-(-part // cycle) for part in parts)
    assert taken <= made.participations or covered == 0
    if covered:
        assert taken <= made.started(covered, segments).participations <= made.participations


REFUSED: dict[str, dict[str, Any]] = {
    "under Poisson sampling": {"sampling": {"kind": "poisson", "expected_batch_size": 5}},
    "one clipping norm": {"clipping": {"kind": "adaptive"}},
    "one query": {
        "optimizer": {
            "kind": "dp2_rmsprop",
            "learning_rate": 0.1,
            "learning_rate_adaptive": 0.1,
            "max_grad_norm_adaptive": 1.0,
            "delay": 5,
        }
    },
    "only with a private job": {"privacy": None},
    "study": {"hpo": {"strategy": "linear_scaling"}},
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_no_theorem_prices_is_refused_by_name(why: str) -> None:
    spec = {
        "dataset": "d",
        "optimizer": {"kind": "dp_sgd", "learning_rate": 0.1},
        "privacy": {"target_epsilon": 1.0},
        "sampling": {"kind": "cyclic", "batches": 10},
        "noise": {"kind": "correlated", "decay": 0.9},
        "length": {"steps": 100},
    }
    assert JobSpec.model_validate(spec).noise is not None
    changes = dict(REFUSED[why])
    with pytest.raises(ValidationError, match=why):
        JobSpec.model_validate(spec | changes)


@pytest.mark.parametrize(
    "bad",
    [
        {"sampling": "poisson", "sample_rate": 0.5, "cycle": None},
        {"sampling": "full_batch"},
        {"cycle": None},
        {"sample_rate": 0.5},
        {
            "adaptive": {"target_quantile": 0.5, "learning_rate": 0.2, "count_noise_multiplier": 20.0},
            "clipping": "adaptive",
        },
    ],
)
def test_a_mechanism_that_nothing_prices_cannot_be_built(bad: dict[str, Any]) -> None:
    made = mechanism().model_dump(mode="json")
    with pytest.raises(ValidationError):
        TrainingMechanism.model_validate(made | bad)


def request(**changes: Any) -> PlanRequest:
    made = mechanism().model_dump(mode="json", exclude={"noise_multiplier"})
    base = {"training": made, "target_epsilon": 1.0, "noise_multiplier": None, "target_delta": 1e-5}
    return PlanRequest.model_validate(base | {"filter": {"kind": "gdp", "order": None}} | changes)


def test_a_price_meets_its_target_and_a_certificate_can_be_recomputed() -> None:
    priced = price(request())
    assert priced.mechanism is not None and priced.epsilon is not None and 0.999 <= priced.epsilon.value <= 1.0
    training = priced.mechanism.training
    mu = gdp.mu_from_epsilon(1.0, 1e-5)
    assert training.noise_multiplier == pytest.approx(math.sqrt(10) / mu, rel=1e-6)
    tree = priced.mechanism.event("train").model_dump(mode="json")
    stored = priced.mechanism.model_dump(mode="json")
    assert recompute.expected_tree(stored, "train") == tree
    assert recompute.epsilon_of(tree, 1e-5, 1e-4) == pytest.approx(priced.epsilon.value, abs=1e-9)
    body = {"gradient_noise_multiplier": training.gradient_noise_multiplier}
    assert recompute.check_count(body, stored["training"]) == []
    less = {"gradient_noise_multiplier": training.gradient_noise_multiplier * (1 - 1e-9)}
    assert recompute.check_count(less, stored["training"]) != []


def test_the_largest_that_fits_does_fit() -> None:
    largest = largest_that_fits(fits(request(), 10**11)).epsilon
    assert largest is not None
    assert price(request(target_epsilon=largest)).charge.train <= 10**11
    assert price(request(target_epsilon=1.001 * largest)).charge.train > 10**11
