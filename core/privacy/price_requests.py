"""Requests to the pricing process, as frozen documents: a misspelt or missing member is refused, never priced.

Their JSON form exists only on the pipe to that process and, for StudyCommon, in the database's columns.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, SerializerFunctionWrapHandler, WrapSerializer, model_validator

from core.contracts.base import AccountName, Document, Unit, is_none
from core.contracts.dataset_spec import TypicalJob
from core.contracts.job_spec import AdaptiveNorm
from core.contracts.stored_documents import Role
from core.errors import InvalidRequest
from core.privacy.events import Event
from core.privacy.filters import Filter, filter_of
from core.privacy.mechanism import (
    MIN_COUNT_NOISE,
    AdaptiveMechanism,
    GradientSums,
    MechanismConfig,
    Selection,
    TrainingMechanism,
)
from core.privacy.prices import Units
from core.privacy.releases import BeforeFirstStep, NoisyMean, Release, Score
from core.privacy.statistics_release import StatisticsRelease


def _is_false(value: object) -> bool:
    return value is False


def _without_empty(release: Score, write: SerializerFunctionWrapHandler) -> object:
    """Writes a trial's score as version 1 stores it: leaves out `groups`, `ranks` and `cutoff` if unset."""
    return {name: value for name, value in write(release).items() if value not in (None, {})}


def _bound_first(mean: NoisyMean | None, write: SerializerFunctionWrapHandler) -> object:
    """Writes the mean that a study's trials share, as version 1 stores it."""
    written = write(mean)
    return written and {name: written[name] for name in ("max_norm", "noise_mu", "records")}


StoredScore = Annotated[Score, WrapSerializer(_without_empty)]


class FilterChoice(Document):
    """The filter of the ledger that pays."""

    kind: str
    order: float | None = None

    def build(self) -> Filter:
        """Returns the filter; raises InvalidRequest if it does not exist."""
        return filter_of(self.kind, self.order)


class TrainingPlan(GradientSums):
    """A TrainingMechanism before its noise is known.

    Attributes:
        adaptive: the requested count of an adaptive norm; pricing chooses its noise if the request leaves it out.
    """

    adaptive: AdaptiveNorm | None = Field(default=None, exclude_if=is_none)

    def with_noise(self, sigma: float) -> TrainingMechanism:
        """Returns the mechanism with noise multiplier σ.

        Raises:
            InvalidRequest: the requested count of an adaptive norm has too little noise.
        """
        shared = {name: getattr(self, name) for name in GradientSums.model_fields}
        return TrainingMechanism(**shared, noise_multiplier=sigma, adaptive=self.count(sigma))

    def count(self, sigma: float) -> AdaptiveMechanism | None:
        """Returns an adaptive norm's count with its noise: the requested one, or max(L/10, 5σ).

        Raises:
            InvalidRequest: the request has less noise than MIN_COUNT_NOISE · σ.
        """
        adaptive = self.adaptive
        if adaptive is None:
            return None
        noise = adaptive.count_noise_multiplier or max(self.expected_batch_size / 10.0, 5.0 * sigma)
        if noise < MIN_COUNT_NOISE * sigma:
            smallest = MIN_COUNT_NOISE * sigma
            detail = f"must be at least {smallest:.4g}, twice the step's σ: less noise here adds noise to the gradient"
            raise InvalidRequest.at("/clipping/adaptive/count_noise_multiplier", detail)
        return AdaptiveMechanism(
            target_quantile=adaptive.target_quantile, learning_rate=adaptive.learning_rate, count_noise_multiplier=noise
        )


class PlanRequest(Document):
    """A job that trains once: its whole mechanism except the noise, which pricing calibrates to its ε.

    Attributes:
        target_epsilon, noise_multiplier: a price needs exactly one of them; `largest_that_fits` ignores both.
        releases, statistics, selection: see MechanismConfig.
    """

    training: TrainingPlan
    target_epsilon: float | None
    noise_multiplier: float | None
    target_delta: float
    releases: tuple[Release, ...] = ()
    statistics: StatisticsRelease | None = Field(default=None, exclude_if=is_none)
    selection: Selection | None = Field(default=None, exclude_if=is_none)
    unit: Unit = "example"
    filter: FilterChoice

    def mechanism(self, sigma: float) -> MechanismConfig:
        """Returns the mechanism with noise multiplier σ.

        Raises:
            InvalidRequest: as in TrainingPlan.with_noise.
        """
        return MechanismConfig(
            unit=self.unit,
            target_delta=self.target_delta,
            training=self.training.with_noise(sigma),
            releases=self.releases,
            statistics=self.statistics,
            selection=self.selection,
        )

    def released_on(self, account: AccountName) -> list[Event]:
        """Returns the events of all releases on an account."""
        return [each.event for each in self.releases if each.account == account]


class FitRequest(Document):
    """Asks for the largest ε that fits: the plan, and the units that its accounts still have."""

    plan: PlanRequest
    remaining: Units


class StudyRun(Document):
    """A trial of a study, before its price. `level` is a pilot's level, from 0; None for other trials."""

    role: Role
    level: int | None
    releases: tuple[StoredScore, ...]


class StudyCommon(Document):
    """The common part of a study's trials, stored with the study.

    Attributes:
        mean: the private mean that centres features.
        mean_once: the study's first trial releases it, and later trials get the result. False (an oracle, whose trials
            are priced one by one, and every study that was stored before there was this choice): each trial releases
            its own.
    """

    training: TrainingPlan
    target_delta: float
    unit: Unit
    filter: FilterChoice
    mean: Annotated[NoisyMean | None, WrapSerializer(_bound_first)] = None
    mean_once: bool = Field(default=False, exclude_if=_is_false)

    @model_validator(mode="after")
    def _divisible(self) -> StudyCommon:
        """A study divides its total by steps of one kind: what is priced otherwise must not reach that code."""
        if self.training.cycle or self.training.noise or self.training.truncation:
            raise ValueError("a study's trials have full or Poisson batches and independent noise")
        return self

    def before(self, number: int) -> tuple[BeforeFirstStep, ...]:
        """A trial's own releases before its first step, which it is charged for."""
        if self.mean is None or (self.mean_once and number > 0):
            return ()
        return (self.mean,)


class StudyRequest(StudyCommon):
    """A study, whose total is divided among its trials.

    Attributes:
        levels: ε of each level of pilots.
        steps: the least and the largest T of a full-batch trial; under Poisson sampling every trial has the plan's T.
        oracle: each trial gets the whole total by itself.
    """

    runs: tuple[StudyRun, ...]
    levels: tuple[float, ...]
    total_epsilon: float
    steps: tuple[int, int]
    oracle: bool

    @property
    def common(self) -> StudyCommon:
        """The part that is stored with the study."""
        return StudyCommon(
            training=self.training,
            target_delta=self.target_delta,
            unit=self.unit,
            filter=self.filter,
            mean=self.mean,
            mean_once=self.mean_once,
        )

    @property
    def sharers(self) -> int:
        """How many trials share the rest that levels and scores leave."""
        return sum(run.level is None for run in self.runs)

    def with_total(self, epsilon: float) -> StudyRequest:
        """Returns the same study with another total ε."""
        return self.model_copy(update={"total_epsilon": epsilon})


class StudyFitRequest(Document):
    """Asks for the largest total that fits: the study, and the units that its accounts still have."""

    study: StudyRequest
    remaining: Units


class FinalRunRequest(Document):
    """A variant of `study`: another total, other levels (ε of each), and `runs_per_level` pilots at each level."""

    study: StudyRequest
    total_epsilon: float
    levels: tuple[float, ...]
    runs_per_level: int


class CompareRequest(Document):
    """Each job's event on one account, to compare accountants on them.

    Attributes:
        counts: how many jobs have each event; empty: one each.
    """

    events: tuple[Event, ...]
    delta: float
    counts: tuple[int, ...] = ()

    @property
    def jobs(self) -> list[tuple[Event, int]]:
        """The events, each with the number of its jobs."""
        return list(zip(self.events, self.counts or (1,) * len(self.events), strict=True))


class OrderRequest(Document):
    """Asks for the order of a data set's `rdp` filter."""

    cap_epsilon: float
    cap_delta: float
    records: int
    typical_job: TypicalJob | None


class WarmRequest(Document):
    """Asks the pricing process to load its libraries."""
