"""Studies of a job: its `hpo` block. Written by scripts/write_specs.py from core/contracts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from scrimp.spec import Spec


class Auto(Spec):
    """No search where a rule gives the learning rate: one run with the whole budget. Otherwise linear scaling.

    Admission decides, from public facts alone, and puts the job that runs in its place (app.admission.choices).
    """

    strategy: Literal["auto"] = "auto"


class GridPoints(Spec):
    """How many values each bounded number takes, evenly spaced in its logarithm, both bounds included."""

    learning_rate: Annotated[int, Field(ge=1, le=100)] = 7
    steps: Annotated[int, Field(ge=1, le=100)] = 5
    max_grad_norm: Annotated[int, Field(ge=1, le=100)] = 3


class PrivateCount(Spec):
    """A noisy count of correct predictions: one record weighs 1, noise std 1/noise_mu. Each costs noise_mu² of μ².

    `on`: the part whose records are counted; its account is charged.
    """

    kind: Literal["private_count"] = "private_count"
    on: Literal["train", "holdout"] = "train"
    noise_mu: Annotated[float, Field(ge=1e-05, le=10.0)] | Literal["auto"] = "auto"


class PrivateLoss(Spec):
    """A noisy sum of losses clipped to [0, loss_bound]: one record weighs loss_bound, noise std loss_bound/noise_mu."""

    kind: Literal["private_loss"] = "private_loss"
    on: Literal["train", "holdout"] = "train"
    noise_mu: Annotated[float, Field(ge=1e-05, le=10.0)] | Literal["auto"] = "auto"
    loss_bound: Annotated[float, Field(ge=1e-06, le=1000000.0)] = 1.0


class PrivateRanking(Spec):
    """NDCG at k of next items, with HIT in the same release: a user weighs 1, noise std 1/noise_mu.

    `on`: the held-out last items belong to the users who are trained on, so the training account is charged.
    """

    kind: Literal["private_ranking"] = "private_ranking"
    on: Literal["train", "holdout"] = "holdout"
    noise_mu: Annotated[float, Field(ge=1e-05, le=10.0)] | Literal["auto"] = "auto"
    k: Annotated[int, Field(ge=1, le=10000)] = 10
    leave_out_seen: bool = False


class PublicScore(Spec):
    """The exact score on a public hold-out: accuracy, NDCG@10 of next items, or the loss. Free."""

    kind: Literal["public"] = "public"


class Space(Spec):
    """The bounds of the study, each [least, most]. They replace the spec's own values.

    `learning_rate`: or "auto": admission puts bounds from public numbers in its place (app.admission.choices).
    `steps` null: T is the job's `length`, as Poisson sampling requires. `max_grad_norm` null: C is the clipping's.
    `points`: only the values of a log grid are used.
    """

    learning_rate: (
        tuple[
            Annotated[float, Field(ge=1e-12, le=1000000000000.0)], Annotated[float, Field(ge=1e-12, le=1000000000000.0)]
        ]
        | Literal["auto"]
    ) = "auto"
    steps: tuple[Annotated[int, Field(ge=1, le=10000000)], Annotated[int, Field(ge=1, le=10000000)]] | None = None
    max_grad_norm: (
        tuple[Annotated[float, Field(ge=1e-06, le=1000000.0)], Annotated[float, Field(ge=1e-06, le=1000000.0)]] | None
    ) = None
    points: GridPoints | None = None


class LinearScaling(Spec):
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

    space: Space = Space()
    score: Annotated[PrivateCount | PrivateLoss | PrivateRanking | PublicScore, Field(discriminator="kind")] = (
        PrivateCount()
    )
    keep_weights: bool = False
    strategy: Literal["linear_scaling"] = "linear_scaling"
    levels: (
        Annotated[list[Annotated[float, Field(ge=0.0001, le=100.0)]], Field(min_length=2, max_length=3)]
        | Literal["auto"]
    ) = "auto"
    runs_per_level: Annotated[int, Field(ge=1, le=20)] = 3
    split: Literal["steps", "sample", "both"] = "steps"
    final_steps: Literal["longest", "drawn"] = "longest"
    fit_in: Literal["mu", "epsilon"] = "mu"
    curve: Literal["line", "quadratic"] = "line"


class Random(Spec):
    """One draw from the space; this one trial gets the whole budget."""

    space: Space = Space()
    strategy: Literal["random"] = "random"


class NegativeBinomialRuns(Spec):
    """P(K = k) ∝ (1 − γ)^k Π_{l<k} (l + η)/(l + 1), for 1 ≤ k. η = 1: geometric. η = 0: logarithmic."""

    kind: Literal["negative_binomial"] = "negative_binomial"
    eta: Annotated[float, Field(gt=-1.0, le=5.0)] = 1.0
    gamma: Annotated[float, Field(ge=0.001, lt=1.0)]


class PoissonRuns(Spec):
    """P(K = k) ∝ m^k/k!, for 1 ≤ k."""

    kind: Literal["poisson"] = "poisson"
    mean: Annotated[float, Field(ge=0.01, le=20.0)]


class RandomSize(Spec):
    """The best of a secret number K of runs, each with the whole noise and a learning rate drawn in secret.

    One job and no trials: `most_runs` trainings always run, and the best of the first K, by the job's own `evaluation`,
    is delivered. K has this distribution, given that 1 ≤ K ≤ `most_runs`. The result leaves `duration_s`
    after the first step, doubled until it is long enough, so that its time tells nothing: choose it amply.

    Source: Papernot & Steinke 2022, "Hyperparameter tuning with Rényi differential privacy", Lemma 7 (decision 72).
    """

    space: Space = Space()
    strategy: Literal["random_size"] = "random_size"
    distribution: Annotated[NegativeBinomialRuns | PoissonRuns, Field(discriminator="kind")]
    most_runs: Annotated[int, Field(ge=2, le=100)]
    duration_s: Annotated[int, Field(ge=1, le=604800)]
