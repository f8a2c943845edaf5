"""The prices of selections of random size: against dp_accounting, the paper's pure-DP limits, and exact sums."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant

from benchmarks.selection import (
    PoissonRuns,
    TruncatedNegativeBinomial,
    affordable,
    converted,
    linear_scaling,
    price,
    revealed,
)

ORDERS = np.concatenate([np.linspace(1.1, 64.0, 300), np.geomspace(65.0, 5e3, 200)])


@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("mean", [2.0, 10.0])
def test_prices_are_dp_accounting_s(eta: float, mean: float) -> None:
    """Its λ̂ is one of its orders, ours is free: ours is at most its, and near it."""
    accountant = RdpAccountant(ORDERS)
    accountant.compose(RepeatAndSelectDpEvent(GaussianDpEvent(2.0), mean, eta))
    runs = TruncatedNegativeBinomial.of_mean(eta, mean)
    assert runs.mean == pytest.approx(mean)
    for order, theirs in list(zip(ORDERS, accountant._rdp, strict=True))[20::60]:
        ours = price(runs, 0.5, order)
        assert theirs * 0.99 - 1e-3 <= ours <= theirs + 1e-6


@pytest.mark.parametrize(("eta", "factor"), [(0.0, 2.0), (0.5, 2.5), (1.0, 3.0)])
def test_the_limit_of_pure_privacy_is_the_paper_s(eta: float, factor: float) -> None:
    """(2 + η) ε: for geometric K Liu & Talwar's 3 ε."""
    runs = TruncatedNegativeBinomial.of_mean(eta, 10.0)
    assert runs.rdp(lambda _: 0.3, 1e9) == pytest.approx(factor * 0.3, rel=1e-4)


def test_no_search_costs_less_than_its_run() -> None:
    for runs in (TruncatedNegativeBinomial.of_mean(0.0, 3.0), PoissonRuns(3.0)):
        for order in (2.0, 8.0, 32.0):
            assert price(runs, 0.3, order) > order * 0.3**2 / 2.0
    mu = affordable(runs, 1.0, ORDERS)
    assert min(converted(price(runs, mu, order), order) for order in ORDERS) == pytest.approx(1.0, abs=1e-3)


def test_the_study_s_final_run_is_the_specification_s() -> None:
    from core.privacy.gdp import epsilon_from_mu

    assert epsilon_from_mu(linear_scaling(1.0), 1e-5) == pytest.approx(0.8790, abs=1e-4)


@pytest.mark.parametrize("eta", [-0.5, 0.0, 1.0])
def test_the_theorem_holds_for_randomized_response_and_only_if_k_is_hidden(eta: float) -> None:
    runs = TruncatedNegativeBinomial.of_mean(eta, 5.0)
    for order in (2.0, 8.0):
        found = revealed(runs, 1.0, order)
        assert found.hidden <= found.bound
        assert found.shown > found.bound
    assert revealed(runs, 1.0, 8.0).shown == math.inf
