"""The optimizers: their rules, their state, their sources and when to prefer them; and why one does not fit a job."""

from __future__ import annotations

from typing import Any

from core.contracts import optimizers as specs
from core.contracts.base import Document
from core.contracts.dataset_spec import Columns, DatasetSpec, Features
from core.contracts.table import TableFeatures


class OptimizerText(Document):
    """What the catalogue says of an optimizer.

    Attributes:
        update: its rule, with g̃ the noised gradient of a step.
        state: its state, by the names of its slots. All of it comes from noised gradients and public numbers.
        cost: a step's privacy charge.
    """

    summary: str
    update: str
    state: dict[str, str]
    cost: str = "one noised gradient a step"
    when_to_prefer: str
    source: str


class Entry(OptimizerText):
    """An optimizer in the catalogue, with the class of its settings."""

    document: type[specs.OptimizerSettings]

    @classmethod
    def of(cls, document: type[specs.OptimizerSettings], *texts: Any, **members: Any) -> Entry:
        """Takes summary, update, state, when to prefer it, source and, where it is another one, cost."""
        names = ("summary", "update", "state", "when_to_prefer", "source", "cost")
        return cls(document=document, **dict(zip(names, texts, strict=False)), **members)


DELAYED = {"v": "second moment of mean noised gradients, from 0", "sum": "noised gradients since v was updated"}
DELAYED_UPDATE = (
    "s₁ steps: θ ← θ − η g̃; then v ← {}, with ḡ the mean of their g̃, and s₂ steps with g̃ made of "
    "clip(g_i / (√v + ε)); and so on"
)
DELAYED_COST = (
    "one noised gradient a step; with variant extra_query two of one batch, σ/√2, except at every delay-th step"
)
MOMENTS = {"m": "average of g̃, from 0", "v": "average of g̃², from 0"}

CATALOGUE: dict[str, Entry] = {
    "dp_sgd": Entry.of(
        specs.DpSgd,
        "Gradient descent, with momentum and a free last step.",
        "b ← μ b + g̃; θ ← θ − η b; with free_step once more θ ← θ − η b after the last step",
        {"b": "momentum, from 0; with momentum or free_step only"},
        "The first thing to try, above all for linear models on good features, and with full batches: one number to "
        "tune.",
        "Abadi et al. 2016, Algorithm 1; the free step: Panda et al. 2024, Appendix B.2.",
    ),
    "dp_adam": Entry.of(
        specs.DpAdam,
        "Adam on noised gradients.",
        "m ← β₁m + (1−β₁)g̃; v ← β₂v + (1−β₂)g̃²; θ ← θ − η m̂ / (√v̂ + γ)",
        MOMENTS,
        "Little noise, and coordinates of different scale. Where the noise's variance Φ = (σC/L)² dominates v̂, it "
        "acts like momentum with the learning rate η/√Φ: then prefer `dp_adambc`, or `dp_sgd`, which is simpler.",
        "Kingma & Ba 2015, Algorithm 1, on noised gradients.",
    ),
    "dp_adambc": Entry.of(
        specs.DpAdamBc,
        "DP-Adam with the noise's variance subtracted from its second moment.",
        "the moments of dp_adam; θ ← θ − η m̂ / √max(v̂ − Φ, γ′), Φ = (σC/L)²",
        MOMENTS | {"phi": "the same average of Φ"},
        "Rare classes, words or features: coordinates with small gradients keep larger steps where v̂ exceeds the "
        "noise. Tune η and γ′ together: elsewhere η/√γ′ is the effective rate.",
        'Tang, Shpilevskiy & Lécuyer 2024, "DP-AdamBC: your DP-Adam is actually DP-SGD (unless you apply bias '
        "correction)\"; on heavy-tailed labels: the same group's later work.",
    ),
    "dp_adamwosm": Entry.of(
        specs.DpAdamWosm,
        "DP-Adam with the noise's standard deviation in the place of its second moment.",
        "m ← βm + (1−β)g̃; θ ← θ − η m̂ / (σC/L + γ)",
        {"m": MOMENTS["m"]},
        "As a baseline: it is `dp_sgd` with momentum at the rate η(1−β)/((1−βᵗ)(σC/L + γ)), a public number. Its η has "
        "one scale for every σ, C and L; `learning_rate: auto` has the same purpose for `dp_sgd`.",
        'Mohapatra, Sasy, He, Kamath & Thakkar 2022, "The role of adaptive optimizers for honest private '
        'hyperparameter selection" (DPAdamWOSM).',
    ),
    "dp_zo": Entry.of(
        specs.DpZo,
        "Descent along one public random direction a step, by the records' noised mean slope: no gradients.",
        "s_i = (loss_i(θ + φz) − loss_i(θ − φz)) / 2φ; s̃ = (Σ clip_C(s_i) + N(0, σ²C²)) / L; θ ← θ − η s̃ z",
        {"z": "the step's direction, made again from `direction_seed` and never kept; public"},
        "A model whose gradients do not fit in memory, or that starts near its end, as in fine-tuning; with many "
        "steps. Elsewhere `dp_sgd` learns more: a step moves along one direction of d.",
        'Tang, Panda, Nasr, Mahloujifar & Mittal 2024, "Private fine-tuning of large language models with zeroth-order '
        'optimization" (DP-ZO).',
        "one noised number a step, priced as a noised gradient",
    ),
    "dp_rmsprop": Entry.of(
        specs.DpRmsProp,
        "RMSProp on noised gradients.",
        "v ← βv + (1−β)g̃²; θ ← θ − η g̃ / (√v + ε)",
        {"v": "average of g̃², from 0, not corrected"},
        "As a baseline for `dp2_rmsprop`; in new work prefer `dp_adambc`.",
        "Tieleman & Hinton 2012, on noised gradients.",
    ),
    "dp_adagrad": Entry.of(
        specs.DpAdaGrad,
        "AdaGrad on noised gradients.",
        "v ← v + g̃²; θ ← θ − η g̃ / (√v + ε)",
        {"v": "sum of g̃², from 0"},
        "As a baseline for `dp2_adagrad`: its steps shrink with the noise that it has accumulated.",
        "Duchi, Hazan & Singer 2011, Figure 1, on noised gradients.",
    ),
    "dp2_rmsprop": Entry.of(
        specs.Dp2RmsProp,
        "Delayed preconditioners: RMSProp with a second moment of averages over many steps, which hold less noise.",
        DELAYED_UPDATE.format("βv + (1−β)ḡ²"),
        DELAYED,
        "Sparse features and convex models (bags of words, ratings), without public data. Set the delay near one "
        "epoch, and the clipping norm of the adaptive phase several times that of the other. Deep networks: unstable "
        "at the switches.",
        'Li, Zaheer, Liu, Reddi, McMahan & Smith 2023, "Differentially private adaptive optimization with delayed '
        'preconditioners", Algorithm 1.',
        DELAYED_COST,
    ),
    "dp2_adagrad": Entry.of(
        specs.Dp2AdaGrad,
        "Delayed preconditioners with AdaGrad's rule.",
        DELAYED_UPDATE.format("v + ḡ²"),
        DELAYED,
        "As `dp2_rmsprop`, where the geometry does not change: v never forgets.",
        "Li et al. 2023, Appendix D.",
        DELAYED_COST,
    ),
    "dp2_yogi": Entry.of(
        specs.Dp2Yogi,
        "Delayed preconditioners with Yogi's rule.",
        DELAYED_UPDATE.format("v + (1−β) sign(ḡ² − v) ḡ²"),
        DELAYED,
        "As `dp2_rmsprop`, where v should fall slowly after large gradients.",
        "Li et al. 2023, Appendix D, with the sign as Zaheer et al. 2018 have it.",
        DELAYED_COST,
    ),
    "scale_then_privatize": Entry.of(
        specs.ScaleThenPrivatize,
        "Gradients are divided by the running second moment before clipping, and multiplied back after the noise.",
        "D = √v + ε_s; g̃ made of clip(g_i / D); ĝ = D g̃; then Adam's or RMSProp's rule with ĝ",
        MOMENTS,
        "Deep models with coordinates of very different scale. Tune max_grad_norm anew, scaled gradients are longer "
        "(about √d), and eps_scale with it.",
        'Ganesh, McMahan & Thakurta 2025, "On design principles for private adaptive optimizers", Algorithm 8.',
    ),
    "ada_dps": Entry.of(
        specs.AdaDps,
        "Divides gradients before clipping by a second moment from a public data set.",
        "A ← βA + (1−β)(∇L_public)²; g̃ made of clip(g_i / (√A + ε)); θ ← θ − η g̃",
        {"A": "average of squared public gradients, from 0; public"},
        "About a hundred public records of the same kind: the geometry comes from them and costs nothing.",
        'Li, Zaheer, Reddi & Smith 2022, "Private adaptive optimization with side information".',
    ),
    "pda_dpmd": Entry.of(
        specs.PdaDpmd,
        "Mixes the noised gradient with a public data set's gradient, whose share grows.",
        "θ ← θ − η (α g̃ + (1−α) ∇L_public), α = cos(π (t−1) / (2K))",
        {"public": "the public gradient of the last step; public"},
        "Public records from the same distribution as the private ones, enough to train on alone at the end.",
        'Amid et al. 2022, "Public data-assisted mirror descent for private model training", in its practical form.',
    ),
}


def side_refusal(main: DatasetSpec, side: DatasetSpec, features: tuple[int, int], records: int) -> str | None:
    """Why a data set cannot be the side information of a job on another; None if it can.

    Args:
        own, side: the job's data set, and the public one.
        features: how many each has.
        records: the declared or counted records of the other one's training part.
    """
    if side.privacy.sensitivity != "public":
        return "this data set is private: side information is not charged for, so it must be declared public"
    if records < 1:
        return "this data set has no records to compute gradients on"
    fits = _in_common(main.features) == _in_common(side.features) and features[0] == features[1]
    if main.task.of_interactions or not fits:
        return "its features differ from the job's data set in kind, number or settings"
    if main.task.model_dump(exclude={"label"}) != side.task.model_dump(exclude={"label"}):
        return "its task differs from the job's data set, or its classes or their order do"
    return None


def _in_common(features: Features) -> dict[str, Any]:
    """The settings that features of two data sets must share."""
    if isinstance(features, TableFeatures):  # cells are stored unscaled, and the job's ranges scale both
        return features.model_dump(exclude={"columns": {"__all__": {"range"}}})
    # Lists name nodes of their own data set.
    return features.model_dump(exclude=set() if isinstance(features, Columns) else {"column", "array"})


def refusal(optimizer: specs.Optimizer, steps: int, *, noised: bool, norm_adapts: bool) -> tuple[str, str] | None:
    """Why an optimizer does not fit a job, as (pointer, detail); None if it fits. From public numbers.

    Args:
        steps: T.
        noised: the job is private.
        norm_adapts: its clipping norm does.
    """
    if isinstance(optimizer, specs.DpAdamBc) and optimizer.eps_root is None and not noised:
        detail = "without noise Φ is undefined: give a number, or use `dp_adam`"
        return "/optimizer/eps_root", detail
    if isinstance(optimizer, specs.DpAdamWosm) and not noised:
        detail = "without noise there is no σC/L to divide by: use `dp_sgd` with momentum, or `dp_adam`"
        return "/optimizer/kind", detail
    if isinstance(optimizer, specs.Dp2Settings) and norm_adapts:
        return "/clipping/kind", (
            f"the phases of `{optimizer.kind}` have clipping norms of their own, which do not adapt"
        )
    if isinstance(optimizer, specs.PdaDpmd) and (optimizer.horizon or steps) < steps:
        return "/optimizer/horizon", f"α would turn negative before the last of {steps} steps: use at least {steps}"
    if isinstance(optimizer.schedule, specs.WarmupLinearSchedule) and optimizer.schedule.warmup * steps > steps - 1:
        return "/optimizer/schedule/warmup", f"the warm-up would leave none of the {steps} steps: lower it"
    return _delay_refusal(optimizer, steps) if isinstance(optimizer, specs.Dp2Settings) else None


def _delay_refusal(optimizer: specs.Dp2Settings, steps: int) -> tuple[str, str] | None:
    """Like `refusal`, for a second moment that would never be used."""
    if optimizer.variant == "extra_query" and optimizer.delay == 1:
        return "/optimizer/delay", "with a delay of 1 no step has a second query: use at least 2"
    if optimizer.delays[0] < steps:
        return None
    pointer = "/optimizer/delay" if optimizer.delay is not None else "/optimizer/delay_sgd"
    return pointer, (
        f"the first delay would leave none of the {steps} steps, and the second moment would never be used: lower it"
    )
