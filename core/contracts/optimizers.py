"""The optimizers that a JobSpec can name, and their learning-rate schedules."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints, model_validator

from core.contracts.base import NO_NUL, Document, Steps

# Bounds for learning rates: with weight decay below 1/η, an update shrinks parameters and never flips or amplifies
# them.
Positive = Annotated[float, Field(strict=True, ge=1e-12, le=1e12)]
# Bounds for terms that keep a divisor above zero: far from where floats underflow.
Guard = Annotated[float, Field(strict=True, ge=1e-30, le=1e6)]
# Bounds for divisors of gradients before clipping: far from where the square underflows.
Divisor = Annotated[float, Field(strict=True, ge=1e-10, le=1e6)]
Average = Annotated[float, Field(strict=True, ge=0.0, lt=1.0)]


class ConstantSchedule(Document):
    """η_t = η."""

    kind: Literal["constant"] = "constant"

    @property
    def mean_square(self) -> float:
        """The mean of (η_t/η)² over a job's steps."""
        return 1.0


class WarmupLinearSchedule(Document):
    """Rises over W = ⌈warmup · T⌉ steps, η_t = η t/W, then falls: η_t = η (T + 1 − t) / (T + 1 − W).

    No step has rate 0, because each step is paid for.
    """

    kind: Literal["warmup_linear"] = "warmup_linear"
    warmup: Annotated[float, Field(strict=True, ge=0.0, lt=1.0)] = 0.2

    @property
    def mean_square(self) -> float:
        """See ConstantSchedule.mean_square: up to 1/T."""
        return 1.0 / 3.0


class CosineSchedule(Document):
    """η_t = η (f + (1 − f) (1 + cos(π (t − 1)/T))/2), with f = `final`."""

    kind: Literal["cosine"] = "cosine"
    final: Annotated[float, Field(strict=True, ge=0.0, le=1.0)] = 0.0

    @property
    def mean_square(self) -> float:
        """See ConstantSchedule.mean_square: up to 1/T."""
        return self.final**2 + self.final * (1.0 - self.final) + 0.375 * (1.0 - self.final) ** 2


Schedule = Annotated[ConstantSchedule | WarmupLinearSchedule | CosineSchedule, Field(discriminator="kind")]


class TailAverage(Document):
    """The mean of the last ⌈share · T⌉ iterates."""

    kind: Literal["tail"] = "tail"
    share: Annotated[float, Field(strict=True, gt=0.0, le=1.0)] = 0.5


class MovingAverage(Document):
    """The mean of all iterates, weighted by decayᵀ⁻ᵗ: ā ← ā + w_t (θ_t − ā), w_t = (1 − decay)/(1 − decayᵗ)."""

    kind: Literal["moving"] = "moving"
    decay: Annotated[float, Field(strict=True, gt=0.0, lt=1.0)] = 0.99


Averaging = Annotated[TailAverage | MovingAverage, Field(discriminator="kind")]


class OptimizerSettings(Document):
    """What all optimizers share. Schedules, decay and averaging are post-processing and cost no privacy.

    `learning_rate`: η, or "auto": a number from public facts, which admission puts in its place (app.hpo.rates).

    `decay`: decoupled, θ ← (1 − η_t λ) θ before the update; coupled, λ θ is added to the noised gradient, and enters
    momentum and second moments.

    `averaging`: the published model is this average of the iterates; null: the last one. Scores along the way are of
    the iterates.

    Attributes:
        divides: gradients are divided by one number for each parameter before they are clipped.
        divides_always: in every query.
        observes: each step computes a public gradient too.
    """

    divides: ClassVar[bool] = False
    divides_always: ClassVar[bool] = False
    observes: ClassVar[bool] = False
    learning_rate: Positive | Literal["auto"] = "auto"
    weight_decay: Annotated[float, Field(ge=0.0, le=1e6)] = 0.0
    decay: Literal["decoupled", "coupled"] = "decoupled"
    schedule: Schedule = ConstantSchedule()
    averaging: Averaging | None = None

    @model_validator(mode="after")
    def _decays(self) -> OptimizerSettings:
        if self.learning_rate == "auto":
            return self
        if self._shrinks_parameters() and self.learning_rate * self.weight_decay > 1.0:
            raise ValueError(
                "learning_rate · weight_decay is above 1: parameters would flip and grow, not decay; lower one of them"
            )
        return self

    @abstractmethod
    def kept(self) -> int:
        """How many float64 numbers its own state has for each trained number: the memory that admission counts."""

    @property
    def side(self) -> str | None:
        """The public data set with its side information; None: it takes none."""
        return None

    @property
    def state_numbers(self) -> int:
        """`kept`, and one more for the average.

        >>> DpAdam(averaging=TailAverage()).state_numbers
        3
        """
        return self.kept() + (self.averaging is not None)

    @property
    def rate(self) -> float:
        """η of a job that was admitted.

        Raises:
            ValueError: it is still "auto".
        """
        if self.learning_rate == "auto":
            raise ValueError("`learning_rate` is still auto")
        return self.learning_rate

    def _shrinks_parameters(self) -> bool:
        """Returns True if decay multiplies parameters by 1 − η λ; coupled adaptive decay has no such scale."""
        return self.decay == "decoupled"


class DpSgd(OptimizerSettings):
    """θ ← θ − η b, b ← μ b + g̃. `free_step`: one more update after the last step, as post-processing."""

    kind: Literal["dp_sgd"] = "dp_sgd"
    momentum: Average = 0.0
    free_step: bool = False

    def kept(self) -> int:
        """See OptimizerSettings.kept: momentum."""
        return int(self.momentum > 0.0 or self.free_step)

    @model_validator(mode="after")
    def _one_end(self) -> DpSgd:
        if self.free_step and self.averaging is not None:
            raise ValueError("`free_step` moves the last iterate, which `averaging` does not publish: give one of them")
        return self

    def _shrinks_parameters(self) -> bool:
        return True


class DpAdam(OptimizerSettings):
    """m ← β₁ m + (1−β₁) g̃, v ← β₂ v + (1−β₂) g̃², θ ← θ − η m̂ / (√v̂ + γ), with γ = `eps`.

    m̂ = m/(1−β₁ᵗ), v̂ = v/(1−β₂ᵗ).
    """

    kind: Literal["dp_adam"] = "dp_adam"
    betas: tuple[Average, Average] = (0.9, 0.999)
    eps: Guard = 1e-8

    def kept(self) -> int:
        """See OptimizerSettings.kept: two moments."""
        return 2


class DpAdamBc(OptimizerSettings):
    """θ ← θ − η m̂ / √max(v̂ − Φ, γ′), with DP-Adam's moments, Φ = (σC/L)², γ′ = `eps_root`; null takes the standard
    deviation of the noise in v̂."""

    kind: Literal["dp_adambc"] = "dp_adambc"
    betas: tuple[Average, Average] = (0.9, 0.999)
    eps_root: Guard | None = None

    def kept(self) -> int:
        """See OptimizerSettings.kept: two moments."""
        return 2


class DpAdamWosm(OptimizerSettings):
    """m ← β m + (1−β) g̃, θ ← θ − η m̂ / (σC/L + γ), with m̂ = m/(1−βᵗ), γ = `eps`.

    Adam's second moment is the noise that it converges to: `dp_sgd` with momentum β at the rate
    η (1−β) / ((1−βᵗ)(σC/L + γ)). With a clipping norm that moves, each step is divided by its own σC/L.

    Source: Mohapatra et al. 2022, "The role of adaptive optimizers for honest private hyperparameter selection".
    """

    kind: Literal["dp_adamwosm"] = "dp_adamwosm"
    beta: Average = 0.9
    eps: Guard = 1e-8

    def kept(self) -> int:
        """See OptimizerSettings.kept: a first moment."""
        return 1


class DpZo(OptimizerSettings):
    """θ ← θ − η s̃ z_t, with s̃ the noised mean of clip_C((loss(θ + φ z_t) − loss(θ − φ z_t)) / 2φ) over the records.

    One public direction z_t of random signs a step, from `direction_seed`; φ = `phi`. No gradients: two forward passes.
    Memory holds the parameters, a moved copy and a forward pass. `max_grad_norm` bounds the slope, which is about as
    long as one gradient; η is about √d times below `dp_sgd`'s, or less. Rounding in float32 (about 10⁻⁷ ℓ/φ) and the
    loss's curvature (φ²) change slopes, not their bound. Dropout is off. Refused: clipping `per_layer` and `adaptive`,
    `opacus`, correlated `noise`, `augmentation`, `audit`, `runtime.shard`, `learning_rate` "auto".

    Source: Tang et al. 2024, "Private fine-tuning of large language models with zeroth-order optimization" (DP-ZO).
    """

    kind: Literal["dp_zo"] = "dp_zo"
    phi: Annotated[float, Field(strict=True, ge=1e-5, le=1.0)] = 1e-3
    direction_seed: Annotated[int, Field(strict=True, ge=0, lt=2**53)] = 0

    def kept(self) -> int:
        """See OptimizerSettings.kept: nothing."""
        return 0


class DpRmsProp(OptimizerSettings):
    """v ← β v + (1−β) g̃², θ ← θ − η g̃ / (√v + ε)."""

    kind: Literal["dp_rmsprop"] = "dp_rmsprop"
    beta: Average = 0.9
    eps: Guard = 1e-8

    def kept(self) -> int:
        """See OptimizerSettings.kept: a second moment."""
        return 1


class DpAdaGrad(OptimizerSettings):
    """v ← v + g̃², θ ← θ − η g̃ / (√v + ε)."""

    kind: Literal["dp_adagrad"] = "dp_adagrad"
    eps: Guard = 1e-10

    def kept(self) -> int:
        """See OptimizerSettings.kept: a second moment."""
        return 1


class Dp2Settings(OptimizerSettings):
    """Delayed preconditioners. s₁ steps of DP-SGD with η and C, then s₂ steps with `learning_rate_adaptive` and
    `max_grad_norm_adaptive` on gradients that are divided by √v + ε before clipping.

    `delay` sets s₁ and s₂; or set `delay_sgd` and `delay_adaptive`. `debias` subtracts the noise's share from the input
    of v. `variant`: the method, or one of the paper's ablations: `noise_first` divides after the noise; `extra_query`
    queries a step's batch twice and is charged for it.
    """

    divides: ClassVar[bool] = True
    learning_rate_adaptive: Positive
    max_grad_norm_adaptive: Annotated[float, Field(strict=True, ge=1e-6, le=1e6)]
    delay: Steps | None = None
    delay_sgd: Steps | None = None
    delay_adaptive: Steps | None = None
    eps: Divisor = 1e-7
    debias: bool = False
    variant: Literal["delayed", "extra_query", "noise_first"] = "delayed"

    @property
    def delays(self) -> tuple[int, int]:
        """Returns s₁ and s₂."""
        return self.delay_sgd or self.delay or 1, self.delay_adaptive or self.delay or 1

    def kept(self) -> int:
        """See OptimizerSettings.kept: a second moment, and a sum."""
        return 2

    @model_validator(mode="after")
    def _one_way_to_say_delays(self) -> Dp2Settings:
        apart = self.delay_sgd is not None, self.delay_adaptive is not None
        if any(apart) == (self.delay is not None) or any(apart) != all(apart):
            raise ValueError("give either `delay`, or both `delay_sgd` and `delay_adaptive`")
        return self

    @model_validator(mode="after")
    def _defined(self) -> Dp2Settings:
        if self.variant == "extra_query" and self.delay is None:
            raise ValueError("`extra_query` has no phases: give `delay` alone")
        if self.variant == "extra_query" and self.debias:
            raise ValueError("`extra_query` begins with a sum of one gradient, not of `delay`: leave `debias` out")
        if self.weight_decay > 0.0 and self.decay == "coupled":
            raise ValueError(
                "coupled decay is undefined here: λ θ would enter v without being divided by it; use decoupled decay"
            )
        if self.learning_rate_adaptive * self.weight_decay > 1.0:
            raise ValueError(
                "learning_rate_adaptive · weight_decay is above 1: parameters would flip, not decay; lower one of them"
            )
        return self


class Dp2RmsProp(Dp2Settings):
    """v ← β v + (1−β) ḡ², from 0 and uncorrected, where ḡ is the mean noised gradient of the last s₁ steps.

    s₁ = `delay_sgd` and s₂ = `delay_adaptive`, or both `delay`. s₁ steps are DP-SGD's, with `learning_rate` and
    `max_grad_norm`; then v is updated. The next s₂ steps divide each record's gradient by √v + ε, then clip to
    `max_grad_norm_adaptive`, add noise, and move with `learning_rate_adaptive`; they never feed v. The price is
    DP-SGD's, for any norms. `debias` subtracts the noise's share Φ/s₁ from ḡ².

    `variant`, the paper's ablations: `noise_first` clips and noises before it divides, at the same price. `extra_query`
    has no phases: each step's noised gradient feeds v, updated at steps 1, s+1, 2s+1, …; the other steps move along a
    second noisy sum, of divided gradients, and are charged as σ/√2.
    """

    kind: Literal["dp2_rmsprop"] = "dp2_rmsprop"
    beta: Average = 0.9


class Dp2AdaGrad(Dp2Settings):
    """v ← v + ḡ², in the phases of `dp2_rmsprop`."""

    kind: Literal["dp2_adagrad"] = "dp2_adagrad"


class Dp2Yogi(Dp2Settings):
    """v ← v + (1−β) sign(ḡ² − v) ḡ², in the phases of `dp2_rmsprop`."""

    kind: Literal["dp2_yogi"] = "dp2_yogi"
    beta: Average = 0.9


class ScaleThenPrivatize(OptimizerSettings):
    """Divides gradients by √v + `eps_scale` before clipping and multiplies them back after the noise. Then applies
    Adam's or RMSProp's rule, with √(v̂ + `eps_root`) + `eps`.

    `max_grad_norm` bounds the scaled gradients: about √d times a coordinate's size once v has settled. v starts at 0,
    without correction where it divides. `betas`: null takes (0.9, 0.999) for adam and (0, 0.9) for rmsprop.
    """

    divides: ClassVar[bool] = True
    divides_always: ClassVar[bool] = True
    kind: Literal["scale_then_privatize"] = "scale_then_privatize"
    base: Literal["adam", "rmsprop"] = "adam"
    betas: tuple[Average, Average] | None = None
    eps: Guard = 1e-8
    eps_root: Annotated[float, Field(strict=True, ge=0.0, le=1e6)] = 0.0
    eps_scale: Divisor = 1e-3

    def kept(self) -> int:
        """See OptimizerSettings.kept: two moments."""
        return 2

    @model_validator(mode="after")
    def _base_has_moments(self) -> ScaleThenPrivatize:
        if self.base == "rmsprop" and self.betas is not None and self.betas[0] != 0.0:
            raise ValueError("rmsprop keeps no first moment: set betas[0] to 0")
        return self


class PublicSideSettings(OptimizerSettings):
    """Methods with side information: the records of a public data set with the same kind of features and the same
    classes. Each step draws `public_batch_size` records with replacement; null: each step uses all.
    """

    observes: ClassVar[bool] = True
    public_dataset: Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=NO_NUL)]
    public_batch_size: Annotated[int, Field(strict=True, ge=1, le=10**6)] | None = None

    @property
    def side(self) -> str | None:
        """See OptimizerSettings.side."""
        return self.public_dataset


class AdaDps(PublicSideSettings):
    """A ← β A + (1−β) (∇L_public)²; gradients are divided by √A + ε before clipping.

    ∇L_public: each step's gradient of `public_dataset`'s training part, or of `public_batch_size` of its records. It is
    a data set that is declared public, with the same classes and features, on which the key may train. The guarantee
    does not cover its records: the owner vouches that they are not about people of the private set. The price stays.
    """

    divides: ClassVar[bool] = True
    divides_always: ClassVar[bool] = True
    kind: Literal["ada_dps"] = "ada_dps"
    beta: Average = 0.9
    eps: Divisor = 1e-5

    def kept(self) -> int:
        """See OptimizerSettings.kept: a second moment."""
        return 1

    @model_validator(mode="after")
    def _defined(self) -> AdaDps:
        if self.weight_decay > 0.0 and self.decay == "coupled":
            raise ValueError(
                "coupled decay is undefined here: λ θ would not be divided as gradients are; use decoupled decay"
            )
        return self


class PdaDpmd(PublicSideSettings):
    """θ ← θ − η (α_t g̃ + (1 − α_t) ∇L_public), α_t = cos(π (t − 1) / (2K)), with K = `horizon`; null: T.

    `public_dataset` is as for `ada_dps`.
    """

    kind: Literal["pda_dpmd"] = "pda_dpmd"
    horizon: Steps | None = None

    def kept(self) -> int:
        """See OptimizerSettings.kept: the public gradient."""
        return 1


Optimizer = (
    DpSgd
    | DpAdam
    | DpAdamBc
    | DpAdamWosm
    | DpZo
    | DpRmsProp
    | DpAdaGrad
    | Dp2RmsProp
    | Dp2AdaGrad
    | Dp2Yogi
    | ScaleThenPrivatize
    | AdaDps
    | PdaDpmd
)
