"""The price of the best of a random number of runs, beside the study's: one table, no data.

    python -m benchmarks.selection

K runs, each with its own random settings; only the best one leaves. K is truncated negative binomial (η, γ) or Poisson.
If a run with its score is μ-GDP, so (λ, λμ²/2)-RDP at every λ, the selection is (λ, ε′)-RDP with

    truncated negative binomial:  ε′(λ) = ε(λ) + (1 + η)(1 − 1/λ̂) ε(λ̂) + (1 + η) log(1/γ)/λ̂ + log E[K]/(λ − 1),
    Poisson of mean m:            ε′(λ) = ε(λ) + m δ̂ + log m/(λ − 1), for (ε̂, δ̂) with e^ε̂ ≤ 1 + 1/(λ − 1).

Source: Papernot & Steinke 2022, "Hyperparameter tuning with Rényi differential privacy", Theorems 2 and 6. The service
charges by the lemma behind them, for laws that are cut (decision 72). Tuning on a subset, and densities that follow
earlier runs: decision 82.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import special
from scipy.optimize import brentq, minimize_scalar

from benchmarks.reproduce.runs import ROOT
from core.contracts.hpo import NegativeBinomialRuns, RandomSize, Space
from core.contracts.hpo import PoissonRuns as PoissonLaw
from core.privacy.best_of import divergence
from core.privacy.filters import choose_order
from core.privacy.gdp import delta_from_mu, epsilon_from_mu, mu_from_epsilon

REPORT = ROOT / "benchmarks" / "reports" / "selection.md"
TOTALS, DELTA = (1.0, 3.0, 8.0), 1e-5
ORDERS, HALF_ORDERS = np.geomspace(1.05, 1e4, 400), np.arange(4, 129) / 2.0
SHARES, RATIOS = (0.1, 0.02), (1.1, 1.5)  # of the subset; of densities
RECORDS = 20_000  # of the data set for which the filter chooses its order
SCORE_MU = 0.01
MOST = 100  # runs of a law that is cut
Law = NegativeBinomialRuns | PoissonLaw


@dataclass(frozen=True)
class TruncatedNegativeBinomial:
    """K ≥ 1. η = 1: geometric; η = 0: logarithmic."""

    eta: float
    gamma: float

    @property
    def mean(self) -> float:
        if self.eta == 0.0:
            return (1.0 / self.gamma - 1.0) / math.log(1.0 / self.gamma)
        return self.eta * (1.0 - self.gamma) / (self.gamma * (1.0 - self.gamma**self.eta))

    @classmethod
    def of_mean(cls, eta: float, mean: float) -> TruncatedNegativeBinomial:
        """With this mean."""
        return cls(eta, brentq(lambda gamma: cls(eta, gamma).mean - mean, 1e-12, 1.0 - 1e-9))

    def rdp(self, base: Callable[[float], float], order: float) -> float:
        """ε′(λ) for a run that is (λ, base(λ))-RDP."""

        def extra(logarithm: float) -> float:
            other = math.exp(logarithm)
            return (1.0 + self.eta) * ((1.0 - 1.0 / other) * base(other) + math.log(1.0 / self.gamma) / other)

        least = minimize_scalar(extra, bounds=(0.0, math.log(1e8)), method="bounded").fun
        return float(base(order) + least + math.log(self.mean) / (order - 1.0))

    def __str__(self) -> str:
        return f"η = {self.eta:g}"


@dataclass(frozen=True)
class PoissonRuns:
    """K of this mean. It may be 0: then nothing leaves."""

    mean: float

    def rdp(self, mu: float, order: float) -> float:
        """ε′(λ) for a run that is μ-GDP."""
        delta = delta_from_mu(mu, math.log1p(1.0 / (order - 1.0)))
        return order * mu**2 / 2.0 + self.mean * delta + math.log(self.mean) / (order - 1.0)

    def __str__(self) -> str:
        return "Poisson"


@dataclass(frozen=True)
class Lemma:
    """K of a law that is cut at MOST runs, by the lemma behind both theorems (decision 72)."""

    name: str
    weights: tuple[int, ...]

    @classmethod
    def of_mean(cls, name: str, law: Callable[[float], Law], mean: float, bounds: tuple[float, float]) -> Lemma:
        """Of this mean, after the cut."""

        def cut(parameter: float) -> tuple[int, ...]:
            asked = RandomSize(
                space=Space(learning_rate=(1.0, 2.0)), distribution=law(parameter), most_runs=MOST, duration_s=1
            )
            return asked.weights

        def excess(parameter: float) -> float:
            weights = cut(parameter)
            return sum(k * w for k, w in enumerate(weights, 1)) / sum(weights) - mean

        return cls(name, cut(brentq(excess, *bounds)))

    def rdp(self, mu: float, order: float) -> float:
        """ε′(λ) for a run that is μ-GDP."""
        return divergence(self.weights, mu, order)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class OnSubset:
    """A selection on a secret subset that each record is in with this chance, then a run on all records, as good as
    one of the selection's.

    Source: Koskela & Kulkarni 2023; the price of the subset by Zhu & Wang 2019, Theorem 5 (decision 82).
    """

    selection: Lemma
    share: float

    def rdp(self, mu: float, order: float) -> float:
        """ε′(λ) for runs that with their scores are μ-GDP; the last one needs no score."""
        last = order * (mu**2 - SCORE_MU**2) / 2.0
        return last + _of_subset(self.selection, mu, self.share, max(2, math.ceil(order)))


@cache
def _of_subset(selection: Lemma, mu: float, share: float, order: int) -> float:
    terms = [order * math.log1p(-share), math.log(order * share) + (order - 1) * math.log1p(-share)]
    for at in range(2, order + 1):
        ways = math.lgamma(order + 1) - math.lgamma(at + 1) - math.lgamma(order - at + 1)
        drawn = at * math.log(share) + (order - at) * math.log1p(-share)
        moments = (at - 1) * _whole(selection, mu, at)
        terms.append(ways + drawn + moments + (math.log(3.0) if at > 2 else 0.0))
    return float(np.logaddexp.reduce(terms)) / (order - 1)


@cache
def _whole(selection: Lemma, mu: float, order: int) -> float:
    return selection.rdp(mu, order)


@dataclass(frozen=True)
class Adaptive:
    """A selection whose runs draw their settings by what earlier runs gave, at densities within [1/ratio, ratio] times
    a fixed one's.

    Source: Wang et al. 2023 (DP-hyPO); the price by the lemma of decision 82.
    """

    selection: Lemma
    ratio: float

    def rdp(self, mu: float, order: float) -> float:
        """ε′(λ) for a run that is μ-GDP."""
        ends = np.linspace(-12.0, 12.0, 2**12 + 1)
        below = np.append(special.ndtr(ends), 1.0)
        theirs = np.insert(special.ndtr(ends - mu), 0, 0.0)
        most = np.minimum(self.ratio * below, 1.0 - (1.0 - below) / self.ratio)
        least = np.maximum(theirs / self.ratio, 1.0 - self.ratio * (1.0 - theirs))
        supremum = (order * self._log_slope(most) - (order - 1.0) * self._log_slope(least)).max()
        densities = (2.0 * order - 1.0) * math.log(self.ratio)
        return order * mu**2 / 2.0 + float(densities + supremum) / (order - 1.0)

    def _log_slope(self, at: NDArray[np.float64]) -> NDArray[np.float64]:
        total = sum(self.selection.weights)
        slope = [k * weight / total for k, weight in enumerate(self.selection.weights, 1)]
        return np.asarray(np.log(np.polyval(slope[::-1], at)))


Runs = TruncatedNegativeBinomial | PoissonRuns | Lemma | OnSubset | Adaptive


def price(runs: Runs, mu: float, order: float) -> float:
    """ε′(λ) if each run with its score is μ-GDP."""
    if not isinstance(runs, TruncatedNegativeBinomial):
        return runs.rdp(mu, order)
    return runs.rdp(lambda at: at * mu**2 / 2.0, order)


def converted(rdp: float, order: float) -> float:
    """ε at DELTA of (λ, rdp)-RDP. Source: Canonne, Kamath & Steinke 2020, Proposition 12."""
    return rdp + math.log1p(-1.0 / order) - math.log(DELTA * order) / (order - 1.0)


def affordable(runs: Runs, total: float, orders: np.ndarray) -> float:
    """The largest μ of a run for which the selection is (total, DELTA)-DP by one of these orders; 0: none is."""

    def over(mu: float) -> float:
        return min(converted(price(runs, mu, order), order) for order in orders) - total

    return 0.0 if over(1e-4) > 0.0 else float(brentq(over, 1e-4, 20.0, xtol=1e-5))


def linear_scaling(total: float) -> float:
    """μ of the final run of a study: three trials at ε = 0.1 and 0.2 each, and six scores. Exact Gaussian DP."""
    used = 3 * sum(mu_from_epsilon(each, DELTA) ** 2 for each in (0.1, 0.2)) + 6 * SCORE_MU**2
    return math.sqrt(mu_from_epsilon(total, DELTA) ** 2 - used)


def random_k(total: float, k: int) -> float:
    """μ of each of k runs of which all scores are released."""
    return math.sqrt(mu_from_epsilon(total, DELTA) ** 2 / k - SCORE_MU**2)


@dataclass(frozen=True)
class Revealed:
    """(λ, ·)-RDP of the best of K runs of randomized response, K as TruncatedNegativeBinomial: exact sums.

    Attributes:
        hidden: only the best answer leaves.
        shown: K leaves too.
        bound: the theorem's, for `hidden`.
    """

    hidden: float
    shown: float
    bound: float


def revealed(runs: TruncatedNegativeBinomial, epsilon: float, order: float) -> Revealed:
    """Each run answers 1 with probability e^ε/(1 + e^ε), or 1/(1 + e^ε) for the neighbour; the best answer is the 1."""
    p, q = 1.0 / (1.0 + math.exp(-epsilon)), 1.0 / (1.0 + math.exp(epsilon))
    logs = _log_weights(runs)
    ks = np.arange(1, len(logs) + 1)

    def exact(one: float, other: float, *, shown: bool) -> float:
        if shown and order * math.log1p(-one) + (1.0 - order) * math.log1p(-other) + math.log1p(-runs.gamma) > 0.0:
            return math.inf  # the terms of "no 1 in K runs" grow with K
        mine, theirs = (_answers(ks * math.log1p(-each), logs, shown=shown) for each in (one, other))
        return float(np.logaddexp.reduce(order * mine + (1.0 - order) * theirs) / (order - 1.0))

    def base(at: float) -> float:
        """Exact; ε, its limit, where λ is 1 or large."""
        if not 1.0 < at < 200.0:
            return epsilon
        return math.log(p**at * q ** (1.0 - at) + q**at * p ** (1.0 - at)) / (at - 1.0)

    hidden, shown = (max(exact(p, q, shown=each), exact(q, p, shown=each)) for each in (False, True))
    return Revealed(hidden, shown, runs.rdp(base, order))


def _answers(no_one: NDArray[np.float64], weights: NDArray[np.float64], *, shown: bool) -> NDArray[np.float64]:
    """log P of each outcome: (answer, K) if K is shown, else the answer.

    Args:
        no_one: log P(no run of k answers 1), for each k.
        weights: log P(K = k).
    """
    outcomes = np.stack([np.log1p(-np.exp(no_one)) + weights, no_one + weights])
    return outcomes.ravel() if shown else np.logaddexp.reduce(outcomes, axis=1)


def _log_weights(runs: TruncatedNegativeBinomial) -> NDArray[np.float64]:
    """log P(K = k) for k = 1, 2, …, as far as numbers of double precision matter."""
    ks = np.arange(1, min(20_000, math.ceil(60.0 / runs.gamma)))
    if runs.eta == 0.0:
        return np.asarray(ks * math.log1p(-runs.gamma) - np.log(ks) - math.log(math.log(1.0 / runs.gamma)))
    factors = np.log(np.abs((ks - 1 + runs.eta) / ks))
    return np.asarray(ks * math.log1p(-runs.gamma) + np.cumsum(factors) - math.log(abs(runs.gamma**-runs.eta - 1.0)))


TEXT = """# The best of a random number of runs, and the study, by their prices

`python -m benchmarks.selection`. No data. δ = 1e-5. What each method leaves of a total ε for the model that it returns,
as the ε of one run by itself; full batches, so a run and its score (μ = {score}) are exactly Gaussian.

| method | runs, in the mean | {totals} |
|---|---|{lines}|
{rows}

`random_size`: the service's price, for K that is cut and has this mean after it; nothing of it in δ ([decision
72](../../docs/decisions/0072-a-selection-of-random-size-is-one-attempt.md)). [Accuracies on four
sets](reproduce/selected.md) are beside those of the other searches.

*Koskela & Kulkarni*: K runs on a secret subset, and one run of the same noise on all records with the best one's
settings; *DP-hyPO*: later runs draw their settings by what earlier ones gave, at densities within this factor of a
fixed one's; both by [decision 82](../../docs/decisions/0082-a-selection-stays-on-all-records-and-blind.md), which says
why the service has neither.

*Best order*: the order is chosen for this one price, as an accountant may. *The filter's order*: the ledger's, fixed at
registration ({orders}, for caps of these totals); an `rdp`
account could charge only this. The first three rows are exact Gaussian DP.

{verdict}

## If K is seen

The theorem is about a selection of which only the best run leaves. Randomized response with ε = {response} as a run,
logarithmic K of mean {mean}, order {order:g}; exact sums:

| what leaves | Rényi divergence |
|---|---|
| the best answer | {hidden:.3f} |
| the theorem's bound for it | {bound:.3f} |
| the best answer and K | {shown:.3f} |

Without a largest K, terms of "no 1 in K runs" grow faster than P(K) falls: no finite charge covers K and the answer. A
service that shows K, by the times, bills or load of trials, would not have what it charges for ([decision
26](../../docs/decisions/0026-no-selection-of-random-size.md)). So `random_size` is one attempt, which hides it.
"""
MEAN, RESPONSE, ORDER = 10.0, 1.0, 8.0


def main() -> None:
    rows = [("one run, no search", 1.0, list(TOTALS))]
    studies = [epsilon_from_mu(linear_scaling(each), DELTA) for each in TOTALS]
    rows.append(("linear scaling, two levels of three", 7.0, studies))
    rows.append(("`random_k`, k = 7", 7.0, [epsilon_from_mu(random_k(each, 7), DELTA) for each in TOTALS]))
    kinds: list[tuple[str, Callable[[float], Runs]]] = [
        (f"Papernot & Steinke, η = {eta:g}", lambda mean, eta=eta: TruncatedNegativeBinomial.of_mean(eta, mean))
        for eta in (-0.5, 0.0, 1.0)
    ]
    kinds.append(("Papernot & Steinke, Poisson", PoissonRuns))
    lemmas: list[tuple[str, Callable[[float], Lemma]]] = []
    for eta in (0.0, 1.0):
        name = f"`random_size`, η = {eta:g}, at most {MOST}"

        def negative(gamma: float, eta: float = eta) -> Law:
            return NegativeBinomialRuns(eta=eta, gamma=gamma)

        lemmas.append((name, lambda mean, name=name, law=negative: Lemma.of_mean(name, law, mean, (0.002, 0.9))))
    name = f"`random_size`, Poisson, at most {MOST}"
    lemmas.append((name, lambda mean, name=name: Lemma.of_mean(name, lambda m: PoissonLaw(mean=m), mean, (1.0, 20.0))))
    kinds += lemmas
    logarithmic = lemmas[0][1]
    for share in SHARES:
        name = f"Koskela & Kulkarni, tuning on {share:g} of the records, η = 0"
        kinds.append((name, lambda mean, share=share: OnSubset(logarithmic(mean), share)))
    for ratio in RATIOS:
        name = f"DP-hyPO, densities within {ratio:g}, η = 0"
        kinds.append((name, lambda mean, ratio=ratio: Adaptive(logarithmic(mean), ratio)))
    for name, make in kinds:
        for where in ("best order", "the filter's order"):
            left = []
            for total in TOTALS:
                runs_made = make(7.0)
                every = HALF_ORDERS if isinstance(runs_made, OnSubset) else ORDERS
                orders = every if where == "best order" else np.array([choose_order(total, DELTA, RECORDS)])
                mu = affordable(runs_made, total, orders)
                left.append(epsilon_from_mu(math.sqrt(max(mu**2 - SCORE_MU**2, 0.0)), DELTA) if mu > SCORE_MU else 0.0)
            rows.append((f"{name}, {where}", 7.0, left))
    table = [f"| {name} | {runs:g} | " + " | ".join(f"{each:.3f}" for each in left) + " |" for name, runs, left in rows]
    seen = revealed(TruncatedNegativeBinomial.of_mean(0.0, MEAN), RESPONSE, ORDER)
    best = max(left[0] for name, _, left in rows if "best order" in name and name.startswith("Papernot"))
    verdict = f"At a total of 1 Papernot & Steinke's prices leave at most {best:.3f}; linear scaling {studies[0]:.3f}."
    REPORT.write_text(
        TEXT.format(
            score=SCORE_MU,
            totals=" | ".join(f"total ε = {each:g}" for each in TOTALS),
            lines="|".join("---" for _ in TOTALS),
            rows="\n".join(table),
            orders=", ".join(
                f"{order:g} for a total of {total:g}"
                for total, order in ((each, choose_order(each, DELTA, RECORDS)) for each in TOTALS)
            ),
            verdict=verdict,
            response=RESPONSE,
            mean=f"{MEAN:g}",
            order=ORDER,
            **vars(seen),
        )
    )


if __name__ == "__main__":
    main()
