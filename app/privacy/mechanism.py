"""MechanismConfig: the one description of what a job does to private data.

Built once, at admission, stored with the job and read back by the worker. The event that is charged
(`MechanismConfig.event`) and the sampler, clipping and noise that run (worker.training.plan) are both made from it, so
that what runs is what is charged.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from app.contracts.base import AccountName, DeltaValue, Document, NoiseMultiplier, Relation, Steps, Unit
from app.contracts.hf import rank_groups
from app.privacy.events import (
    AccountEvents,
    Composed,
    SelfComposed,
    composed,
    gradient_sums,
    noisy_sums,
    of_two_queries,
)

# Progress and scores of a Poisson-sampled job are seen no closer together than this: the time that a single step took
# would tell how large its batch was, and amplification by sampling needs batches hidden.
MIN_POISSON_BLOCK_STEPS = 10


MIN_COUNT_NOISE = 2.0  # of an adaptive norm's count, over σ: less would cost the gradient more than it tells


class AdaptiveMechanism(Document):
    """The noisy count that moves C: Σ_{i∈B} (1[‖g_i‖ ≤ C] − ½) + N(0, (σ_c/2)²), over the batch of the gradient.

    Its sensitivity is ½, so that its noise multiplier is σ_c.
    """

    target_quantile: Annotated[float, Field(gt=0.0, lt=1.0)]
    learning_rate: Annotated[float, Field(gt=0.0)]
    count_noise_multiplier: Annotated[float, Field(gt=0.0)]


class DelayedMechanism(Document):
    """What a delayed preconditioner D, made of noised gradients of earlier steps, changes in a step. σ and L stay.

    `delayed`: `delay_sgd` steps as ever, then `delay_adaptive` steps in which g_i / D is clipped to
    `max_grad_norm_adaptive`; and so on. `noise_first`: in those steps g_i itself is clipped to it.
    `extra_query`: all steps but every delay_sgd-th, from the first on, release a second noisy sum of their batch, of
    g_i / D clipped to `max_grad_norm_adaptive`. Both together are one Gaussian mechanism with σ/√2.
    """

    variant: Literal["delayed", "extra_query", "noise_first"]
    delay_sgd: Annotated[int, Field(ge=1)]
    delay_adaptive: Annotated[int, Field(ge=1)]
    max_grad_norm_adaptive: Annotated[float, Field(gt=0.0)]

    def is_adaptive(self, step: int) -> bool:
        """Whether a step, counted from 1, moves along what D divides: steps s₁+1 … s₁+s₂ of every s₁+s₂, or all but
        every s-th with an extra query."""
        return self._place(step) >= (1 if self.variant == "extra_query" else self.delay_sgd)

    def completes(self, step: int) -> bool:
        """Whether D changes after a step: the last of s₁ plain ones, or every s-th with an extra query."""
        return self._place(step) == (0 if self.variant == "extra_query" else self.delay_sgd - 1)

    def _place(self, step: int) -> int:
        period = self.delay_sgd if self.variant == "extra_query" else self.delay_sgd + self.delay_adaptive
        return (step - 1) % period

    def norms(self, step: int, max_grad_norm: float) -> tuple[float, ...]:
        """The clipping norm of each query of a step, counted from 1."""
        if not self.is_adaptive(step):
            return (max_grad_norm,)
        if self.variant == "extra_query":
            return (max_grad_norm, self.max_grad_norm_adaptive)
        return (self.max_grad_norm_adaptive,)

    def double_steps(self, steps: int) -> int:
        """How many of so many steps make two queries."""
        return steps - -(-steps // self.delay_sgd) if self.variant == "extra_query" else 0


class TrainingMechanism(Document):
    """T noisy sums of clipped gradients: Σ_{i∈B} clip_C(g_i) + N(0, σ_g²C² I), divided by the public L.

    `full_batch`: B is the whole training part, q = 1, T steps are (√T/σ)-GDP exactly.
    `poisson`: each unit joins B, with all its records, independently with probability q = L / units.

    A unit is one record, or a user's `records_per_unit` ones at most, each clipped to C / records_per_unit: a unit's
    whole part in the sum is at most C. L counts units.

    σ, `noise_multiplier`, is that of all that a step releases together, and what is charged. σ_g is the gradient's own:
    σ too, unless a count with noise multiplier σ_c is released beside it: two Gaussian mechanisms on one batch are one
    with σ⁻² = σ_g⁻² + σ_c⁻². `max_grad_norm` is C, of the first step where it adapts.

    Source: Andrew, Thakkar, McMahan & Ramaswamy 2021, "Differentially private learning with adaptive clipping",
    Theorem 1.
    """

    sampling: Literal["full_batch", "poisson"]
    sample_rate: Annotated[float, Field(gt=0.0, le=1.0)]
    steps: Steps
    noise_multiplier: NoiseMultiplier
    max_grad_norm: Annotated[float, Field(gt=0.0)]
    # A record's whole gradient weighs at most C in each.
    clipping: Literal["flat", "automatic", "per_layer", "adaptive"]
    adaptive: AdaptiveMechanism | None = None
    delayed: DelayedMechanism | None = None
    expected_batch_size: Annotated[int, Field(ge=1)]
    records_per_unit: Annotated[int, Field(ge=1)] = 1

    @property
    def double_steps(self) -> int:
        """How many of the T steps release two noisy sums of their batch."""
        return self.delayed.double_steps(self.steps) if self.delayed else 0

    @property
    def event(self) -> SelfComposed | Composed:
        """All steps."""
        return gradient_sums(self.sample_rate, self.noise_multiplier, self.steps, self.double_steps)

    @property
    def repeatable_steps(self) -> int:
        """How many steps the price of T covers where it is not known which ones: as many as there are dear ones."""
        return self.double_steps or self.steps

    def norms(self, step: int) -> tuple[float, ...]:
        """C of each noisy sum of a step: its public schedule."""
        return self.delayed.norms(step, self.max_grad_norm) if self.delayed else (self.max_grad_norm,)

    def at_its_dearest(self) -> TrainingMechanism:
        """So many steps, each of which costs as much as the dearest."""
        if self.double_steps == 0:
            return self
        return self.model_copy(update={"noise_multiplier": of_two_queries(self.noise_multiplier), "delayed": None})

    @model_validator(mode="after")
    def _rate_matches(self) -> TrainingMechanism:
        if self.sampling == "full_batch" and self.sample_rate != 1.0:
            raise ValueError("full batch has sample rate 1")
        return self

    @model_validator(mode="after")
    def _count_is_there(self) -> TrainingMechanism:
        if (self.clipping == "adaptive") != (self.adaptive is not None):
            raise ValueError("an adaptive norm, and nothing else, has a count")
        if self.adaptive and self.delayed:
            raise ValueError("phases have norms of their own, which do not adapt")
        if self.adaptive and self.records_per_unit > 1:
            raise ValueError("a count of records has sensitivity ½ where a unit is one record")
        if self.adaptive and self.adaptive.count_noise_multiplier < MIN_COUNT_NOISE * self.noise_multiplier:
            raise ValueError("the count's noise multiplier is at least twice that of the whole step")
        return self

    @property
    def gradient_noise_multiplier(self) -> float:
        """σ_g, rounded up: σ_g⁻² + σ_c⁻² ≤ σ⁻² over the reals."""
        if self.adaptive is None:
            return self.noise_multiplier
        share = (self.noise_multiplier / self.adaptive.count_noise_multiplier) ** 2  # at most ¼
        return self.noise_multiplier / math.sqrt(1.0 - share) * (1.0 + 2.0**-48)


class NoisySum(Document):
    """`times` releases of sums where one record weighs at most `sensitivity` in ℓ₂, a unit `records_per_unit` times it.

    Their noise has std sensitivity · records_per_unit / noise_mu.

    Of each score both the sum and its complement are released: (s, Δ − s) of one record has ℓ₂ norm at most Δ. With
    `groups` of classes they are released for each group, and for all other classes together: the sums of one record's
    group change, and no others.

    With `ranks` the losses are those of single tokens, each clipped to [0, Δ], released for each of `rank_groups`. The
    T tokens of a record weigh 1/T each: what it adds to all sums is at least 0 and adds up to Δ, so that its ℓ₂ norm is
    at most Δ, however its tokens are spread over the groups.

    `ranking`: of a record with HIT h ∈ {0, 1} and NDCG g ∈ [0, h] at `cutoff`, three sums, of (g, h − g, 1 − h): they
    are at least 0 and add up to 1, so that their ℓ₂ norm is at most Δ = 1.
    """

    what: Literal["accuracy", "loss", "ranking"]
    account: AccountName
    noise_mu: Annotated[float, Field(gt=0.0)]
    sensitivity: Annotated[float, Field(gt=0.0)] = 1.0
    times: Annotated[int, Field(ge=1)] = 1
    records_per_unit: Annotated[int, Field(ge=1)] = 1
    records: Annotated[int, Field(ge=1)]  # the public size of what is summed over; information, not a divisor
    groups: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    ranks: Annotated[int, Field(ge=1)] | None = None  # how many tokens there are
    cutoff: Annotated[int, Field(ge=1)] | None = None  # k of a ranking

    @model_validator(mode="after")
    def _groups_are_disjoint(self) -> NoisySum:
        places = [place for group in self.groups.values() for place in group]
        if len(set(places)) != len(places):
            raise ValueError("groups that overlap would let one record change several sums")
        if (self.what == "ranking") != (self.cutoff is not None) or (self.cutoff is not None and self.groups):
            raise ValueError("a ranking, and nothing else, has a cutoff; it has no groups")
        if self.ranks is not None and (self.what != "loss" or self.groups):
            raise ValueError("tokens have losses, and groups of their own")
        return self

    @property
    def metric(self) -> str:
        """The name that it is released under."""
        return f"ndcg@{self.cutoff}" if self.what == "ranking" else self.what

    @property
    def parts(self) -> frozenset[str]:
        """The names of what leaves with it, out of the same release."""
        if self.what == "ranking":
            return frozenset({f"hit@{self.cutoff}"})
        return frozenset(f"{self.what}:{name}" for name in self.group_names)

    @property
    def group_names(self) -> tuple[str, ...]:
        """Of the groups, in the order of their sums."""
        return tuple(self.groups if self.ranks is None else rank_groups(self.ranks))

    @property
    def noise_std(self) -> float:
        return self.sensitivity * self.records_per_unit / self.noise_mu

    @property
    def event(self) -> SelfComposed:
        """A sum in which one record weighs `sensitivity`, with std sensitivity/μ: Gaussian(1/μ), `times` times."""
        return noisy_sums(1.0, 1.0 / self.noise_mu, self.times)


class NoisyFrequencies(Document):
    """Of each item, of how many users' sequences it is: one histogram of the training part, before the first step.

    A user adds one to each of at most `max_items` bins: ℓ₂ norm at most √max_items. The noise has std √max_items /
    noise_mu, and the histogram is one Gaussian mechanism with noise multiplier 1 / noise_mu.
    """

    noise_mu: Annotated[float, Field(gt=0.0)]
    max_items: Annotated[int, Field(ge=1)]

    @property
    def noise_std(self) -> float:
        return math.sqrt(self.max_items) / self.noise_mu

    @property
    def event(self) -> SelfComposed:
        """A histogram of sensitivity √T with std √T/μ: Gaussian(1/μ), once."""
        return noisy_sums(1.0, 1.0 / self.noise_mu, 1)


class NoisyMean(Document):
    """The sum of the features of the training part, before the first step, each record's clipped to `max_norm`: its ℓ₂
    sensitivity. The noise has std max_norm / noise_mu, and the sum is one Gaussian mechanism with noise multiplier
    1 / noise_mu. Divided by the public `records` it is their mean."""

    noise_mu: Annotated[float, Field(gt=0.0)]
    max_norm: Annotated[float, Field(gt=0.0)]
    records: Annotated[int, Field(ge=1)]

    @property
    def noise_std(self) -> float:
        """Of the sum."""
        return self.max_norm / self.noise_mu

    @property
    def event(self) -> SelfComposed:
        """A sum of sensitivity B with std B/μ: Gaussian(1/μ), once."""
        return noisy_sums(1.0, 1.0 / self.noise_mu, 1)


def first_releases(frequencies: NoisyFrequencies | None, mean: NoisyMean | None) -> dict[str, SelfComposed]:
    """What a job releases of its training part before the first step, by the name of its line on the bill."""
    return {what: each.event for what, each in (("frequencies", frequencies), ("mean", mean)) if each is not None}


class MechanismConfig(Document):
    """Everything that a job does to private data. Training is on the `train` account, and so are a histogram of items
    and a mean of features.

    A split hold-out is disjoint from the training part, so the two accounts compose in parallel. Last items are held
    out of the same users: scores on them are on the `train` account too.
    """

    version: Literal[1] = 1
    unit: Unit = "example"
    relation: Relation = "add_or_remove_one"
    target_delta: DeltaValue
    training: TrainingMechanism
    releases: tuple[NoisySum, ...] = ()
    frequencies: NoisyFrequencies | None = None
    mean: NoisyMean | None = None

    def event(self, account: AccountName) -> Composed:
        """All that it does to the records of one account.

        Training part and a split hold-out are disjoint, so each account has an event of its own and the job's guarantee
        is the larger of the two ε's (parallel composition).

        Returns:
            No events where it never touches the account. Public.
        """
        first = first_releases(self.frequencies, self.mean).values() if account == "train" else ()
        training = [self.training.event] if account == "train" else []
        return composed([*training, *first, *(each.event for each in self.releases if each.account == account)])

    @property
    def events(self) -> AccountEvents:
        """What an accountant composes, for each account."""
        holdout = self.event("holdout")
        return AccountEvents(train=self.event("train"), holdout=holdout if holdout.events else None)

    @model_validator(mode="after")
    def _one_unit(self) -> MechanismConfig:
        sizes = {self.training.records_per_unit, *(release.records_per_unit for release in self.releases)}
        if len(sizes) > 1 or (self.unit == "example" and sizes != {1}):
            raise ValueError("an example is one record, and a user has the same number of them everywhere")
        if self.frequencies is not None and sizes != {1}:
            raise ValueError("items are counted where a record is all of a user")
        if self.mean is not None and self.unit != "example":
            raise ValueError("a mean of features is one of records, each of which is a unit")
        return self
