"""Truncated Poisson batches: the price against the mechanism itself, integrated, and against dp_accounting."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from numpy.typing import NDArray
from pydantic import ValidationError

from core.contracts.job_spec import JobSpec
from core.errors import InvalidRequest
from core.privacy import events, gdp, pld, rdp
from core.privacy.events import Leaf, Truncation, noisy_sums
from core.privacy.filters import RdpFilter
from core.privacy.mechanism import TrainingMechanism
from core.privacy.price_requests import PlanRequest, StudyCommon
from core.privacy.pricing import largest_that_fits, price
from scrimp import recompute
from tests.by_night import but
from tests.privacy.support import fits

X = np.linspace(-40.0, 40.0, 40_001)


def density(others: int, rate: float, most: int, sigma: float, *, joined: bool) -> NDArray[np.float64]:
    """The release's density at X, where the others add −1 each and one more record, if it is there, adds +1: summed
    over all draws of the others, with the batch truncated as the sampler does it."""
    total = np.zeros_like(X)
    for drawn in range(others + 1):
        chance = float(scipy.stats.binom.pmf(drawn, others, rate))
        cases = [(chance * (1.0 - rate if joined else 1.0), -float(min(drawn, most)))]
        if joined and drawn < most:
            cases.append((chance * rate, 1.0 - drawn))
        if joined and drawn >= most:
            taken = most / (drawn + 1)
            cases += [(chance * rate * taken, 1.0 - (most - 1)), (chance * rate * (1.0 - taken), -float(most))]
        for weight, mean in cases:
            total += weight * scipy.stats.norm.pdf(X, mean, sigma)
    return total


SMALL = [(6, 0.3, 2, 0.8), (6, 0.5, 3, 1.5), (8, 0.2, 4, 1.0), (5, 0.9, 1, 2.0)]


@pytest.mark.parametrize(("bound", "rate", "most", "sigma"), SMALL)
def test_the_mechanism_itself_costs_at_most_the_price(bound: int, rate: float, most: int, sigma: float) -> None:
    """For every number of records up to the bound, in both directions, δ at every ε and the divergence at three orders,
    by numerical integration of the densities."""
    event = noisy_sums(rate, sigma, 1, Truncation(records=bound, largest_batch=most))
    epsilons = [0.0, 0.1, 0.5, 1.0, 2.0, 4.0]
    losses = pld.losses(event, 1e-6)
    assert losses is not None
    priced = losses.deltas(epsilons)
    for others in range(bound):
        with_it, without = (density(others, rate, most, sigma, joined=joined) for joined in (True, False))
        assert scipy.integrate.trapezoid(with_it, X) == pytest.approx(1.0, abs=1e-9)
        for one, two in ((with_it, without), (without, with_it)):
            for epsilon, delta in zip(epsilons, priced, strict=True):
                found = scipy.integrate.trapezoid(np.maximum(one - math.exp(epsilon) * two, 0.0), X)
                assert found <= delta * (1 + 1e-6) + 1e-9
            inside = (one > 1e-250) & (two > 1e-250)
            logs = np.log(one[inside]), np.log(two[inside])
            for order in (2.0, 3.0, 4.0):
                moment = scipy.integrate.trapezoid(np.exp(order * logs[0] - (order - 1.0) * logs[1]), X[inside])
                assert math.log(moment) / (order - 1.0) <= rdp.rdp_at(event, order) * (1 + 1e-6) + 1e-9


def test_the_price_of_plain_poisson_would_be_too_small() -> None:
    """The check above has teeth: it finds that a truncated mechanism costs more than an untruncated one."""
    bound, rate, most, sigma = 6, 0.9, 2, 0.5
    plain = pld.losses(noisy_sums(rate, sigma, 1), 1e-6)
    with_it, without = (density(bound - 1, rate, most, sigma, joined=joined) for joined in (True, False))
    assert plain is not None
    assert (
        scipy.integrate.trapezoid(np.maximum(with_it - math.exp(5.0) * without, 0.0), X) > 5.0 * plain.deltas([5.0])[0]
    )


@pytest.mark.parametrize(
    ("bound", "rate", "most"), [(2064, 0.05, 150), (200, 0.3, 90), (10, 0.5, 10), (5000, 0.01, 300)]
)
def test_the_chance_of_a_full_batch_is_rounded_up(bound: int, rate: float, most: int) -> None:
    found = Truncation(records=bound, largest_batch=most).overflow(rate)
    with mpmath.workdps(60):
        q = mpmath.mpf(rate)
        exact = mpmath.fsum(
            mpmath.binomial(bound, k) * q**k * (1 - q) ** (bound - k) for k in range(most, min(bound, most + 400) + 1)
        )
        assert exact <= found <= exact * (1 + mpmath.mpf("1e-8")) + mpmath.mpf("1e-299")
    assert Truncation(records=bound, largest_batch=bound + 1).overflow(rate) == 0.0


@pytest.mark.parametrize("most", but([120, 150, 200, 2065], lambda most: most == 120))  # batches often overflow
def test_dp_accounting_agrees(most: int) -> None:
    """Its second part is a little larger, and counts only where batches often overflow; without overflow both are plain
    Poisson."""
    import dp_accounting as dp

    truncation = Truncation(records=2064, largest_batch=most)
    event = noisy_sums(0.05, 1.0, 100, truncation)
    accountant = dp.pld.PLDAccountant(value_discretization_interval=pld.GRID)
    accountant.compose(events.to_dp_event(event))
    theirs, ours = accountant.get_epsilon(1e-5), pld.epsilon(event, 1e-5)
    assert ours <= theirs * (1 + 1e-4) and theirs <= ours * 1.05
    plain = pld.epsilon(noisy_sums(0.05, 1.0, 100), 1e-5)
    assert plain <= ours * (1 + 1e-9)
    if most >= 200:
        assert ours == pytest.approx(plain, rel=1e-6)
    assert recompute.epsilon_of(event.model_dump(mode="json"), 1e-5, pld.GRID) == pytest.approx(ours, rel=1e-4)


def test_a_bound_above_all_records_costs_what_no_bound_costs() -> None:
    """No draw is larger, so every accountant takes it as plain Poisson; the filter's did not know it."""
    loose, plain = (noisy_sums(0.05, 1.0, 100, each) for each in (Truncation(records=2064, largest_batch=2065), None))
    assert RdpFilter(8.0).charge_event(loose) == RdpFilter(8.0).charge_event(plain)
    assert rdp.epsilon(loose, 1e-5) == rdp.epsilon(plain, 1e-5)


def test_the_rdp_filter_charges_the_mixture() -> None:
    """At order 8 by hand: ln((1 − w) e^{7 D(σ)} + w e^{7 D(σ/2)}) / 7 for each step."""
    truncation = Truncation(records=2064, largest_batch=150)
    w = truncation.overflow(0.05)
    free, taken = (rdp.rdp_at(noisy_sums(0.05, sigma, 1), 8.0) for sigma in (1.0, 0.5))
    wanted = 100 * math.log((1 - w) * math.exp(7 * free) + w * math.exp(7 * taken)) / 7
    charge = RdpFilter(8.0).charge_event(noisy_sums(0.05, 1.0, 100, truncation))
    assert wanted * 1e9 <= charge <= wanted * 1e9 * (1 + 1e-6) + 2
    assert charge > RdpFilter(8.0).charge_event(noisy_sums(0.05, 1.0, 100))
    full = Leaf(0.05, 1.0, overflow=1.0)
    assert rdp.divergence(full, 8.0) == pytest.approx(taken, rel=1e-12)
    assert gdp.mu_of_event(noisy_sums(0.05, 1.0, 1, truncation)) is None


def mechanism(**changes: Any) -> dict[str, Any]:
    return {
        "sampling": "poisson",
        "sample_rate": 0.05,
        "truncation": {"records": 2064, "largest_batch": 150},
        "steps": 100,
        "max_grad_norm": 1.0,
        "clipping": "flat",
        "expected_batch_size": 50,
    } | changes


def request(**changes: Any) -> PlanRequest:
    base = {"training": mechanism(), "target_epsilon": 1.0, "noise_multiplier": None, "target_delta": 1e-5}
    return PlanRequest.model_validate(base | {"filter": {"kind": "rdp", "order": 8.0}} | changes)


def test_a_price_meets_its_target_and_a_certificate_can_be_recomputed() -> None:
    priced = price(request())
    assert priced.mechanism is not None and priced.epsilon is not None and 0.999 <= priced.epsilon.value <= 1.0
    tree = priced.mechanism.event("train").model_dump(mode="json")
    assert recompute.expected_tree(priced.mechanism.model_dump(mode="json"), "train") == tree
    assert recompute.epsilon_of(tree, 1e-5, 1e-4) == pytest.approx(priced.epsilon.value, rel=1e-4)
    assert "at most 150 of 2064" in recompute.describe(tree)
    assert events.read(tree) == priced.mechanism.event("train")
    plain = price(request(training=mechanism(truncation=None)))
    assert plain.mechanism is not None
    assert plain.mechanism.training.noise_multiplier <= priced.mechanism.training.noise_multiplier
    largest = largest_that_fits(fits(request(), priced.charge.train)).epsilon
    assert largest == pytest.approx(1.0, rel=1e-2)


def test_what_is_not_priced_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="full-batch"):
        price(request(filter={"kind": "gdp", "order": None}))
    for bad in ({"sample_rate": 1.0}, {"sampling": "full_batch", "sample_rate": 1.0}):
        with pytest.raises(ValidationError, match="largest batch"):
            TrainingMechanism.model_validate(mechanism(**bad) | {"noise_multiplier": 1.0})
    common = {"target_delta": 1e-5, "unit": "example", "filter": {"kind": "rdp", "order": 8.0}}
    with pytest.raises(ValidationError, match="study"):
        StudyCommon.model_validate(common | {"training": mechanism()})
    spec: dict[str, Any] = {
        "dataset": "d",
        "optimizer": {"kind": "dp_sgd", "learning_rate": 0.1},
        "privacy": {"target_epsilon": 1.0},
        "sampling": {"kind": "poisson", "expected_batch_size": 50, "largest_batch": 150},
        "length": {"steps": 100},
    }
    JobSpec.model_validate(spec)
    for changes, why in (
        ({"hpo": {"strategy": "linear_scaling"}}, "study"),
        ({"privacy": None}, "private job"),
        ({"sampling": spec["sampling"] | {"largest_batch": 49}}, "at least"),
    ):
        with pytest.raises(ValidationError, match=why):
            JobSpec.model_validate(spec | changes)


def test_mechanisms_without_a_largest_batch_are_written_as_before() -> None:
    plain = TrainingMechanism.model_validate(mechanism(truncation=None) | {"noise_multiplier": 1.0})
    assert "truncation" not in plain.model_dump(mode="json")
    assert plain.event == noisy_sums(0.05, 1.0, 100)
