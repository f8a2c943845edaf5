"""MechanismConfig: the one description of what a job does to private data.

Built once, at admission, stored with the job and read back by the worker. The event that is charged
(`MechanismConfig.event`) and the sampler, clipping and noise that run (worker.training.plan) are both made from it, so
that what runs is what is charged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from app.contracts.base import AccountName, DeltaValue, Document, NoiseMultiplier, Relation, Steps, Unit
from app.privacy.events import AccountEvents, Composed, SelfComposed, composed, gradient_sums, of_two_queries
from app.privacy.releases import (
    BeforeFirstStep,
    NoisyCount,
    NoisyHistogram,
    NoisyMean,
    NoisyScore,
    NoisySum,
    Release,
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


# Of version 1's JSON: what is released before the first step, in this order.
_OWN_MEMBERS = ("frequencies", "mean")


class MechanismConfig(Document):
    """Everything that a job does to private data: the training, on the `train` account, and releases.

    A split hold-out is disjoint from the training part, so the two accounts compose in parallel. Last items are held
    out of the same users: scores on them are on the `train` account too.

    The JSON form is that of version 1, which is read for ever: scores are its `releases`, and what is released before
    the first step has a member of its own (`frequencies`, `mean`), null where there is none.

    Attributes:
        releases: those before the first step, then scores, in the order of their lines on the bill.
    """

    version: Literal[1] = 1
    unit: Unit = "example"
    relation: Relation = "add_or_remove_one"
    target_delta: DeltaValue
    training: TrainingMechanism
    releases: tuple[Release, ...] = ()

    @property
    def before(self) -> tuple[BeforeFirstStep, ...]:
        """What is released of the training part before the first step, once."""
        return tuple(each for each in self.releases if not isinstance(each, NoisyScore))

    @property
    def scores(self) -> tuple[NoisyCount | NoisySum, ...]:
        """What is released at evaluations."""
        return tuple(each for each in self.releases if isinstance(each, NoisyScore))

    def started(self, training: TrainingMechanism, scores: Iterable[NoisyCount | NoisySum]) -> MechanismConfig:
        """The part of it that was started: of what comes before the first step, all."""
        return self.model_copy(update={"training": training, "releases": (*self.before, *scores)})

    def event(self, account: AccountName) -> Composed:
        """All that it does to the records of one account.

        Training part and a split hold-out are disjoint, so each account has an event of its own and the job's guarantee
        is the larger of the two ε's (parallel composition).

        Returns:
            No events where it never touches the account. Public.
        """
        training = [self.training.event] if account == "train" else []
        return composed([*training, *(each.event for each in self.releases if each.account == account)])

    @property
    def events(self) -> AccountEvents:
        """What an accountant composes, for each account."""
        holdout = self.event("holdout")
        return AccountEvents(train=self.event("train"), holdout=holdout if holdout.events else None)

    @model_validator(mode="after")
    def _one_unit(self) -> MechanismConfig:
        sizes = {self.training.records_per_unit, *(score.records_per_unit for score in self.scores)}
        if len(sizes) > 1 or (self.unit == "example" and sizes != {1}):
            raise ValueError("an example is one record, and a user has the same number of them everywhere")
        for each in self.before:
            if isinstance(each, NoisyHistogram) and sizes != {1}:
                raise ValueError("items are counted where a record is all of a user")
            if isinstance(each, NoisyMean) and self.unit != "example":
                raise ValueError("a mean of features is one of records, each of which is a unit")
        return self

    @model_validator(mode="before")
    @classmethod
    def _read_version_1(cls, stored: Any) -> Any:
        """Members of their own become releases, before the scores."""
        if not isinstance(stored, dict):
            return stored
        rest = {name: value for name, value in stored.items() if name not in _OWN_MEMBERS}
        own = {name: stored[name] for name in _OWN_MEMBERS if stored.get(name) is not None}
        scores = tuple(stored.get("releases", ()))
        if not all(isinstance(each, dict) for each in own.values()) or any(
            isinstance(each, dict) and each.get("what") in _OWN_MEMBERS for each in scores
        ):
            raise ValueError("what is released before the first step has a member of its own")
        return rest | {"releases": (*({**value, "what": name} for name, value in own.items()), *scores)}

    @model_serializer(mode="wrap")
    def _write_version_1(self, write: SerializerFunctionWrapHandler) -> object:
        written = write(self)
        own = {each["what"]: each for each in written["releases"] if each["what"] in _OWN_MEMBERS}
        for each in own.values():
            del each["what"]
        written["releases"] = [each for each in written["releases"] if "what" in each]
        return written | {name: own.get(name) for name in _OWN_MEMBERS}
