"""Optimizers of a job, with schedules and averages. Written by scripts/write_specs.py from core/contracts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from scrimp.spec import Spec


class ConstantSchedule(Spec):
    """η_t = η."""

    kind: Literal["constant"] = "constant"


class CosineSchedule(Spec):
    """η_t = η (f + (1 − f) (1 + cos(π (t − 1)/T))/2), with f = `final`."""

    kind: Literal["cosine"] = "cosine"
    final: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0


class MovingAverage(Spec):
    """The mean of all iterates, weighted by decayᵀ⁻ᵗ: ā ← ā + w_t (θ_t − ā), w_t = (1 − decay)/(1 − decayᵗ)."""

    kind: Literal["moving"] = "moving"
    decay: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.99


class TailAverage(Spec):
    """The mean of the last ⌈share · T⌉ iterates."""

    kind: Literal["tail"] = "tail"
    share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5


class WarmupLinearSchedule(Spec):
    """Rises over W = ⌈warmup · T⌉ steps, η_t = η t/W, then falls: η_t = η (T + 1 − t) / (T + 1 − W).

    No step has rate 0, because each step is paid for.
    """

    kind: Literal["warmup_linear"] = "warmup_linear"
    warmup: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.2


class AdaDps(Spec):
    """A ← β A + (1−β) (∇L_public)²; gradients are divided by √A + ε before clipping.

    ∇L_public: each step's gradient of `public_dataset`'s training part, or of `public_batch_size` of its records. It is
    a data set that is declared public, with the same classes and features, on which the key may train. The guarantee
    does not cover its records: the owner vouches that they are not about people of the private set. The price stays.
    """

    learning_rate: Annotated[float, Field(ge=1e-12, le=1000000000000.0)] | Literal["auto"] = "auto"
    weight_decay: Annotated[float, Field(ge=0.0, le=1000000.0)] = 0.0
    decay: Literal["decoupled", "coupled"] = "decoupled"
    schedule: Annotated[ConstantSchedule | WarmupLinearSchedule | CosineSchedule, Field(discriminator="kind")] = (
        ConstantSchedule()
    )
    averaging: Annotated[TailAverage | MovingAverage, Field(discriminator="kind")] | None = None
    public_dataset: Annotated[str, Field(min_length=1, max_length=100, pattern="^[^\\x00]*$")]
    public_batch_size: Annotated[int, Field(ge=1, le=1000000)] | None = None
    kind: Literal["ada_dps"] = "ada_dps"
    beta: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    eps: Annotated[float, Field(ge=1e-10, le=1000000.0)] = 1e-05


class Dp2AdaGrad(Spec):
    """v ← v + ḡ², in the phases of `dp2_rmsprop`."""

    learning_rate: Annotated[float, Field(ge=1e-12, le=1000000000000.0)] | Literal["auto"] = "auto"
    weight_decay: Annotated[float, Field(ge=0.0, le=1000000.0)] = 0.0
    decay: Literal["decoupled", "coupled"] = "decoupled"
    schedule: Annotated[ConstantSchedule | WarmupLinearSchedule | CosineSchedule, Field(discriminator="kind")] = (
        ConstantSchedule()
    )
    averaging: Annotated[TailAverage | MovingAverage, Field(discriminator="kind")] | None = None
    learning_rate_adaptive: Annotated[float, Field(ge=1e-12, le=1000000000000.0)]
    max_grad_norm_adaptive: Annotated[float, Field(ge=1e-06, le=1000000.0)]
    delay: Annotated[int, Field(ge=1, le=10000000)] | None = None
    delay_sgd: Annotated[int, Field(ge=1, le=10000000)] | None = None
    delay_adaptive: Annotated[int, Field(ge=1, le=10000000)] | None = None
    eps: Annotated[float, Field(ge=1e-10, le=1000000.0)] = 1e-07
    debias: bool = False
    variant: Literal["delayed", "extra_query", "noise_first"] = "delayed"
    kind: Literal["dp2_adagrad"] = "dp2_adagrad"


class Dp2RmsProp(Spec):
    """v ← β v + (1−β) ḡ², from 0 and uncorrected, where ḡ is the mean noised gradient of the last s₁ steps.

    s₁ = `delay_sgd` and s₂ = `delay_adaptive`, or both `delay`. s₁ steps are DP-SGD's, with `learning_rate` and
    `max_grad_norm`; then v is updated. The next s₂ steps divide each record's gradient by √v + ε, then clip to
    `max_grad_norm_adaptive`, add noise, and move with `learning_rate_adaptive`; they never feed v. The price is
    DP-SGD's, for any norms. `debias` subtracts the noise's share Φ/s₁ from ḡ².

    `variant`, the paper's ablations: `noise_first` clips and noises before it divides, at the same price. `extra_query`
    has no phases: each step's noised gradient feeds v, updated at steps 1, s+1, 2s+1, …; the other steps move along a
    second noisy sum, of divided gradients, and are charged as σ/√2.
    """

    learning_rate: Annotated[float, Field(ge=1e-12, le=1000000000000.0)] | Literal["auto"] = "auto"
    weight_decay: Annotated[float, Field(ge=0.0, le=1000000.0)] = 0.0
    decay: Literal["decoupled", "coupled"] = "decoupled"
    schedule: Annotated[ConstantSchedule | WarmupLinearSchedule | CosineSchedule, Field(discriminator="kind")] = (
        ConstantSchedule()
    )
    averaging: Annotated[TailAverage | MovingAverage, Field(discriminator="kind")] | None = None
    learning_rate_adaptive: Annotated[float, Field(ge=1e-12, le=1000000000000.0)]
    max_grad_norm_adaptive: Annotated[float, Field(ge=1e-06, le=1000000.0)]
    delay: Annotated[int, Field(ge=1, le=10000000)] | None = None
    delay_sgd: Annotated[int, Field(ge=1, le=10000000)] | None = None
    delay_adaptive: Annotated[int, Field(ge=1, le=10000000)] | None = None
    eps: Annotated[float, Field(ge=1e-10, le=1000000.0)] = 1e-07
    debias: bool = False
    variant: Literal["delayed", "extra_query", "noise_first"] = "delayed"
    kind: Literal["dp2_rmsprop"] = "dp2_rmsprop"
    beta: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9


class Dp2Yogi(Spec):
    """v ← v + (1−β) sign(ḡ² − v) ḡ², in the phases of `dp2_rmsprop`."""

    learning_rate: Annotated[float, Field(ge=1e-12, le=1000000000000.0)] | Literal["auto"] = "auto"
    weight_decay: Annotated[float, Field(ge=0.0, le=1000000.0)] = 0.0
    decay: Literal["decoupled", "coupled"] = "decoupled"
    schedule: Annotated[ConstantSchedule | WarmupLinearSchedule | CosineSchedule, Field(discriminator="kind")] = (
        ConstantSchedule()
    )
    averaging: Annotated[TailAverage | MovingAverage, Field(discriminator="kind")] | None = None
    learning_rate_adaptive: Annotated[float, Field(ge=1e-12, le=1000000000000.0)]
    max_grad_norm_adaptive: Annotated[float, Field(ge=1e-06, le=1000000.0)]
    delay: Annotated[int, Field(ge=1, le=10000000)] | None = None
    delay_sgd: Annotated[int, Field(ge=1, le=10000000)] | None = None
    delay_adaptive: Annotated[int, Field(ge=1, le=10000000)] | None = None
    eps: Annotated[float, Field(ge=1e-10, le=1000000.0)] = 1e-07
    debias: bool = False
    variant: Literal["delayed", "extra_query", "noise_first"] = "delayed"
    kind: Literal["dp2_yogi"] = "dp2_yogi"
    beta: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9


class DpAdaGrad(Spec):
    """v ← v + g̃², θ ← θ − η g̃ / (√v + ε)."""

    learning_rate: Annotated[float, Field(ge=1e-12, le=1000000000000.0)] | Literal["auto"] = "auto"
    weight_decay: Annotated[float, Field(ge=0.0, le=1000000.0)] = 0.0
    decay: Literal["decoupled", "coupled"] = "decoupled"
    schedule: Annotated[ConstantSchedule | WarmupLinearSchedule | CosineSchedule, Field(discriminator="kind")] = (
        ConstantSchedule()
    )
    averaging: Annotated[TailAverage | MovingAverage, Field(discriminator="kind")] | None = None
    kind: Literal["dp_adagrad"] = "dp_adagrad"
    eps: Annotated[float, Field(ge=1e-30, le=1000000.0)] = 1e-10


class DpAdam(Spec):
    """m ← β₁ m + (1−β₁) g̃, v ← β₂ v + (1−β₂) g̃², θ ← θ − η m̂ / (√v̂ + γ), with γ = `eps`.

    m̂ = m/(1−β₁ᵗ), v̂ = v/(1−β₂ᵗ).
    """

    learning_rate: Annotated[float, Field(ge=1e-12, le=1000000000000.0)] | Literal["auto"] = "auto"
    weight_decay: Annotated[float, Field(ge=0.0, le=1000000.0)] = 0.0
    decay: Literal["decoupled", "coupled"] = "decoupled"
    schedule: Annotated[ConstantSchedule | WarmupLinearSchedule | CosineSchedule, Field(discriminator="kind")] = (
        ConstantSchedule()
    )
    averaging: Annotated[TailAverage | MovingAverage, Field(discriminator="kind")] | None = None
    kind: Literal["dp_adam"] = "dp_adam"
    betas: tuple[Annotated[float, Field(ge=0.0, lt=1.0)], Annotated[float, Field(ge=0.0, lt=1.0)]] = (0.9, 0.999)
    eps: Annotated[float, Field(ge=1e-30, le=1000000.0)] = 1e-08


class DpAdamBc(Spec):
    """θ ← θ − η m̂ / √max(v̂ − Φ, γ′), with DP-Adam's moments, Φ = (σC/L)², γ′ = `eps_root`; null takes the standard
    deviation of the noise in v̂.
    """

    learning_rate: Annotated[float, Field(ge=1e-12, le=1000000000000.0)] | Literal["auto"] = "auto"
    weight_decay: Annotated[float, Field(ge=0.0, le=1000000.0)] = 0.0
    decay: Literal["decoupled", "coupled"] = "decoupled"
    schedule: Annotated[ConstantSchedule | WarmupLinearSchedule | CosineSchedule, Field(discriminator="kind")] = (
        ConstantSchedule()
    )
    averaging: Annotated[TailAverage | MovingAverage, Field(discriminator="kind")] | None = None
    kind: Literal["dp_adambc"] = "dp_adambc"
    betas: tuple[Annotated[float, Field(ge=0.0, lt=1.0)], Annotated[float, Field(ge=0.0, lt=1.0)]] = (0.9, 0.999)
    eps_root: Annotated[float, Field(ge=1e-30, le=1000000.0)] | None = None


class DpAdamWosm(Spec):
    """m ← β m + (1−β) g̃, θ ← θ − η m̂ / (σC/L + γ), with m̂ = m/(1−βᵗ), γ = `eps`.

    Adam's second moment is the noise that it converges to: `dp_sgd` with momentum β at the rate
    η (1−β) / ((1−βᵗ)(σC/L + γ)). With a clipping norm that moves, each step is divided by its own σC/L.

    Source: Mohapatra et al. 2022, "The role of adaptive optimizers for honest private hyperparameter selection".
    """

    learning_rate: Annotated[float, Field(ge=1e-12, le=1000000000000.0)] | Literal["auto"] = "auto"
    weight_decay: Annotated[float, Field(ge=0.0, le=1000000.0)] = 0.0
    decay: Literal["decoupled", "coupled"] = "decoupled"
    schedule: Annotated[ConstantSchedule | WarmupLinearSchedule | CosineSchedule, Field(discriminator="kind")] = (
        ConstantSchedule()
    )
    averaging: Annotated[TailAverage | MovingAverage, Field(discriminator="kind")] | None = None
    kind: Literal["dp_adamwosm"] = "dp_adamwosm"
    beta: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    eps: Annotated[float, Field(ge=1e-30, le=1000000.0)] = 1e-08


class DpRmsProp(Spec):
    """v ← β v + (1−β) g̃², θ ← θ − η g̃ / (√v + ε)."""

    learning_rate: Annotated[float, Field(ge=1e-12, le=1000000000000.0)] | Literal["auto"] = "auto"
    weight_decay: Annotated[float, Field(ge=0.0, le=1000000.0)] = 0.0
    decay: Literal["decoupled", "coupled"] = "decoupled"
    schedule: Annotated[ConstantSchedule | WarmupLinearSchedule | CosineSchedule, Field(discriminator="kind")] = (
        ConstantSchedule()
    )
    averaging: Annotated[TailAverage | MovingAverage, Field(discriminator="kind")] | None = None
    kind: Literal["dp_rmsprop"] = "dp_rmsprop"
    beta: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    eps: Annotated[float, Field(ge=1e-30, le=1000000.0)] = 1e-08


class DpSgd(Spec):
    """θ ← θ − η b, b ← μ b + g̃. `free_step`: one more update after the last step, as post-processing."""

    learning_rate: Annotated[float, Field(ge=1e-12, le=1000000000000.0)] | Literal["auto"] = "auto"
    weight_decay: Annotated[float, Field(ge=0.0, le=1000000.0)] = 0.0
    decay: Literal["decoupled", "coupled"] = "decoupled"
    schedule: Annotated[ConstantSchedule | WarmupLinearSchedule | CosineSchedule, Field(discriminator="kind")] = (
        ConstantSchedule()
    )
    averaging: Annotated[TailAverage | MovingAverage, Field(discriminator="kind")] | None = None
    kind: Literal["dp_sgd"] = "dp_sgd"
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    free_step: bool = False


class DpZo(Spec):
    """θ ← θ − η s̃ z_t, with s̃ the noised mean of clip_C((loss(θ + φ z_t) − loss(θ − φ z_t)) / 2φ) over the records.

    One public direction z_t of random signs a step, from `direction_seed`; φ = `phi`. No gradients: two forward passes.
    Memory holds the parameters, a moved copy and a forward pass. `max_grad_norm` bounds the slope, which is about as
    long as one gradient; η is about √d times below `dp_sgd`'s, or less. Rounding in float32 (about 10⁻⁷ ℓ/φ) and the
    loss's curvature (φ²) change slopes, not their bound. Dropout is off. Refused: clipping `per_layer` and `adaptive`,
    `opacus`, correlated `noise`, `augmentation`, `audit`, `runtime.shard`, `learning_rate` "auto".

    Source: Tang et al. 2024, "Private fine-tuning of large language models with zeroth-order optimization" (DP-ZO).
    """

    learning_rate: Annotated[float, Field(ge=1e-12, le=1000000000000.0)] | Literal["auto"] = "auto"
    weight_decay: Annotated[float, Field(ge=0.0, le=1000000.0)] = 0.0
    decay: Literal["decoupled", "coupled"] = "decoupled"
    schedule: Annotated[ConstantSchedule | WarmupLinearSchedule | CosineSchedule, Field(discriminator="kind")] = (
        ConstantSchedule()
    )
    averaging: Annotated[TailAverage | MovingAverage, Field(discriminator="kind")] | None = None
    kind: Literal["dp_zo"] = "dp_zo"
    phi: Annotated[float, Field(ge=1e-05, le=1.0)] = 0.001
    direction_seed: Annotated[int, Field(ge=0, lt=9007199254740992)] = 0


class PdaDpmd(Spec):
    """θ ← θ − η (α_t g̃ + (1 − α_t) ∇L_public), α_t = cos(π (t − 1) / (2K)), with K = `horizon`; null: T.

    `public_dataset` is as for `ada_dps`.
    """

    learning_rate: Annotated[float, Field(ge=1e-12, le=1000000000000.0)] | Literal["auto"] = "auto"
    weight_decay: Annotated[float, Field(ge=0.0, le=1000000.0)] = 0.0
    decay: Literal["decoupled", "coupled"] = "decoupled"
    schedule: Annotated[ConstantSchedule | WarmupLinearSchedule | CosineSchedule, Field(discriminator="kind")] = (
        ConstantSchedule()
    )
    averaging: Annotated[TailAverage | MovingAverage, Field(discriminator="kind")] | None = None
    public_dataset: Annotated[str, Field(min_length=1, max_length=100, pattern="^[^\\x00]*$")]
    public_batch_size: Annotated[int, Field(ge=1, le=1000000)] | None = None
    kind: Literal["pda_dpmd"] = "pda_dpmd"
    horizon: Annotated[int, Field(ge=1, le=10000000)] | None = None


class ScaleThenPrivatize(Spec):
    """Divides gradients by √v + `eps_scale` before clipping and multiplies them back after the noise. Then applies
    Adam's or RMSProp's rule, with √(v̂ + `eps_root`) + `eps`.

    `max_grad_norm` bounds the scaled gradients: about √d times a coordinate's size once v has settled. v starts at 0,
    without correction where it divides. `betas`: null takes (0.9, 0.999) for adam and (0, 0.9) for rmsprop.
    """

    learning_rate: Annotated[float, Field(ge=1e-12, le=1000000000000.0)] | Literal["auto"] = "auto"
    weight_decay: Annotated[float, Field(ge=0.0, le=1000000.0)] = 0.0
    decay: Literal["decoupled", "coupled"] = "decoupled"
    schedule: Annotated[ConstantSchedule | WarmupLinearSchedule | CosineSchedule, Field(discriminator="kind")] = (
        ConstantSchedule()
    )
    averaging: Annotated[TailAverage | MovingAverage, Field(discriminator="kind")] | None = None
    kind: Literal["scale_then_privatize"] = "scale_then_privatize"
    base: Literal["adam", "rmsprop"] = "adam"
    betas: tuple[Annotated[float, Field(ge=0.0, lt=1.0)], Annotated[float, Field(ge=0.0, lt=1.0)]] | None = None
    eps: Annotated[float, Field(ge=1e-30, le=1000000.0)] = 1e-08
    eps_root: Annotated[float, Field(ge=0.0, le=1000000.0)] = 0.0
    eps_scale: Annotated[float, Field(ge=1e-10, le=1000000.0)] = 0.001
