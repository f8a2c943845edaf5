"""Budgets are rounded down, charges up, and the golden numbers of jobs that fit under a cap."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.contracts.dataset_spec import TypicalJob
from core.errors import InvalidRequest
from core.privacy import events, filters, gdp, pld, rdp
from core.privacy.filters import GdpFilter, RdpFilter, choose_order, filter_of
from core.privacy.mechanism import MechanismConfig
from tests.privacy.support import DELTA, paper_jobs, release, request

JOB = paper_jobs(2.002)


def mechanism(sampling: str, batch: int, sigma: float, steps: int, noise_mu: float = 0.05) -> MechanismConfig:
    return request(sampling, batch, 20_000, steps, releases=[release(noise_mu, times=3)]).mechanism(sigma)


@pytest.mark.parametrize(("cap", "order", "jobs"), [(3.0, 6.0, 7), (8.0, 4.0, 42), (8.0, 6.0, 35)])
def test_golden_jobs_that_fit_at_a_fixed_order(cap: float, order: float, jobs: int) -> None:
    enforced = filter_of("rdp", order)
    assert enforced.budget(cap, DELTA) // enforced.charge_event(JOB) == jobs


@pytest.mark.parametrize(("cap", "basic", "tight"), [(3.0, 3, 8), (8.0, 8, 47)])
def test_golden_jobs_that_fit_by_the_figures_that_are_only_shown(cap: float, basic: int, tight: int) -> None:
    assert math.floor(cap / pld.epsilon(JOB, DELTA)) == basic
    assert pld.epsilon(paper_jobs(2.002, tight), DELTA) <= cap < pld.epsilon(paper_jobs(2.002, tight + 1), DELTA)


@pytest.mark.parametrize(("cap", "jobs"), [(3.0, 7), (8.0, 42)])
def test_the_chosen_order_fits_as_many_jobs_as_any(cap: float, jobs: int) -> None:
    typical = TypicalJob(epsilon=0.9111, expected_batch_size=512, epochs=20)
    enforced = filter_of("rdp", choose_order(cap, DELTA, 50_000, typical))
    assert enforced.budget(cap, DELTA) // enforced.charge_event(JOB) == jobs


@pytest.mark.parametrize("records", [5_000, 500_000])
def test_a_job_is_typical_by_default_in_batches_of_512(records: int) -> None:
    """Twenty epochs of them at a quarter of the cap; of full batches another order fits more."""
    in_batches, whole = (
        choose_order(8.0, DELTA, records, TypicalJob(epsilon=2.0, expected_batch_size=batch, epochs=20))
        for batch in (512, records)
    )
    assert choose_order(8.0, DELTA, records) == in_batches != whole


@pytest.mark.parametrize("cap", [20.0, 50.0])
def test_a_gdp_budget_leaves_four_roundings_of_the_cap(cap: float) -> None:
    """ε of a whole budget is rounded up by one of μ, so two of μ²: they fit, and two for the conversions."""
    whole = Fraction(gdp.mu_from_epsilon(cap, DELTA)) ** 2 * 10**12
    left = whole - filter_of("gdp").budget(cap, DELTA)
    assert -0.1 < left - whole * 4 / 10**12 < 1.1  # units: the floor's one, and some of float64's error
    assert whole / 10**12 > 4  # so that a rounding is several units
    assert filter_of("gdp").epsilon(math.floor(whole - left), DELTA) <= cap


def test_a_small_cap_has_a_budget_at_high_orders_only() -> None:
    for order in (6.0, 32.0, 64.0):
        with pytest.raises(InvalidRequest) as refused:
            filter_of("rdp", order).budget(0.1, DELTA)
        assert refused.value.members["errors"][0]["pointer"] == "/privacy/cap/epsilon"
    order = choose_order(0.1, DELTA, 20_000)
    assert order > 64.0
    assert filter_of("rdp", order).budget(0.1, DELTA) > 0


def test_a_cap_without_budget_at_any_order_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no budget under this cap at any order"):
        choose_order(0.003, DELTA, 50_000)


@pytest.mark.parametrize("records", [1, 10, 600, 10**6, 10**9, 10**12])
@pytest.mark.parametrize(("cap", "delta"), [(0.1, 1e-9), (4.0, 1e-5), (100.0, 1e-12)])
def test_an_order_is_found_for_any_size(records: int, cap: float, delta: float) -> None:
    order = choose_order(cap, delta, records)
    assert order in filters.ORDERS
    assert filter_of("rdp", order).budget(cap, delta) > 0


def test_a_typical_job_that_can_not_be_run_is_refused() -> None:
    with pytest.raises(InvalidRequest) as refused:
        choose_order(4.0, DELTA, 10**9, TypicalJob(epsilon=1.0, expected_batch_size=1, epochs=1.0))
    assert refused.value.members["errors"][0]["pointer"] == "/privacy/typical_job"


def test_a_typical_batch_larger_than_the_data_is_all_of_them() -> None:
    job = TypicalJob(epsilon=1.0, expected_batch_size=10_000, epochs=20.0)
    assert choose_order(4.0, DELTA, 100, job) == choose_order(4.0, DELTA, 100)


def test_a_typical_job_may_have_one_step() -> None:
    whole = TypicalJob(epsilon=1.0, expected_batch_size=100, epochs=0.4)
    assert filters._typical_plan(4.0, 100, whole) == (1.0, 1, 1.0)


@pytest.mark.parametrize(
    ("kind", "order"), [("rdp", None), ("rdp", 1.0), ("rdp", 1025.0), ("rdp", math.nan), ("pld", None)]
)
def test_unknown_filters_are_refused(kind: str, order: float | None) -> None:
    with pytest.raises(InvalidRequest):
        filter_of(kind, order)


def test_orders_are_taken_up_to_the_largest() -> None:
    assert filter_of("rdp", 1024.0).order == 1024.0 == max(filters.ORDERS)


def test_each_filter_names_its_currency() -> None:
    exact, renyi = filter_of("gdp"), filter_of("rdp", 6)
    assert (exact.kind, exact.order, exact.unit) == ("gdp", None, "mu^2 * 1e-12")
    assert (renyi.kind, renyi.order, renyi.unit) == ("rdp", 6.0, "rdp(order) * 1e-9")


def test_gdp_admits_full_batch_only() -> None:
    with pytest.raises(InvalidRequest, match="full-batch") as refused:
        GdpFilter().charge(mechanism("poisson", 512, 1.0, 10), "train")
    assert refused.value.members["errors"][0]["pointer"] == "/sampling/kind"
    assert GdpFilter().charge(mechanism("poisson", 512, 1.0, 10), "holdout") > 0


@given(sigma=st.floats(0.1, 1e5), steps=st.integers(1, 10**7), noise_mu=st.floats(1e-5, 10.0))
def test_gdp_charges_are_never_below_the_exact_rational(sigma: float, steps: int, noise_mu: float) -> None:
    config = mechanism("full_batch", 20_000, sigma, steps, noise_mu)
    for account, exact in (("train", steps / Fraction(sigma) ** 2), ("holdout", 3 * Fraction(noise_mu) ** 2)):
        charge = GdpFilter().charge(config, "train" if account == "train" else "holdout")
        units = exact * 10**12
        assert units <= charge <= units * (1 + Fraction(1, 10**11)) + 1


@settings(max_examples=60)
@given(sigma=st.floats(0.1, 1e5), steps=st.integers(1, 10**7), order=st.sampled_from(filters.ORDERS))
def test_rdp_charges_of_gaussians_are_never_below_the_exact_rational(sigma: float, steps: int, order: float) -> None:
    charge = RdpFilter(order).charge(mechanism("full_batch", 20_000, sigma, steps), "train")
    units = Fraction(order) * steps / (2 * Fraction(sigma) ** 2) * 10**9
    assert units <= charge <= units * (1 + Fraction(1, 10**11)) + 1


@settings(max_examples=60)
@given(
    sigma=st.floats(-1.0, 5.0).map(lambda x: 10.0**x),
    batch=st.integers(1, 19_999),
    steps=st.integers(1, 10**6),
    order=st.sampled_from([order for order in filters.ORDERS if order.is_integer()]),
)
def test_rdp_charges_of_samples_are_never_below_a_sum_without_cancellation(
    sigma: float, batch: int, steps: int, order: float
) -> None:
    """A_α − 1 = Σ_{i≥2} C(α, i) qⁱ (1−q)^{α−i} (e^{(i²−i)/2σ²} − 1): all terms positive, so exact in floats."""
    config = mechanism("poisson", batch, sigma, steps)
    charge = RdpFilter(order).charge(config, "train")
    q, a = batch / 20_000, int(order)
    logs = []
    for i in range(2, a + 1):
        exponent = (i * i - i) / (2 * sigma * sigma)
        growth = exponent + math.log(-math.expm1(-exponent))
        choose = math.lgamma(a + 1) - math.lgamma(i + 1) - math.lgamma(a - i + 1)
        logs.append(choose + i * math.log(q) + (a - i) * math.log1p(-q) + growth)
    top = max(logs)
    log_excess = top + math.log(math.fsum(math.exp(x - top) for x in logs))
    log_moment = math.log1p(math.exp(log_excess)) if log_excess < 700 else log_excess
    exact = steps * log_moment / (a - 1) * 1e9
    assert exact * (1 - 1e-10) <= charge <= exact * (1 + 1e-9) + 1e-4 * steps * 1e-6 * 1e9 / 1e3 + 2


@pytest.mark.parametrize("enforced", [GdpFilter(), RdpFilter(6.0), RdpFilter(256.0), RdpFilter(1.5)])
def test_part_of_a_job_never_costs_more_than_the_whole(enforced: filters.Filter) -> None:
    charges = [enforced.charge(mechanism("full_batch", 20_000, 3.0, steps), "train") for steps in (1, 2, 49, 50)]
    assert charges == sorted(charges)
    assert 50 * charges[0] >= charges[-1] > 0


@given(
    cap=st.floats(-1.0, 2.0).map(lambda x: 10.0**x), log_delta=st.floats(-15.0, -2.01), order=st.floats(1.01, 1024.0)
)
def test_a_spent_budget_never_reads_as_more_than_the_cap(cap: float, log_delta: float, order: float) -> None:
    delta = 10.0**log_delta
    for enforced in (GdpFilter(), RdpFilter(order)):
        try:
            budget = enforced.budget(cap, delta)
        except InvalidRequest:
            continue
        assert enforced.epsilon(budget, delta) <= cap
        # One unit more than was rounded off is beyond the cap.
        assert enforced.epsilon(budget + 2 + budget // 10**10 + int(1e9 * 1e-9 * cap), delta) > cap * (1.0 - 1e-8)


@given(amount=st.integers(1, 10**13), log_delta=st.floats(-15.0, -2.01))
def test_a_printed_epsilon_is_never_below_what_was_spent(amount: int, log_delta: float) -> None:
    delta = 10.0**log_delta
    with mpmath.workdps(50):
        mu, epsilon = mpmath.sqrt(mpmath.mpf(amount) / 10**12), mpmath.mpf(GdpFilter().epsilon(amount, delta))
        assert mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu) <= delta
    order = 6.0
    exact = amount * 1e-9 + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
    assert RdpFilter(order).epsilon(amount, delta) >= max(exact, 0.0)


def test_the_conversion_is_rounded_up_in_proportion_to_its_largest_term() -> None:
    with mpmath.workdps(40):
        a, delta = mpmath.mpf(1.25), mpmath.mpf(1e-15)
        exact = mpmath.log(1 - 1 / a) - (mpmath.log(delta) + mpmath.log(a)) / (a - 1)
        added = float(RdpFilter(1.25)._conversion(1e-15) - exact)
    assert added > 100 * filters._ROUNDING > 0


def test_nothing_spent_is_nothing() -> None:
    assert GdpFilter().epsilon(0, DELTA) == 0.0
    assert RdpFilter(6.0).epsilon(0, DELTA) == 0.0


def test_the_conversion_is_the_librarys() -> None:
    from dp_accounting.rdp import compute_epsilon

    for order in (1.25, 6.0, 256.0):
        divergence = rdp.rdp_at(events.noisy_sums(1.0, 2.0, 3), order)
        theirs = compute_epsilon([order], [divergence], DELTA)[0]
        assert RdpFilter(order).epsilon(math.ceil(divergence * 1e9), DELTA) == pytest.approx(theirs, abs=2e-9)
