"""The prices of selections of random size: against dp_accounting, the paper's pure-DP limits, and exact sums."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant
from numpy.typing import NDArray
from scipy import special

from benchmarks.selection import (
    SCORE_MU,
    Adaptive,
    Lemma,
    OnSubset,
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


@pytest.mark.parametrize("share", [0.02, 0.1])
def test_a_subset_of_one_run_costs_a_sampled_gaussian(share: float) -> None:
    """dp_accounting's price for whole orders; the factor 3 of the opposite direction is all that is above it."""
    orders, mu = [2, 4, 18], 0.5
    accountant = RdpAccountant(orders)
    accountant.compose(PoissonSampledDpEvent(share, GaussianDpEvent(1.0 / mu)))
    for order, theirs in zip(orders, accountant._rdp, strict=True):
        ours = OnSubset(Lemma("one run", (1,)), share).rdp(mu, order) - order * (mu**2 - SCORE_MU**2) / 2.0
        assert theirs - 1e-9 <= ours <= theirs + math.log(3.0) / (order - 1) and (order > 2 or ours < theirs + 1e-4)


def test_densities_that_do_not_move_cost_nothing() -> None:
    blind = Lemma("three at most", (4, 2, 1))
    for order in (2.0, 8.0, 32.0):
        assert Adaptive(blind, 1.0).rdp(0.3, order) == pytest.approx(blind.rdp(0.3, order), rel=0.02)


@pytest.mark.parametrize("mu", [0.3, 1.0, 4.0])
def test_a_selection_that_follows_its_first_run_costs_at_most_the_price(mu: float) -> None:
    """Exact sums: two settings, of which the first run's score makes one likelier for the others; K is at most 3."""
    weights, ratio = (4, 2, 1), 1.5
    mine, theirs = (_best_of_followers(weights, ratio, shift) for shift in (mu, 0.0))
    for order in (2.0, 8.0):
        price_of_both = Adaptive(Lemma("three at most", weights), ratio).rdp(mu, order)
        for one, other in ((mine, theirs), (theirs, mine)):
            logs = order * np.log(one) + (1.0 - order) * np.log(other)
            assert 0.0 < np.logaddexp.reduce(logs) / (order - 1.0) <= price_of_both


def _best_of_followers(weights: tuple[int, ...], ratio: float, shift: float) -> NDArray[np.float64]:
    """The law of the best (score, setting): settings 0 and 1, scores N(setting/2 + shift, 1), in cells."""
    cells = np.linspace(-4.0, 8.0, 61)
    shares = np.array([np.diff(special.ndtr(np.r_[-np.inf, cells, np.inf] - at / 2.0 - shift)) for at in (0, 1)])
    likelier = np.array([ratio, 1.0]) / (
        ratio + 1.0
    )  # densities of 2 ratio/(1 + ratio) and 2/(1 + ratio) times the base's
    first = (0.5 * shares).T.ravel()  # by score, then by setting
    below = np.cumsum([(each[:, None] * shares).T.ravel() for each in (likelier, likelier[::-1])], axis=1)
    total = np.zeros(len(first))
    for k, weight in enumerate(weights, 1):
        for at, chance in enumerate(first):
            others = below[int(at > len(first) // 2)]
            total[at:] += weight / sum(weights) * chance * others[at:] ** (k - 1)
    return np.diff(np.r_[0.0, total])
