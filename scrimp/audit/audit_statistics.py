"""The statistics of the audit: pure functions of numbers that a service has released.

A mechanism is (ε, δ)-DP for every point of a claimed curve only if every test that guesses a canary's presence obeys,
with true-positive rate p and false-positive rate q,

    p ≤ e^ε q + δ(ε)    and    1 − q ≤ e^ε (1 − p) + δ(ε).

Both are tested at thresholds that are fixed before the tested numbers are read, with Clopper-Pearson bounds: p at least
p⁻, q at most q⁺. Each bound fails with probability at most `level`. One pair of bounds serves every ε and both
directions, since nothing but the pair is random.

The result is a lower bound: a mechanism may leak more than any test here sees.

Source: Kairouz, Oh & Viswanath 2015, Theorem 2.1 (the inequalities); Clopper & Pearson 1934.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

# Of a curve: a step of 0.01 hides less than 0.01 e^ε q of an excess.
STEP = 0.01


@dataclass(frozen=True)
class Claim:
    """A claimed curve: δ(ε) at many points.

    Attributes:
        epsilons: ascending, from 0.
        deltas: δ at each.
        mu: the claim as one number: exact for a Gaussian mechanism, else the μ with the certificate's ε and δ.
        exact: True if the mechanism is μ-GDP.
    """

    epsilons: Numbers
    deltas: Numbers
    mu: float
    exact: bool = True

    @classmethod
    def gaussian(cls, mu: float) -> Claim:
        """δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2).

        Source: Balle & Wang 2018, Theorem 8.
        """
        from scipy import special

        epsilons = np.arange(0.0, mu * mu / 2.0 + 8.0 * mu + STEP, STEP)
        upper, lower = epsilons / mu - mu / 2.0, epsilons / mu + mu / 2.0
        deltas = special.ndtr(-upper) - np.exp(epsilons + special.log_ndtr(-lower))
        return cls(epsilons, np.maximum(deltas, 0.0), mu)


@dataclass(frozen=True)
class Excess:
    """The largest excess of the bounds over the claim; at most 0 if the claim stands."""

    epsilon: float
    claimed_delta: float
    found_delta: float

    @property
    def amount(self) -> float:
        """δ found minus δ claimed."""
        return self.found_delta - self.claimed_delta


@dataclass(frozen=True)
class Guesses:
    """How many guesses were right, and what follows.

    Attributes:
        accuracy: at least this share of guesses is right, or wrong; 1/2 tells nothing.
    """

    right: int
    trials: int
    accuracy: float

    def epsilon(self, delta: float) -> float:
        """Returns ε⁻: no mechanism that is (ε, δ)-DP with a smaller ε explains the accuracy.

        With fair coins, 2 · accuracy = p + 1 − q; the sum of both inequalities is accuracy ≤ (e^ε + δ)/(1 + e^ε).
        """
        if self.accuracy <= delta:
            return 0.0
        return max(0.0, math.log((self.accuracy - delta) / (1.0 - self.accuracy)))


@dataclass(frozen=True)
class Finding:
    """One test of one claim.

    Attributes:
        present, absent: how many canaries were in and out; for guesses, jobs with and without the record.
        fitted_mu: Φ⁻¹(p) − Φ⁻¹(q) of the observed rates at the most informative threshold. An estimate, not a bound.
        lower_mu: no Gaussian mechanism with a smaller μ has rates within the bounds. At least this is lost.
        excess: where the claim is exceeded most.
        guesses: the test is one of guesses.
    """

    present: int
    absent: int
    fitted_mu: float
    lower_mu: float
    excess: Excess
    guesses: Guesses | None = None

    @property
    def stands(self) -> bool:
        """Returns True if the claim is not exceeded."""
        return self.excess.amount <= 0.0


def lower_bound(hits: int, trials: int, level: float) -> float:
    """Clopper-Pearson: the success probability is at least this, except with probability `level`."""
    from scipy import stats

    return float(stats.beta.ppf(level, hits, trials - hits + 1)) if hits else 0.0


def upper_bound(hits: int, trials: int, level: float) -> float:
    """Clopper-Pearson: the success probability is at most this, except with probability `level`."""
    from scipy import stats

    return float(stats.beta.ppf(1.0 - level, hits + 1, trials - hits)) if hits < trials else 1.0


def examine(present: Numbers, absent: Numbers, thresholds: Sequence[float], claim: Claim, level: float) -> Finding:
    """Tests a claim on canaries' scores, which are larger for canaries that are present.

    Args:
        present, absent: a score for each canary that was in, and out.
        thresholds: chosen without reading these scores.
        level: how often each of the 2 · len(thresholds) bounds may fail.

    Returns:
        the finding. A true claim appears exceeded with probability at most 2 · len(thresholds) · level.
    """
    if not (len(present) and len(absent)):
        raise ValueError("canaries are needed on both sides: plant more")
    hits = [(int((present > each).sum()), int((absent > each).sum())) for each in thresholds]
    pairs = [(lower_bound(true, len(present), level), upper_bound(false, len(absent), level)) for true, false in hits]
    separations = [_separation(p, q) if p > 0.0 and q < 1.0 else 0.0 for p, q in pairs]
    best = int(np.argmax(separations))
    # Half a case more and one less than all: no rate is 0 or 1.
    true, false = ((hit + 0.5) / (len(side) + 1) for hit, side in zip(hits[best], (present, absent), strict=True))
    worst = max((_excess(p, q, claim) for p, q in pairs), key=lambda excess: excess.amount)
    return Finding(len(present), len(absent), _separation(true, false), max(separations[best], 0.0), worst)


def examine_guesses(guesses: NDArray[np.bool_], truth: NDArray[np.bool_], claim: Claim, level: float) -> Finding:
    """Tests a claim on guesses of a record's presence, one for each run of the mechanism.

    Fair, secret coins decided the truth. If every run is private, each guess is right with probability at most a,
    whatever the earlier ones were, so the number of right guesses is at most Bin(m, a) in distribution. All wrong
    tells as much as all right. Clopper-Pearson's bound a⁻ obeys a⁻ ≤ e^ε (1 − a⁻) + δ(ε): the pair p = a⁻, q = 1 − a⁻.

    Args:
        guesses, truth: True for runs with the record.
        level: of each of the two tests, of right and of wrong guesses.

    Raises:
        ValueError: there are no guesses.
    """
    trials, right = len(guesses), int((guesses == truth).sum())
    if not trials:
        raise ValueError("there are no guesses: run at least one job")
    accuracy = lower_bound(max(right, trials - right), trials, level)
    fitted = (right + 0.5) / (trials + 1)
    present = int(truth.sum())
    return Finding(
        present,
        trials - present,
        _separation(fitted, 1.0 - fitted),
        max(0.0, _separation(accuracy, 1.0 - accuracy)),
        _excess(accuracy, 1.0 - accuracy, claim),
        Guesses(right, trials, accuracy),
    )


def _separation(p: float, q: float) -> float:
    """The μ of a Gaussian mechanism for which a test has these rates: Φ⁻¹(p) − Φ⁻¹(q)."""
    from scipy import special

    return float(special.ndtri(p) - special.ndtri(q))


def _excess(p: float, q: float, claim: Claim) -> Excess:
    """The excess of one pair of bounds, over the whole curve and both directions."""
    with np.errstate(over="ignore"):
        grown = np.exp(claim.epsilons)
        differences = np.maximum(p - grown * q, (1.0 - q) - grown * (1.0 - p))
    at = int(np.argmax(differences - claim.deltas))
    return Excess(float(claim.epsilons[at]), float(claim.deltas[at]), float(differences[at]))


def quantile_thresholds(decoys: Numbers, mu: float, spread: Sequence[float]) -> list[float]:
    """Thresholds at which a Gaussian mechanism with this μ has false-positive rates Φ(−μ/2 − s), s of `spread`.

    Args:
        decoys: scores of coordinates that belong to no record. They share no noise with canaries.
    """
    from scipy import special

    rates = special.ndtr(-(mu / 2.0 + np.asarray(spread)))
    return [float(each) for each in np.quantile(decoys, 1.0 - rates)]


@dataclass(frozen=True)
class Agreement:
    """In how many of `trials` places two noises have the same sign: half of them if they are independent.

    Attributes:
        chance: how often independent noises agree, or disagree, this much.
    """

    agreeing: int
    trials: int
    chance: float


def agreement(one: Numbers, other: Numbers) -> Agreement:
    """Compares the signs of two noises, each symmetric around 0. The test is exact: a two-sided binomial one."""
    from scipy import stats

    both = (one != 0.0) & (other != 0.0)
    same, trials = int(((one > 0.0) == (other > 0.0))[both].sum()), int(both.sum())
    chance = float(stats.binomtest(same, trials).pvalue) if trials else 1.0
    return Agreement(same, trials, chance)
