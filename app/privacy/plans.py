"""What the pricing process is asked, as frozen documents: a misspelt or a missing member is refused, never priced.

The JSON form exists on the pipe to that process, and of StudyCommon in the database's columns, and nowhere between.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SerializerFunctionWrapHandler, WrapSerializer

from app.contracts.base import AccountName, Document, Steps, Unit
from app.contracts.dataset_spec import TypicalJob
from app.contracts.job_spec import AdaptiveNorm
from app.errors import InvalidRequest
from app.privacy.events import Event
from app.privacy.filters import Filter, filter_of
from app.privacy.mechanism import (
    MIN_COUNT_NOISE,
    AdaptiveMechanism,
    DelayedMechanism,
    MechanismConfig,
    TrainingMechanism,
)
from app.privacy.prices import Units
from app.privacy.releases import BeforeFirstStep, NoisyMean, Release, Score

Role = Literal["pilot", "candidate", "final"]


def _is_none(value: object) -> bool:
    return value is None


def _without_empty(release: Score, write: SerializerFunctionWrapHandler) -> object:
    """As version 1 stores what a study's runs release: without `groups`, `ranks` and `cutoff` where there are none."""
    return {name: value for name, value in write(release).items() if value not in (None, {})}


def _bound_first(mean: NoisyMean | None, write: SerializerFunctionWrapHandler) -> object:
    """As version 1 stores the mean that a study's runs have in common."""
    written = write(mean)
    return written and {name: written[name] for name in ("max_norm", "noise_mu", "records")}


StoredScore = Annotated[Score, WrapSerializer(_without_empty)]


class FilterChoice(Document):
    """The filter of the ledger that pays."""

    kind: str
    order: float | None = None

    def build(self) -> Filter:
        """Raises InvalidRequest where there is no such filter."""
        return filter_of(self.kind, self.order)


class TrainingPlan(Document):
    """A TrainingMechanism before its noise is known.

    Attributes:
        adaptive: the count of an adaptive norm as it was asked for: its noise may be left to the price.
    """

    sampling: Literal["full_batch", "poisson"]
    sample_rate: float
    steps: Steps
    max_grad_norm: float
    clipping: Literal["flat", "automatic", "per_layer", "adaptive"]
    expected_batch_size: int
    records_per_unit: int = 1
    adaptive: AdaptiveNorm | None = Field(default=None, exclude_if=_is_none)
    delayed: DelayedMechanism | None = Field(default=None, exclude_if=_is_none)

    def double_steps(self, steps: int | None = None) -> int:
        """How many of so many steps (default: T) query their batch twice."""
        return self.delayed.double_steps(self.steps if steps is None else steps) if self.delayed else 0

    def with_noise(self, sigma: float) -> TrainingMechanism:
        """The mechanism with noise multiplier σ.

        Raises:
            InvalidRequest: the count of an adaptive norm was asked for with too little noise.
        """
        return TrainingMechanism(
            sampling=self.sampling,
            sample_rate=self.sample_rate,
            steps=self.steps,
            noise_multiplier=sigma,
            max_grad_norm=self.max_grad_norm,
            clipping=self.clipping,
            adaptive=self.count(sigma),
            delayed=self.delayed,
            expected_batch_size=self.expected_batch_size,
            records_per_unit=self.records_per_unit,
        )

    def count(self, sigma: float) -> AdaptiveMechanism | None:
        """The count of an adaptive norm with its noise: what was asked for, or max(L/10, 5σ).

        Raises:
            InvalidRequest: less noise than MIN_COUNT_NOISE · σ was asked for.
        """
        asked = self.adaptive
        if asked is None:
            return None
        noise = asked.count_noise_multiplier or max(self.expected_batch_size / 10.0, 5.0 * sigma)
        if noise < MIN_COUNT_NOISE * sigma:
            least = MIN_COUNT_NOISE * sigma
            detail = f"at least {least:.4g}, twice the step's σ: the count is paid for out of the gradient's own noise"
            raise InvalidRequest.at("/clipping/adaptive/count_noise_multiplier", detail)
        return AdaptiveMechanism(
            target_quantile=asked.target_quantile, learning_rate=asked.learning_rate, count_noise_multiplier=noise
        )


class PlanRequest(Document):
    """A job that trains once: everything of its mechanism but the noise that its ε is to be calibrated to.

    Attributes:
        target_epsilon, noise_multiplier: one of them, for a price; what would fit looks at neither.
        releases: as a mechanism's.
    """

    training: TrainingPlan
    target_epsilon: float | None
    noise_multiplier: float | None
    target_delta: float
    releases: tuple[Release, ...] = ()
    unit: Unit = "example"
    filter: FilterChoice

    def mechanism(self, sigma: float) -> MechanismConfig:
        """The mechanism with noise multiplier σ.

        Raises:
            InvalidRequest: as TrainingPlan.with_noise.
        """
        return MechanismConfig(
            unit=self.unit,
            target_delta=self.target_delta,
            training=self.training.with_noise(sigma),
            releases=self.releases,
        )

    def released_on(self, account: AccountName) -> list[Event]:
        """All releases on an account."""
        return [each.event for each in self.releases if each.account == account]


class FitRequest(Document):
    """What would fit: the plan, and the units that its accounts still have."""

    plan: PlanRequest
    remaining: Units


class StudyRun(Document):
    """A run of a study, before its price. `level` is that of a pilot, from 0."""

    role: Role
    level: int | None
    releases: tuple[StoredScore, ...]


class StudyCommon(Document):
    """What all runs of a study have in common; stored with it. Of `mean`, where there is one, each has its own."""

    training: TrainingPlan
    target_delta: float
    unit: Unit
    filter: FilterChoice
    mean: Annotated[NoisyMean | None, WrapSerializer(_bound_first)] = None

    @property
    def before(self) -> tuple[BeforeFirstStep, ...]:
        """What each run releases before its first step."""
        return (self.mean,) if self.mean is not None else ()


class StudyRequest(StudyCommon):
    """A search, whose total is divided among its runs.

    Attributes:
        levels: ε of each level of pilots.
        steps: the least and the largest T of a full-batch run; under Poisson sampling every run has the plan's.
        oracle: each run has the total, by itself.
    """

    runs: tuple[StudyRun, ...]
    levels: tuple[float, ...]
    total_epsilon: float
    steps: tuple[int, int]
    oracle: bool

    @property
    def common(self) -> StudyCommon:
        return StudyCommon(
            training=self.training,
            target_delta=self.target_delta,
            unit=self.unit,
            filter=self.filter,
            mean=self.mean,
        )

    @property
    def takers(self) -> int:
        """How many runs share what levels and scores leave."""
        return sum(run.level is None for run in self.runs)

    def with_total(self, epsilon: float) -> StudyRequest:
        return self.model_copy(update={"total_epsilon": epsilon})


class StudyFitRequest(Document):
    """What total would fit: the study, and the units that its accounts still have."""

    study: StudyRequest
    remaining: Units


class FinalRunRequest(Document):
    """A study like `study`, with another total, other levels (ε of each) and as many pilots at each of them."""

    study: StudyRequest
    total_epsilon: float
    levels: tuple[float, ...]
    runs_per_level: int


class CompareRequest(Document):
    """What each job did to one account."""

    events: tuple[Event, ...]
    delta: float


class OrderRequest(Document):
    """A data set whose `rdp` filter's order is to be chosen."""

    cap_epsilon: float
    cap_delta: float
    records: int
    typical_job: TypicalJob | None


class WarmRequest(Document):
    """Nothing: load the libraries."""
