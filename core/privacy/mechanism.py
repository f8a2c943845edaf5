"""MechanismConfig: the single source of truth for accounting and execution of a job on private data.

Admission builds it once and stores it with the job; the worker reads it back. Both the charged event
(`MechanismConfig.event`) and the sampler, clipping and noise that run (worker.training.plan) are built from it, so the
charge matches the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from core.contracts.base import (
    AccountName,
    DeltaValue,
    Document,
    NoiseMultiplier,
    Relation,
    Steps,
    Unit,
    is_none,
    is_one,
)
from core.privacy.correlated_price import CorrelatedMechanism
from core.privacy.events import (
    AccountEvents,
    BestOf,
    Composed,
    SelfComposed,
    Truncation,
    Weights,
    composed,
    gradient_sums,
    of_two_queries,
)
from core.privacy.releases import (
    BeforeFirstStep,
    NoisyCount,
    NoisyScore,
    NoisySum,
    Release,
)
from core.privacy.statistics_release import StatisticsRelease

# Progress and scores of a Poisson-sampled job are shown at least this many steps apart. A single step's time would
# reveal its batch size, and amplification by sampling needs hidden batches.
MIN_POISSON_BLOCK_STEPS = 10


MIN_COUNT_NOISE = 2.0  # an adaptive norm's count has at least this times σ: with less it costs the gradient too much


class AdaptiveMechanism(Document):
    """The noisy count that adapts C: Σ_{i∈B} (1[‖g_i‖ ≤ C] − ½) + N(0, (σ_c/2)²), over the gradient's batch.

    Its sensitivity is ½, so its noise multiplier is σ_c.
    """

    target_quantile: Annotated[float, Field(gt=0.0, lt=1.0)]
    learning_rate: Annotated[float, Field(gt=0.0)]
    count_noise_multiplier: Annotated[float, Field(gt=0.0)]


class DelayedMechanism(Document):
    """Changes to a step by a delayed preconditioner D, computed from earlier steps' noised gradients. σ and L stay.

    `delayed`: `delay_sgd` plain steps alternate with `delay_adaptive` steps that clip g_i / D to
    `max_grad_norm_adaptive`. `noise_first`: these adaptive steps clip g_i itself to that norm.
    `extra_query`: all steps but 1, 1 + delay_sgd, 1 + 2 delay_sgd, … release a second noisy sum over their batch: of
    g_i / D, clipped to `max_grad_norm_adaptive`. Both sums together are one Gaussian mechanism with σ/√2.
    """

    variant: Literal["delayed", "extra_query", "noise_first"]
    delay_sgd: Annotated[int, Field(ge=1)]
    delay_adaptive: Annotated[int, Field(ge=1)]
    max_grad_norm_adaptive: Annotated[float, Field(gt=0.0)]

    def is_adaptive(self, step: int) -> bool:
        """Returns True if a step, counted from 1, uses the gradient divided by D: steps s₁+1 … s₁+s₂ of every s₁+s₂,
        or all but every s-th with an extra query."""
        return self._place(step) >= (1 if self.variant == "extra_query" else self.delay_sgd)

    def completes(self, step: int) -> bool:
        """Returns True if D changes after a step: the last of s₁ plain steps, or every s-th with an extra query."""
        return self._place(step) == (0 if self.variant == "extra_query" else self.delay_sgd - 1)

    def _place(self, step: int) -> int:
        period = self.delay_sgd if self.variant == "extra_query" else self.delay_sgd + self.delay_adaptive
        return (step - 1) % period

    def norms(self, step: int, max_grad_norm: float) -> tuple[float, ...]:
        """Returns the clipping norm of each query in a step, counted from 1."""
        if not self.is_adaptive(step):
            return (max_grad_norm,)
        if self.variant == "extra_query":
            return (max_grad_norm, self.max_grad_norm_adaptive)
        return (self.max_grad_norm_adaptive,)

    def double_steps(self, steps: int) -> int:
        """Returns how many of `steps` steps make two queries."""
        return steps - -(-steps // self.delay_sgd) if self.variant == "extra_query" else 0


def participations(steps: int, cycle: int | None) -> int:
    """Returns how often one unit takes part at most in `steps` steps in a row: ⌈steps/b⌉ with a cycle of b steps."""
    return -(-steps // (cycle or 1))


class GradientSums(Document):
    """T noisy sums of clipped gradients, but for their noise: the fields that a request and its mechanism share."""

    sampling: Literal["full_batch", "poisson", "cyclic"]
    sample_rate: Annotated[float, Field(gt=0.0, le=1.0)]
    cycle: Annotated[int, Field(ge=2)] | None = Field(default=None, exclude_if=is_none)
    noise: CorrelatedMechanism | None = Field(default=None, exclude_if=is_none)
    truncation: Truncation | None = Field(default=None, exclude_if=is_none)
    steps: Steps
    max_grad_norm: Annotated[float, Field(gt=0.0)]
    # In each kind a record's whole gradient weighs at most C.
    clipping: Literal["flat", "automatic", "per_layer", "adaptive"]
    expected_batch_size: Annotated[int, Field(ge=1)]
    records_per_unit: Annotated[int, Field(ge=1)] = 1
    reach: Annotated[int, Field(ge=1)] = Field(default=1, exclude_if=is_one)
    delayed: DelayedMechanism | None = Field(default=None, exclude_if=is_none)

    @property
    def terms_per_unit(self) -> int:
        """A unit moves a sum of terms of norm c by at most so many c: each record is clipped to C over this."""
        return self.records_per_unit * self.reach

    def double_steps(self, steps: int | None = None) -> int:
        """Returns how many of `steps` steps (default: T) release two noisy sums over their batch."""
        return self.delayed.double_steps(self.steps if steps is None else steps) if self.delayed else 0

    @property
    def participations(self) -> int:
        """How often one unit takes part at most: T, or ⌈T/b⌉ with a cycle of b steps."""
        return participations(self.steps, self.cycle)

    def event_of(self, sigma: float) -> SelfComposed | Composed:
        """Returns the event of all steps with noise multiplier σ."""
        return gradient_sums(self.sample_rate, sigma, self.participations, self.double_steps(), self.truncation)


# The members that version 1 of a mechanism writes last, in this order.
_LAST_MEMBERS = ("max_grad_norm", "clipping", "adaptive", "delayed", "expected_batch_size", "records_per_unit")


class TrainingMechanism(GradientSums):
    """T noisy sums of clipped gradients: Σ_{i∈B} clip_C(g_i) + N(0, σ_g²C² I), divided by the public L.

    `full_batch`: B is the whole training part, q = 1, T steps are (√T/σ)-GDP exactly.
    `poisson`: each unit joins B, with all its records, independently with probability q = L / units. With `truncation`
    B has at most so many units (core.privacy.events.TruncatedSampled).
    `cyclic`: B is one of `cycle` = b groups of units, in turn. A unit takes part in ⌈T/b⌉ steps at most, and these are
    charged as so many full batches. Groups are drawn independently for each place in the data, so the mechanism is a
    mixture, over the draws, of mechanisms with fixed groups; it is no easier to tell apart than the worst of these.

    `noise`: a step's noise takes back a part of the last one's (core.privacy.correlated_price); None: it is
    independent. σ is then what each participation is charged as, and σ_g the fresh noise's std over C.

    A unit is one record, or one user with at most `records_per_unit` records. Each record is clipped to
    C / records_per_unit, so a unit contributes at most C to the sum. L counts units.

    With a `reach` above 1 a record is read for other records' gradients too, as a graph's node is: one more or less
    moves a sum of terms of norm c by at most reach · c, so each is clipped to C / (records_per_unit · reach). These
    terms have batches of their own, so Poisson sampling is refused: no coin of the unit decides whether it takes part.

    `noise_multiplier` is σ, for everything that a step releases together; the charge uses it. σ_g is for the gradient
    alone. It equals σ unless the step also releases a count with noise multiplier σ_c: two Gaussian mechanisms on one
    batch are one with σ⁻² = σ_g⁻² + σ_c⁻². `max_grad_norm` is C; if C adapts, it is the first step's.

    Source: Andrew, Thakkar, McMahan & Ramaswamy 2021, "Differentially private learning with adaptive clipping",
    Theorem 1.
    """

    noise_multiplier: NoiseMultiplier
    adaptive: AdaptiveMechanism | None = None
    delayed: DelayedMechanism | None = None  # stored as null, unlike a request's

    @property
    def event(self) -> SelfComposed | Composed:
        """The event of all steps."""
        return self.event_of(self.noise_multiplier)

    def covers(self, segments: int) -> int:
        """Returns how many steps the price of T covers, repeated ones included, under so many keys.

        With a cycle of b steps a unit takes part in at most ⌈r/b⌉ of a segment's r steps. Over J segments that is at
        most ⌈Σ r/b⌉ + J − 1. Where steps differ in cost, repeated ones may be the most expensive: the number of
        two-query steps.
        """
        if segments > 1 and self.cycle is not None:
            return min(self.steps, max(0, self.participations + 1 - segments) * self.cycle)
        return (self.double_steps() or self.steps) if segments > 1 else self.steps

    def started(self, steps: int, segments: int) -> TrainingMechanism:
        """Returns the mechanism that `steps` started steps under so many keys are charged as; see `covers`."""
        extra = (self.cycle or 0) * (segments - 1)
        ran = self.model_copy(update={"steps": steps + extra})
        return ran.at_its_most_expensive() if self.double_steps() and segments > 1 else ran

    def norms(self, step: int) -> tuple[float, ...]:
        """Returns C for each noisy sum of a step, by the public schedule."""
        return self.delayed.norms(step, self.max_grad_norm) if self.delayed else (self.max_grad_norm,)

    def at_its_most_expensive(self) -> TrainingMechanism:
        """Returns the same number of steps, each priced as the most expensive."""
        if self.double_steps() == 0:
            return self
        return self.model_copy(update={"noise_multiplier": of_two_queries(self.noise_multiplier), "delayed": None})

    @model_validator(mode="after")
    def _rate_matches(self) -> TrainingMechanism:
        if self.sampling != "poisson" and self.sample_rate != 1.0:
            raise ValueError("without Poisson sampling the sample rate must be 1")
        if (self.sampling == "cyclic") != (self.cycle is not None) or (self.cycle and self.double_steps()):
            raise ValueError("cyclic sampling needs a cycle and steps of one query; other sampling has no cycle")
        if self.truncation is not None and (self.sampling != "poisson" or self.sample_rate >= 1.0):
            raise ValueError("a largest batch needs Poisson sampling at a rate below 1")
        if self.noise and (self.sampling == "poisson" or self.adaptive or self.delayed):
            raise ValueError("correlated noise needs one clipping norm, one query, and batches that are not drawn")
        return self

    @model_validator(mode="after")
    def _reaches(self) -> TrainingMechanism:
        if self.reach > 1 and (self.sampling == "poisson" or self.adaptive):
            raise ValueError("records that others read need batches that are not drawn, and one clipping norm")
        return self

    @model_validator(mode="after")
    def _count_is_there(self) -> TrainingMechanism:
        if (self.clipping == "adaptive") != (self.adaptive is not None):
            raise ValueError("an adaptive norm needs a count; other clipping must have none")
        if self.adaptive and self.delayed:
            raise ValueError("a delayed preconditioner's phases cannot be combined with an adaptive norm")
        if self.adaptive and self.records_per_unit > 1:
            raise ValueError("an adaptive norm's count needs a unit of one record")
        if self.adaptive and self.adaptive.count_noise_multiplier < MIN_COUNT_NOISE * self.noise_multiplier:
            raise ValueError("the count's noise multiplier must be at least twice the whole step's")
        return self

    @model_serializer(mode="wrap")
    def _write_version_1(self, write: SerializerFunctionWrapHandler) -> object:
        """Writes the members in version 1's order."""
        written = write(self)
        last = {name: written.pop(name) for name in _LAST_MEMBERS if name in written}
        return written | last

    @property
    def gradient_noise_multiplier(self) -> float:
        """σ_g, rounded up: σ_g⁻² + σ_c⁻² ≤ σ⁻² over the reals; with correlated noise σ times its stretch."""
        if self.noise is not None:
            return self.noise_multiplier * self.noise.stretch(self.cycle or 1)
        if self.adaptive is None:
            return self.noise_multiplier
        share = (self.noise_multiplier / self.adaptive.count_noise_multiplier) ** 2  # at most ¼
        return self.noise_multiplier / math.sqrt(1.0 - share) * (1.0 + 2.0**-48)

    @property
    def step_noise_multiplier(self) -> float:
        """The std of one step's noise over C: σ_g, or √(1 + λ²) σ_g with correlated noise."""
        return self.gradient_noise_multiplier * (self.noise.spread if self.noise else 1.0)


class Selection(Document):
    """The best of a secret number K of runs of the whole mechanism; P(K = k) is the k-th weight over their sum.

    Each run is T full-batch steps and one score. Only the best one's model, learning rate and score leave.
    """

    weights: Weights


# Version 1's JSON members for releases before the first step, in this order.
_OWN_MEMBERS = ("frequencies", "mean")


class MechanismConfig(Document):
    """A job's whole mechanism on private data: the training, charged to the `train` account, and the releases.

    A split hold-out is disjoint from the training part, so the two accounts compose in parallel. Held-out last items
    belong to the same users, so scores on them are charged to the `train` account too.

    The JSON form is version 1, which must stay readable for ever. Its `releases` are the scores. Each release before
    the first step has its own member (`frequencies`, `mean`), which is null if there is none.

    Attributes:
        releases: the releases before the first step, then scores, in the order of their lines on the bill.
        statistics: of a job without a model. Its `training` is then that one noisy sum: a full-batch step (T = 1)
            of the queries' sums, divided by what a unit adds to them (C = 1).
        selection: of a job that runs all of this several times, and releases the best run.
    """

    version: Literal[1] = 1
    unit: Unit = "example"
    relation: Relation = "add_or_remove_one"
    target_delta: DeltaValue
    training: TrainingMechanism
    releases: tuple[Release, ...] = ()
    statistics: StatisticsRelease | None = Field(default=None, exclude_if=is_none)
    selection: Selection | None = Field(default=None, exclude_if=is_none)

    @property
    def line(self) -> str:
        """The name of the first line on the bill."""
        if self.selection is not None:
            return "selection"
        return "training" if self.statistics is None else self.statistics.line

    def noise_stds(self) -> tuple[float, ...]:
        """The noise's std on each query's numbers, in units of 1; none of a training job."""
        sigma, k = self.training.noise_multiplier, self.training.records_per_unit
        return tuple(each.noise_std(sigma, k) for each in self.statistics.queries) if self.statistics else ()

    @property
    def before(self) -> tuple[BeforeFirstStep, ...]:
        """The releases about the training part before the first step; each happens once."""
        return tuple(each for each in self.releases if not isinstance(each, NoisyScore))

    @property
    def scores(self) -> tuple[NoisyCount | NoisySum, ...]:
        """The releases at evaluations."""
        return tuple(each for each in self.releases if isinstance(each, NoisyScore))

    def started(self, training: TrainingMechanism, scores: Iterable[NoisyCount | NoisySum]) -> MechanismConfig:
        """Returns the started part of the mechanism: `training`, `scores`, and all releases before the first step."""
        return self.model_copy(update={"training": training, "releases": (*self.before, *scores)})

    def event(self, account: AccountName) -> Composed:
        """Returns the event on the records of one account.

        The training part and a split hold-out are disjoint, so each account has its own event, and the job's guarantee
        is the larger of the two ε's (parallel composition).

        Returns:
            A composition, empty if the job never touches the account. Public.
        """
        training = [self.training.event] if account == "train" else []
        run = composed([*training, *(each.event for each in self.releases if each.account == account)])
        if self.selection is None or not run.events:
            return run
        return composed([BestOf(weights=self.selection.weights, event=run)])

    @property
    def events(self) -> AccountEvents:
        """The events of both accounts, for accountants to compose."""
        holdout = self.event("holdout")
        return AccountEvents(train=self.event("train"), holdout=holdout if holdout.events else None)

    @model_validator(mode="after")
    def _one_unit(self) -> MechanismConfig:
        sizes = {self.training.records_per_unit, *(score.records_per_unit for score in self.scores)}
        if len(sizes) > 1 or (self.unit == "example" and sizes != {1}):
            raise ValueError("`records_per_unit` must be 1 for examples, and the same in all parts for users")
        if {self.training.reach, *(score.reach for score in self.scores)} != {self.training.reach}:
            raise ValueError("`reach` must be the same in all parts")
        if self.training.reach > 1 and (self.before or self.statistics is not None):
            raise ValueError("a `reach` above 1 is of gradients and scores alone")
        for statistic in self.before:
            statistic.check_unit(self.unit, sizes)
        return self

    @model_validator(mode="after")
    def _one_release(self) -> MechanismConfig:
        training = self.training
        one_step = training.sampling == "full_batch" and training.steps == 1 and training.max_grad_norm == 1.0
        plain = not (training.adaptive or training.delayed or training.noise or self.releases)
        if self.statistics is not None and not (one_step and plain):
            raise ValueError("statistics are one full-batch noisy sum of sensitivity 1, and nothing besides")
        return self

    @model_validator(mode="after")
    def _runs_are_alike(self) -> MechanismConfig:
        training = self.training
        plain = training.sampling == "full_batch" and not (training.adaptive or training.delayed or training.noise)
        is_single = not self.before and self.statistics is None and all(each.times == 1 for each in self.scores)
        if self.selection is not None and not (plain and is_single):
            raise ValueError("the best of several runs has a price for full batches, one clipping norm and one score")
        return self

    @model_validator(mode="before")
    @classmethod
    def _read_version_1(cls, stored: Any) -> Any:
        """Turns the members `frequencies` and `mean` into releases, before the scores."""
        if not isinstance(stored, dict):
            return stored
        members = {name: value for name, value in stored.items() if name not in _OWN_MEMBERS}
        own_members = {name: stored[name] for name in _OWN_MEMBERS if stored.get(name) is not None}
        scores = tuple(stored.get("releases", ()))
        if not all(isinstance(each, dict) for each in own_members.values()) or any(
            isinstance(each, dict) and each.get("what") in _OWN_MEMBERS for each in scores
        ):
            raise ValueError("releases before the first step must be in `frequencies` and `mean`, not in `releases`")
        return members | {"releases": (*({**value, "what": name} for name, value in own_members.items()), *scores)}

    @model_serializer(mode="wrap")
    def _write_version_1(self, write: SerializerFunctionWrapHandler) -> object:
        written = write(self)
        own_releases = {each["what"]: each for each in written["releases"] if each["what"] in _OWN_MEMBERS}
        for own_release in own_releases.values():
            del own_release["what"]
        written["releases"] = [each for each in written["releases"] if "what" in each]
        return written | {name: own_releases.get(name) for name in _OWN_MEMBERS}
