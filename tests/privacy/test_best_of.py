"""The best of a secret number of runs: its price against the mechanism itself, integrated, and against its theorems."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from benchmarks import selection
from core.contracts.hpo import NegativeBinomialRuns, PoissonRuns, RandomSize, Space
from core.errors import InvalidRequest
from core.privacy import best_of, gdp, pld, rdp, renyi
from core.privacy.events import AccountEvents, BestOf, Event, composed, leaves, noisy_sums, read
from core.privacy.filters import GdpFilter, RdpFilter
from core.privacy.mechanism import Selection
from core.privacy.price_requests import FilterChoice, FitRequest, PlanRequest, TrainingPlan
from core.privacy.prices import Units
from core.privacy.pricing import largest_that_fits, price
from core.privacy.profile import profile_of
from core.privacy.releases import NoisyCount
from scrimp import recompute
from scrimp.privacy_loss import Curve

LAWS: list[NegativeBinomialRuns | PoissonRuns] = [
    NegativeBinomialRuns(eta=1.0, gamma=0.2),
    NegativeBinomialRuns(eta=0.0, gamma=0.05),
    NegativeBinomialRuns(eta=-0.5, gamma=0.02),
    PoissonRuns(mean=5.0),
]
ORDERS = (1.5, 2.0, 8.0, 32.0)
X = np.linspace(-14.0, 14.0, 56_001)


def weights(law: NegativeBinomialRuns | PoissonRuns, most: int = 20) -> tuple[int, ...]:
    space = Space(learning_rate=(0.1, 1.0))
    return RandomSize(space=space, distribution=law, most_runs=most, duration_s=60).weights


def request(law: NegativeBinomialRuns | PoissonRuns, account: str = "train", epsilon: float = 1.0) -> PlanRequest:
    training = TrainingPlan(
        sampling="full_batch",
        sample_rate=1.0,
        steps=50,
        max_grad_norm=1.0,
        clipping="flat",
        expected_batch_size=20_000,
    )
    score = NoisyCount.model_validate({"what": "accuracy", "account": account, "noise_mu": 0.1, "records": 20_000})
    return PlanRequest(
        training=training,
        target_epsilon=epsilon,
        noise_multiplier=None,
        target_delta=1e-5,
        releases=(score,),
        selection=Selection(weights=weights(law)),
        filter=FilterChoice(kind="rdp", order=18.0),
    )


def densities(law: tuple[int, ...], mean: float, better: float) -> np.ndarray:
    """The density at X of the best of K draws from N(mean, 1), where `better` is 1 if larger outcomes are, or −1."""
    shares = np.array(law) / sum(law)
    below = scipy.stats.norm.cdf(better * (X - mean))
    slope = sum(k * share * below ** (k - 1) for k, share in enumerate(shares, 1))
    return np.asarray(scipy.stats.norm.pdf(X, mean) * slope)


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("mu", [0.1, 0.7])
@pytest.mark.parametrize("better", [1.0, -1.0])
def test_the_mechanism_itself_costs_at_most_the_price_and_nearly_it(
    law: NegativeBinomialRuns | PoissonRuns, mu: float, better: float
) -> None:
    """By numerical integration, where the run is a Gaussian that is ordered by itself: both neighbours, both orders."""
    found = weights(law)
    one, other = densities(found, 0.0, better), densities(found, mu, better)
    assert scipy.integrate.simpson(one, x=X) == pytest.approx(1.0, abs=1e-9)
    for order in ORDERS:
        bound = best_of.divergence(found, mu, order)
        for mine, theirs in ((one, other), (other, one)):
            integral = scipy.integrate.simpson(np.exp(order * np.log(mine) + (1.0 - order) * np.log(theirs)), x=X)
            exact = math.log(integral) / (order - 1.0)
            assert exact <= bound * (1.0 + 1e-9)
    assert bound > order * mu**2 / 2.0  # the secret choice is not free


@pytest.mark.parametrize("mu", [0.05, 0.3, 1.0])
def test_the_price_is_the_lemma_s_supremum_and_below_the_paper_s_closed_forms(mu: float) -> None:
    for law in LAWS:
        found = weights(law, most=100)
        for order in ORDERS:
            q = scipy.stats.norm.cdf(np.linspace(-11.0, 11.0, 20_001))
            least = scipy.stats.norm.cdf(np.linspace(-11.0, 11.0, 20_001) - mu)
            slopes = [sum(k * (w / sum(found)) * at ** (k - 1) for k, w in enumerate(found, 1)) for at in (q, least)]
            supremum = (order * np.log(slopes[0]) - (order - 1.0) * np.log(slopes[1])).max() / (order - 1.0)
            exact = order * mu**2 / 2.0 + supremum
            price_ = best_of.divergence(found, mu, order)
            assert exact <= price_ <= exact + 2e-2 * (1.0 + 1.0 / (order - 1.0))
            if isinstance(law, NegativeBinomialRuns):
                whole = selection.TruncatedNegativeBinomial(law.eta, law.gamma)
                assert price_ <= selection.price(whole, mu, order) * (1.0 + 1e-6) + 2e-2


def test_weights_are_the_law_given_that_it_is_cut() -> None:
    for eta, gamma in ((1.0, 0.2), (0.0, 0.05), (-0.5, 0.02), (2.5, 0.3)):
        found = np.array(weights(NegativeBinomialRuns(eta=eta, gamma=gamma)), dtype=float)
        k = np.arange(1, 21)
        logs = k * math.log1p(-gamma) + [
            sum(math.log(abs((each + eta) / (each + 1)) if each + eta else 1.0) for each in range(n)) for n in k
        ]
        wanted = np.exp(logs - np.logaddexp.reduce(logs))
        assert found / found.sum() == pytest.approx(wanted, abs=1e-10)
    found = np.array(weights(PoissonRuns(mean=5.0)), dtype=float)
    wanted = scipy.stats.poisson.pmf(np.arange(1, 21), 5.0)
    assert found / found.sum() == pytest.approx(wanted / wanted.sum(), abs=1e-10)


@pytest.mark.parametrize("extreme", [NegativeBinomialRuns(eta=5.0, gamma=0.001), PoissonRuns(mean=20.0)], ids=str)
def test_one_run_is_possible_under_every_law_that_can_be_asked_for(extreme: NegativeBinomialRuns | PoissonRuns) -> None:
    assert weights(extreme, most=100)[0] >= 1


def test_no_one_run_has_no_bound() -> None:
    with pytest.raises(ValueError, match="one run must be possible"):
        BestOf(weights=(0, 5), event=noisy_sums(1.0, 2.0, 1))


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_a_job_costs_its_target_on_one_line(law: NegativeBinomialRuns | PoissonRuns) -> None:
    found = price(request(law))
    assert found.epsilon is not None and 0.9999 < found.epsilon.value <= 1.0
    assert found.epsilon.accountant == "rdp"
    (line,) = found.lines
    assert (line.what, line.account, line.charge) == ("selection", "train", found.charge.train)
    assert found.mechanism is not None
    one = renyi.epsilon(found.mechanism.event("train"), 1e-5)
    tree = found.mechanism.event("train").model_dump(mode="json")
    assert recompute.expected_tree(found.mechanism.model_dump(mode="json"), "train") == tree
    assert one - 2e-3 <= recompute.epsilon_of(tree, 1e-5, 1e-4) <= one


def test_scores_on_a_hold_out_are_selected_with_the_same_price() -> None:
    found = price(request(LAWS[0], account="holdout"))
    assert [(line.what, line.account) for line in found.lines] == [("selection", "train"), ("selection", "holdout")]
    assert found.mechanism is not None
    (leaf,) = leaves(found.mechanism.event("holdout"))
    assert (leaf.noise_multiplier, leaf.weights) == (10.0, weights(LAWS[0]))


def test_what_fits_is_found_and_one_per_mille_more_does_not() -> None:
    asked = request(LAWS[1])
    charge = price(asked).charge
    fits = largest_that_fits(FitRequest(plan=asked, remaining=Units(train=charge.train, holdout=0))).epsilon
    assert fits == pytest.approx(1.0, rel=1e-4)
    assert fits is not None
    again = price(asked.model_copy(update={"target_epsilon": fits})).charge.train
    more = price(asked.model_copy(update={"target_epsilon": fits * 1.001})).charge.train
    assert again <= charge.train < more
    none = largest_that_fits(FitRequest(plan=asked, remaining=Units(train=0, holdout=0)))
    assert (none.epsilon, none.account) == (None, "train")


@pytest.mark.parametrize("noise_mu", [0.1, 0.4])
def test_what_fits_is_a_target_that_is_admitted(noise_mu: float) -> None:
    """The hold-out's own selection costs more: what `train` can pay was named, though no price is below that."""
    plain = request(LAWS[0], account="holdout")
    asked = plain.model_copy(update={"releases": (plain.releases[0].model_copy(update={"noise_mu": noise_mu}),)})
    remaining = Units(train=300_000_000, holdout=10**12)
    fits = largest_that_fits(FitRequest(plan=asked, remaining=remaining)).epsilon
    assert (fits is None) == (noise_mu > 0.2)
    if fits is not None:
        assert price(asked.model_copy(update={"target_epsilon": fits})).charge.train <= remaining.train


def test_a_gdp_filter_refuses_with_the_reason() -> None:
    asked = request(LAWS[0]).model_copy(update={"filter": FilterChoice(kind="gdp")})
    with pytest.raises(InvalidRequest, match="no Gaussian bound is known"):
        price(asked)
    with pytest.raises(InvalidRequest):
        GdpFilter().charge_event(event_of(2.0))


def test_no_noise_is_enough_for_too_small_a_target() -> None:
    with pytest.raises(InvalidRequest, match="no noise brings the best of so many runs"):
        price(request(LAWS[0], epsilon=0.01))


@pytest.mark.parametrize("law", LAWS)
def test_scores_too_dear_for_the_target_are_told_what_fits(law: NegativeBinomialRuns | PoissonRuns) -> None:
    """The hold-out's own selection; it was an error of the service."""
    dear = request(law, "holdout")
    with pytest.raises(InvalidRequest, match="noise_mu at most") as refused:
        price(dear.model_copy(update={"releases": (dear.releases[0].model_copy(update={"noise_mu": 1.0}),)}))
    fits = float(str(refused.value).split("noise_mu at most ")[1].split(" ")[0])
    for noise_mu, is_admitted in ((fits, True), (fits * 1.02, False)):
        event = composed([BestOf(weights=weights(law), event=noisy_sums(1.0, 1.0 / noise_mu, 1))])
        assert (renyi.epsilon(event, 1e-5) <= 1.0) == is_admitted


def event_of(sigma: float) -> Event:
    return composed([BestOf(weights=weights(LAWS[0]), event=noisy_sums(1.0, sigma, 4))])


def test_other_accountants_do_not_take_it_for_a_gaussian() -> None:
    event = event_of(2.0)
    assert gdp.mu_of_event(event) is None
    assert pld.losses(event, 1e-5) is None
    assert pld.epsilon(event, 1e-5) == math.inf
    assert read(event.model_dump(mode="json")) == event
    with pytest.raises(ValueError, match="no distribution of the losses"):  # it took the runs for one
        Curve.of(event.model_dump(mode="json"))
    with pytest.raises(Exception, match="full batches alone"):
        leaves(BestOf(weights=(1, 1), event=noisy_sums(0.1, 1.0, 5)))


def test_a_filter_adds_it_to_other_jobs() -> None:
    filter_, other = RdpFilter(8.0), noisy_sums(1.0, 5.0, 3)
    together = filter_.charge_event(composed([event_of(4.0), other]))
    assert abs(together - filter_.charge_event(event_of(4.0)) - filter_.charge_event(other)) <= 1
    wanted = best_of.divergence(weights(LAWS[0]), 0.5, 8.0)  # four sums at σ = 4 are one at 2... μ = √4/4
    assert filter_.charge_event(event_of(4.0)) == pytest.approx(wanted * 1e9, rel=1e-9)
    assert rdp.rdp_at(event_of(4.0), 8.0) == pytest.approx(wanted, rel=1e-12)


def test_a_profile_states_pairs_and_no_advantage() -> None:
    found = profile_of(AccountEvents(train=composed([event_of(4.0)]), holdout=None), 3.0)
    assert found.mu is None and found.advantage == 1.0
    values = [each.epsilon for each in found.epsilons]
    assert None not in values and values == sorted(values, key=lambda each: each or 0.0)
    assert all(each.false_positive < each.true_positive <= 1.0 for each in found.attacks)
