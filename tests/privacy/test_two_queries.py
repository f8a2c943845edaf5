"""Steps that query their batch twice: what they cost, against dp_accounting, and what a hold covers."""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import pytest

from core.contracts.job_spec import JobSpec
from core.privacy import calibration, events, gdp, pld, rdp
from core.privacy.derive import delayed_of
from core.privacy.events import of_two_queries
from core.privacy.mechanism import DelayedMechanism, TrainingMechanism
from core.privacy.price_requests import PlanRequest
from core.privacy.pricing import largest_that_fits, price
from tests.privacy.support import fits
from tests.privacy.test_recompute import SCRIPT

EXTRA = {"variant": "extra_query", "delay_sgd": 10, "delay_adaptive": 10, "max_grad_norm_adaptive": 3.0}


def training(steps: int = 100, sigma: float = 2.0, rate: float = 1.0, **delayed: Any) -> TrainingMechanism:
    return TrainingMechanism(
        sampling="full_batch" if rate == 1.0 else "poisson",
        sample_rate=rate,
        steps=steps,
        noise_multiplier=sigma,
        max_grad_norm=1.0,
        clipping="flat",
        expected_batch_size=100,
        delayed=DelayedMechanism.model_validate(EXTRA | delayed),
    )


def request(rate: float = 0.01, steps: int = 100, **changes: Any) -> PlanRequest:
    mechanism = training(steps, 1.0, rate).model_dump(exclude={"noise_multiplier"})
    base = {"training": mechanism, "target_epsilon": None, "noise_multiplier": None, "target_delta": 1e-5}
    kind = {"kind": "rdp", "order": 8.0} if rate < 1.0 else {"kind": "gdp", "order": None}
    return PlanRequest.model_validate(base | {"filter": kind} | changes)


@pytest.mark.parametrize(("steps", "delay", "single"), [(100, 10, 10), (101, 10, 11), (9, 10, 1), (7, 1, 7), (1, 3, 1)])
def test_all_but_every_sth_step_make_two_queries(steps: int, delay: int, single: int) -> None:
    made = training(steps, delay_sgd=delay)
    queries = [len(made.norms(step)) for step in range(1, steps + 1)]
    assert queries.count(1) == single == math.ceil(steps / delay) and made.double_steps() == steps - single
    assert queries[0] == 1 and made.norms(1) == (1.0,) and (delay == 1 or steps == 1 or made.norms(2) == (1.0, 3.0))


@pytest.mark.parametrize("variant", ["delayed", "noise_first"])
def test_phases_cost_what_plain_steps_cost(variant: str) -> None:
    made = training(variant=variant, delay_sgd=2, delay_adaptive=3)
    assert [made.norms(step)[0] for step in range(1, 8)] == [1.0, 1.0, 3.0, 3.0, 3.0, 1.0, 1.0]
    assert made.event == events.noisy_sums(1.0, 2.0, 100)


def test_full_batch_is_exact() -> None:
    """10 steps at σ and 90 at σ/√2 are (√(10 + 180)/σ)-GDP."""
    tree = training().event
    assert gdp.mu_of_event(tree) == pytest.approx(math.sqrt(190) / 2.0, rel=1e-12)
    assert 2 / of_two_queries(2.0) ** 2 >= 4 / 2.0**2  # rounded to the safe side


def test_poisson_is_what_dp_accounting_says_of_ten_and_ninety() -> None:
    import dp_accounting as dp

    tree = training(rate=0.01, sigma=1.0).event
    accountant = dp.pld.PLDAccountant(value_discretization_interval=pld.GRID)
    accountant.compose(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.0)), 10)
    accountant.compose(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.0 / math.sqrt(2))), 90)
    assert pld.epsilon(tree, 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-6)
    renyi = dp.rdp.RdpAccountant()
    renyi.compose(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.0)), 10)
    renyi.compose(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.0 / math.sqrt(2))), 90)
    assert pld.epsilon(tree, 1e-5) <= rdp.epsilon(tree, 1e-5)[0] <= renyi.get_epsilon(1e-5) * 1.02
    plain = events.noisy_sums(0.01, 1.0, 100)
    assert pld.epsilon(tree, 1e-5) > pld.epsilon(plain, 1e-5)


@pytest.mark.parametrize("rate", [0.01, 1.0])
def test_the_price_meets_its_target_and_is_dearer_than_plain(rate: float) -> None:
    priced = price(request(rate, target_epsilon=1.0))
    assert priced.epsilon is not None and 0.999 <= priced.epsilon.value <= 1.0
    asked = request(rate, target_epsilon=1.0)
    training = asked.training.model_copy(update={"delayed": None})
    plain = price(asked.model_copy(update={"training": training})).mechanism
    stored = priced.mechanism
    assert stored is not None and plain is not None
    assert stored.training.noise_multiplier > 1.2 * plain.training.noise_multiplier
    event = stored.event("train")
    assert priced.charge.train == asked.filter.build().charge_event(event)
    found = importlib.util.spec_from_file_location("recompute_certificate", SCRIPT)
    assert found is not None and found.loader is not None
    script = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)
    tree = event.model_dump(mode="json")
    assert script.expected_tree(stored.model_dump(mode="json"), "train") == tree
    assert script.epsilon_of(tree, 1e-5, 1e-4) == pytest.approx(priced.epsilon.value, abs=1e-6)


def test_the_largest_that_fits_does_fit() -> None:
    largest = largest_that_fits(fits(request(1.0), 10**12)).epsilon
    assert largest is not None
    assert price(request(1.0, target_epsilon=largest)).charge.train <= 10**12
    assert price(request(1.0, target_epsilon=1.001 * largest)).charge.train > 10**12


def test_too_little_noise_for_two_queries_is_refused() -> None:
    from core.errors import InvalidRequest

    with pytest.raises(InvalidRequest, match="two queries"):
        price(request(1.0, steps=2, noise_multiplier=0.12, target_delta=1e-3))


@pytest.mark.parametrize("rate", [0.01, 1.0])
def test_where_steps_may_be_repeated_the_price_covers_the_most_expensive(rate: float) -> None:
    made = training(57, 1.0, rate)
    filter_ = request(rate).filter.build()
    whole = filter_.charge_event(made.event)
    worst = made.started(made.covers(2), segments=2)
    assert filter_.charge_event(worst.event) <= whole
    assert made.at_its_most_expensive().noise_multiplier == of_two_queries(1.0)
    plain = made.model_copy(update={"delayed": None})
    assert plain.at_its_most_expensive() == plain and plain.covers(2) == made.covers(1) == 57


@pytest.mark.parametrize("steps", [1, 2, 7, 11, 30])
def test_calibration_takes_double_steps(steps: int) -> None:
    found = calibration.calibrate(2.0, 1e-5, 1.0, steps, double_steps=steps - 1)
    tree = events.gradient_sums(1.0, found.noise_multiplier, steps, steps - 1)
    assert gdp.epsilon_from_mu(gdp.mu_of_event(tree) or 0.0, 1e-5) == pytest.approx(2.0, rel=1e-6)


def test_only_delayed_preconditioners_change_the_mechanism() -> None:
    for kind, more in (("dp_adam", {}), ("scale_then_privatize", {})):
        spec = {"dataset": "d", "optimizer": {"kind": kind, "learning_rate": 0.1, **more}, "privacy": None}
        assert delayed_of(JobSpec.model_validate(spec | {"length": {"steps": 1}}).optimizer) is None
