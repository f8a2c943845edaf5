"""What a checked job computes, by its kind: one class for each. What follows from it is asked of it, never of the kind.

`app.admission.job_rules` makes it; the quote, its price and its memory read it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from app.admission import memory_estimate
from app.admission.facts import DatasetFacts
from app.admission.memory_estimate import MemoryEstimate
from app.catalogue.model_kinds import Layer
from core.contracts.job_spec import JobSpec
from core.privacy.mechanism import MechanismConfig
from core.privacy.numerics import Numerics, sizes_of
from core.privacy.releases import NoisyScore, Release, ScoreNoise

if TYPE_CHECKING:
    from core.statistics.plans import Asked
    from core.statistics.statistics_passes import Passes, ReleaseMemory


@dataclass(frozen=True, kw_only=True)
class Work(ABC):
    """What a job computes.

    Attributes:
        layers: of its model; None: it has no model.
        numerics: the shapes and number types of its passes; None of what adds integers.
    """

    layers: tuple[Layer, ...] | None = None
    numerics: Numerics | None = None

    @abstractmethod
    def noise(self, mechanism: MechanismConfig | None, releases: tuple[Release, ...]) -> tuple[ScoreNoise, ...]:
        """What it will release besides a model, each with about the largest noise on it.

        Args:
            mechanism: at the job's price; None of a study, and without privacy.
            releases: those that the job is priced with.
        """

    @abstractmethod
    def memory(self, spec: JobSpec, facts: DatasetFacts) -> MemoryEstimate:
        """About what a process of an attempt holds."""

    @abstractmethod
    def require_memory(self, limit_bytes: int | None) -> None:
        """Raises InvalidRequest if no attempt can hold the job. `limit_bytes`: of an attempt; None: it is not known."""


@dataclass(frozen=True, kw_only=True)
class Training(Work):
    """Steps of a model. `on_processors`: it asks for no GPU."""

    layers: tuple[Layer, ...]
    numerics: Numerics
    on_processors: bool

    def noise(self, mechanism: MechanismConfig | None, releases: tuple[Release, ...]) -> tuple[ScoreNoise, ...]:
        """See Work.noise: the scores; a study's are the final trial's."""
        return tuple(score for each in releases if isinstance(each, NoisyScore) for score in each.planned)

    def memory(self, spec: JobSpec, facts: DatasetFacts) -> MemoryEstimate:
        """See Work.memory; of a study, of its final trial."""
        return memory_estimate.estimate(
            spec, sizes_of(spec, facts.sizes, facts.spec.features), facts.rows, self.numerics
        )

    def require_memory(self, limit_bytes: int | None) -> None:
        """See Work.require_memory."""
        memory_estimate.check(self.layers, limit_bytes, on_processors=self.on_processors)


@dataclass(frozen=True, kw_only=True)
class Statistics(Work):
    """One release of sums.

    Attributes:
        asked: the queries.
        passes: over all slots.
        records: the declared ones that it may count.
        columns_bytes: of users' numbers or labels that are read at once; of slots.
    """

    too_large: ClassVar[tuple[str, str, str]] = (
        "/queries",
        "these queries' passes and answers alone take",
        "ask for fewer cells, or fewer queries",
    )
    asked: Asked
    passes: Passes
    records: int
    columns_bytes: int

    def noise(self, mechanism: MechanismConfig | None, releases: tuple[Release, ...]) -> tuple[ScoreNoise, ...]:
        """See Work.noise: about the largest standard error of each query's answers, where all records are counted."""
        release = None if mechanism is None else mechanism.statistics
        if mechanism is None or release is None:
            return ()
        many = self.records * mechanism.training.records_per_unit
        parts = zip(release.queries, self.asked.plans, mechanism.noise_stds(), strict=True)
        return tuple(
            ScoreNoise(
                name=f"{query.kind}({', '.join(query.columns)})",
                std=plan.planned_std(std, many),
                threshold=plan.threshold(std),
            )
            for query, plan, std in parts
        )

    def memory(self, spec: JobSpec, facts: DatasetFacts) -> MemoryEstimate:
        """See Work.memory. Parts stay on disk."""
        needs = self._needs
        return memory_estimate.of_release(
            needs.sums, needs.noise, needs.passes, needs.answers, records=self.columns_bytes
        )

    def require_memory(self, limit_bytes: int | None) -> None:
        """See Work.require_memory."""
        memory_estimate.require(
            memory_estimate.BASE_BYTES + self.columns_bytes + self._needs.whole, limit_bytes, *self.too_large
        )

    @property
    def _needs(self) -> ReleaseMemory:
        from core.statistics.statistics_passes import ReleaseMemory  # noqa: PLC0415 - numpy is loaded when it is needed

        return ReleaseMemory.of(self.asked, self.passes)


@dataclass(frozen=True, kw_only=True)
class Synthetic(Statistics):
    """The same release, of the tables of columns, and rows that follow from it.

    Attributes:
        rows, columns: how many are drawn, of how many columns.
    """

    too_large: ClassVar[tuple[str, str, str]] = (
        "/rows",
        "these rows and their tables alone take",
        "ask for fewer rows, or columns",
    )
    rows: int
    columns: int

    @property
    def _needs(self) -> ReleaseMemory:
        from core.statistics.statistics_passes import ReleaseMemory  # noqa: PLC0415 - numpy is loaded when it is needed
        from core.synthetic.synthesis import bytes_of  # noqa: PLC0415

        return replace(
            ReleaseMemory.of(self.asked, self.passes), answers=bytes_of(self.asked.numbers, self.columns, self.rows)
        )
