"""The `hpo` block of a JobSpec: a private study of learning rate, steps and clipping norm, on the job's one budget.

Every strategy spends from the job's total (ε, δ): the trials, their noisy scores, and the run whose model is delivered.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from core.contracts.base import Document, EpsilonValue

Rate = Annotated[float, Field(strict=True, ge=1e-12, le=1e12)]
SpaceSteps = Annotated[int, Field(strict=True, ge=1, le=10_000_000)]
Norm = Annotated[float, Field(strict=True, ge=1e-6, le=1e6)]
Levels = Annotated[list[EpsilonValue], Field(min_length=2, max_length=3)]
PointCount = Annotated[int, Field(strict=True, ge=1, le=100)]
NoiseMu = Annotated[float, Field(strict=True, ge=1e-5, le=10.0)]
# "auto": a number from the public counts of records, which admission puts in its place (app.admission.choices).
ScoreMu = NoiseMu | Literal["auto"]
MOST_RUNS = 100
LARGEST_WEIGHT = 2**40  # of the likeliest number of runs: other probabilities are rounded to this part of it
MEAN_FILE = "mean.safetensors"  # an artifact of a study's first trial: the private mean that all its trials centre by


class GridPoints(Document):
    """How many values each bounded number takes, evenly spaced in its logarithm, both bounds included."""

    learning_rate: PointCount = 7
    steps: PointCount = 5
    max_grad_norm: PointCount = 3


class Space(Document):
    """The bounds of the study, each [least, most]. They replace the spec's own values.

    `learning_rate`: or "auto": admission puts bounds from public numbers in its place (app.admission.choices).
    `steps` null: T is the job's `length`, as Poisson sampling requires. `max_grad_norm` null: C is the clipping's.
    `points`: only the values of a log grid are used.
    """

    learning_rate: tuple[Rate, Rate] | Literal["auto"] = "auto"
    steps: tuple[SpaceSteps, SpaceSteps] | None = None
    max_grad_norm: tuple[Norm, Norm] | None = None
    points: GridPoints | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Space:
        rates = None if self.learning_rate == "auto" else self.learning_rate
        for bounds in (rates, self.steps, self.max_grad_norm):
            if bounds is not None and bounds[0] > bounds[1]:
                raise ValueError("bounds must be [least, most]")
        return self

    @property
    def rates(self) -> tuple[float, float]:
        """The bounds of η of a study that was admitted.

        Raises:
            ValueError: they are still "auto".
        """
        if self.learning_rate == "auto":
            raise ValueError("the space's `learning_rate` is still auto")
        return self.learning_rate


class PrivateCount(Document):
    """A noisy count of correct predictions: one record weighs 1, noise std 1/noise_mu. Each costs noise_mu² of μ².

    `on`: the part whose records are counted; its account is charged.
    """

    kind: Literal["private_count"] = "private_count"
    on: Literal["train", "holdout"] = "train"
    noise_mu: ScoreMu = "auto"


class PrivateLoss(Document):
    """A noisy sum of losses clipped to [0, loss_bound]: one record weighs loss_bound, noise std loss_bound/noise_mu."""

    kind: Literal["private_loss"] = "private_loss"
    on: Literal["train", "holdout"] = "train"
    noise_mu: ScoreMu = "auto"
    loss_bound: Annotated[float, Field(strict=True, ge=1e-6, le=1e6)] = 1.0


class PrivateRanking(Document):
    """NDCG at k of next items, with HIT in the same release: a user weighs 1, noise std 1/noise_mu.

    `on`: the held-out last items belong to the users who are trained on, so the training account is charged.
    """

    kind: Literal["private_ranking"] = "private_ranking"
    on: Literal["train", "holdout"] = "holdout"
    noise_mu: ScoreMu = "auto"
    k: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 10
    leave_out_seen: bool = False


PrivateScore = PrivateCount | PrivateLoss | PrivateRanking


def noise_mu_of(score: PrivateScore) -> float:
    """Returns the `noise_mu` of a score of a study that was admitted.

    Raises:
        ValueError: it is still "auto".
    """
    if score.noise_mu == "auto":
        raise ValueError("the score's `noise_mu` is still auto")
    return score.noise_mu


class PublicScore(Document):
    """The exact score on a public hold-out: accuracy, NDCG@10 of next items, or the loss. Free."""

    kind: Literal["public"] = "public"


Score = Annotated[PrivateCount | PrivateLoss | PrivateRanking | PublicScore, Field(discriminator="kind")]


class Search(Document):
    """What all strategies share."""

    space: Space = Space()


class ScoredSearch(Search):
    """What scored studies share. `keep_weights`: the trials' models are kept and delivered too; the certificate says
    so."""

    score: Score = PrivateCount()
    keep_weights: bool = False


class LinearScaling(ScoredSearch):
    """The best total step size r = ηT (times C, where C is searched) grows linearly with the privacy of a trial.

    A few cheap trials at each of the small `levels` (ε of one trial) find r there. A line through these points,
    extrapolated to what is left of the budget, gives r* for the final trial. `split` divides r into (η, T): `steps`
    draws T and sets η = r/T; `sample` draws (η, T) until their product is near r; `both` draws η and T for the trials,
    and splits r* like `steps`. `final_steps`: the final trial has the most steps that keep η within the space, which
    costs time and no privacy, as a large η may not settle; or as many as `split` draws, as in the paper.

    `levels`: or "auto": admission puts two in their place, at 0.15 and 0.3 of the total's μ (app.admission.choices).
    They lie at least a hundredth apart, in the unit of the fit.

    Fallbacks are named in the study's report: where the line does not rise, or leads below the best trial, the final
    trial takes r₂ · μ_final/μ₂; out of the space, r is clipped to it; where a quadratic turns back, the line is used.

    Source: Panda, Tang, Mahloujifar, Sehwag & Mittal 2024, "A New Linear Scaling Rule for Private Adaptive
    Hyperparameter Optimization", Algorithm 1.
    """

    strategy: Literal["linear_scaling"] = "linear_scaling"
    levels: Levels | Literal["auto"] = "auto"
    runs_per_level: Annotated[int, Field(strict=True, ge=1, le=20)] = 3
    split: Literal["steps", "sample", "both"] = "steps"
    final_steps: Literal["longest", "drawn"] = "longest"
    fit_in: Literal["mu", "epsilon"] = "mu"
    curve: Literal["line", "quadratic"] = "line"

    @model_validator(mode="after")
    def _fits(self) -> LinearScaling:
        levels = [] if self.levels == "auto" else self.levels
        if any(one >= other for one, other in pairwise(levels)):
            raise ValueError("`levels` must rise")
        if self.curve == "quadratic" and len(levels) < 3:
            raise ValueError("a quadratic fit needs at least three `levels`")
        if self.space.points is not None:
            raise ValueError("linear scaling uses no grid: leave `space.points` out")
        return self

    @property
    def epsilons(self) -> list[float]:
        """The levels of a study that was admitted.

        Raises:
            ValueError: they are still "auto".
        """
        if self.levels == "auto":
            raise ValueError("`levels` are still auto")
        return self.levels


class Random(Search):
    """One draw from the space; this one trial gets the whole budget."""

    strategy: Literal["random"] = "random"


class NegativeBinomialRuns(Document):
    """P(K = k) ∝ (1 − γ)^k Π_{l<k} (l + η)/(l + 1), for 1 ≤ k. η = 1: geometric. η = 0: logarithmic."""

    kind: Literal["negative_binomial"] = "negative_binomial"
    eta: Annotated[float, Field(strict=True, gt=-1.0, le=5.0)] = 1.0
    gamma: Annotated[float, Field(strict=True, ge=0.001, lt=1.0)]


class PoissonRuns(Document):
    """P(K = k) ∝ m^k/k!, for 1 ≤ k."""

    kind: Literal["poisson"] = "poisson"
    mean: Annotated[float, Field(strict=True, ge=0.01, le=20.0)]


class RandomSize(Search):
    """The best of a secret number K of runs, each with the whole noise and a learning rate drawn in secret.

    One job and no trials: `most_runs` trainings always run, and the best of the first K, by the job's own `evaluation`,
    is delivered. K has this distribution, given that 1 ≤ K ≤ `most_runs`. The result leaves `duration_s`
    after the first step, doubled until it is long enough, so that its time tells nothing: choose it amply.

    Source: Papernot & Steinke 2022, "Hyperparameter tuning with Rényi differential privacy", Lemma 7 (decision 72).
    """

    strategy: Literal["random_size"] = "random_size"
    distribution: Annotated[NegativeBinomialRuns | PoissonRuns, Field(discriminator="kind")]
    most_runs: Annotated[int, Field(strict=True, ge=2, le=MOST_RUNS)]
    duration_s: Annotated[int, Field(strict=True, ge=1, le=7 * 24 * 3600)]

    @model_validator(mode="after")
    def _draws_rates(self) -> RandomSize:
        if self.space.steps is not None or self.space.max_grad_norm is not None:
            raise ValueError("runs of `random_size` have one price: leave `space.steps` and `max_grad_norm` out")
        if self.space.learning_rate == "auto":
            raise ValueError("`random_size` needs `space.learning_rate`, [least, most]")
        return self

    @property
    def weights(self) -> tuple[int, ...]:
        """P(K = k) for k = 1 … `most_runs`, as whole numbers over their sum. Exact arithmetic: the same everywhere.

        >>> space, law = Space(learning_rate=(0.1, 1.0)), NegativeBinomialRuns(eta=1.0, gamma=0.5)
        >>> found = RandomSize(space=space, distribution=law, most_runs=3, duration_s=1).weights
        >>> [each / sum(found) for each in found] == [4 / 7, 2 / 7, 1 / 7]
        True
        """
        law, ratio = self.distribution, Fraction(1)  # |η| is a factor of all, so η = 0 has a limit
        exact = [ratio]
        for k in range(2, self.most_runs + 1):
            if isinstance(law, NegativeBinomialRuns):
                ratio *= (1 - Fraction(law.gamma)) * (k - 1 + Fraction(law.eta)) / k
            else:
                ratio *= Fraction(law.mean) / k
            exact.append(ratio)
        largest = max(exact)
        return tuple(int(each / largest * LARGEST_WEIGHT) for each in exact)


class RandomK(ScoredSearch):
    """`runs` draws with an equal part of the budget each. The model with the best score is delivered. Of studies that
    earlier releases admitted."""

    strategy: Literal["random_k"] = "random_k"
    runs: Annotated[int, Field(strict=True, ge=2, le=MOST_RUNS)] = 5


class GridOracle(Search):
    """Every point of a grid, each with the whole budget and none accounted: a yardstick for public data only. Of
    studies that earlier releases admitted."""

    strategy: Literal["grid_oracle"] = "grid_oracle"
    score: Score = PublicScore()
    keep_weights: bool = False

    @model_validator(mode="after")
    def _bounded(self) -> GridOracle:
        points = self.space.points or GridPoints()
        runs = points.learning_rate
        runs *= points.steps if self.space.steps else 1
        runs *= points.max_grad_norm if self.space.max_grad_norm else 1
        if runs > MOST_RUNS:
            raise ValueError(f"that is a grid of {runs} trials; at most {MOST_RUNS} are allowed: use fewer `points`")
        return self


class Auto(Document):
    """No search where a rule gives the learning rate: one run with the whole budget. Otherwise linear scaling.

    Admission decides, from public facts alone, and puts the job that runs in its place (app.admission.choices).
    """

    strategy: Literal["auto"] = "auto"


Strategy = LinearScaling | Random | RandomK | GridOracle  # of a study that was admitted


def _named(value: Any) -> Any:
    """Fills in the default strategy, linear scaling."""
    return {"strategy": "linear_scaling", **value} if isinstance(value, dict) else value


# Those that no new study has are read from stored specifications; the schema of requests lacks them.
Hpo = Annotated[
    LinearScaling | Random | RandomSize | SkipJsonSchema[RandomK] | SkipJsonSchema[GridOracle] | Auto,
    Field(discriminator="strategy"),
    BeforeValidator(_named),
]
