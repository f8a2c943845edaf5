"""How a job is scored: exactly on public data, else by the noisy sums that its mechanism declares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from core.contracts.base import AccountName
from core.contracts.dataset_spec import LanguageModelTask, RegressionTask, Task
from core.contracts.job_spec import JobSpec, Ranking
from core.errors import PrivacyError
from core.privacy.mechanism import MechanismConfig
from core.privacy.releases import NoisyCount, NoisySum
from worker.data.passes import Batch
from worker.data.records import Records
from worker.metrics.scores import (
    Groups,
    Score,
    ScoresTokens,
    frequency_groups,
    noisy_fit,
    noisy_ranking,
    noisy_score,
    public_scores,
)
from worker.models.base import Model, Parameters


@dataclass(frozen=True)
class Scores:
    """What is scored, and when.

    Attributes:
        declared: the mechanism's scores; empty if scores are exact.
        on: the part of the data that is scored.
        points: the number of evenly spaced scoring steps, the last step included; 0: never.
        groups: classes by group name, which are scored too.
        by_frequency: the groups are frequent and rare labels, or tokens, in this part, which is public.
        ranking: how next items are scored, if they are.
        ends: the declared range of a target, if there is one.
        confused: the histogram of true and predicted classes is scored.
    """

    declared: tuple[NoisyCount | NoisySum, ...]
    on: AccountName
    points: int
    groups: dict[str, tuple[int, ...]]
    by_frequency: Literal["train", "holdout"] | None
    ranking: Ranking | None
    ends: tuple[float, float] | None = None
    confused: bool = False

    @classmethod
    def of(
        cls, spec: JobSpec, mechanism: MechanismConfig | None, task: Task, *, data_public: bool, holdout_public: bool
    ) -> Scores:
        """A job's scores.

        Raises:
            PrivacyError: the job asks for groups by the frequency of private labels.
        """
        declared, evaluation = mechanism.scores if mechanism else (), spec.evaluation
        if evaluation is None:
            return cls(declared, "holdout", 0, {}, None, None)
        ends = task.range if isinstance(task, RegressionTask) else None
        groups = {name: tuple(places) for name, places in (evaluation.groups or {}).items()}
        counted = _counted_in(evaluation.on, task, data_public, holdout_public) if evaluation.by_frequency else None
        confused = "macro_f1" in (evaluation.metrics or ())
        return cls(declared, evaluation.on, evaluation.points, groups, counted, evaluation.ranking, ends, confused)

    def steps(self, last: int) -> tuple[int, ...]:
        """The steps of T after which the model is scored."""
        return tuple(-(-last * k // self.points) for k in range(1, self.points + 1))

    def groups_in(self, model: Model, train: Records, holdout: Records | None) -> Groups:
        """The groups; groups by frequency are counted in public data."""
        if self.by_frequency is None:
            return self.groups
        counted = train if self.by_frequency == "train" else holdout
        if counted is None:
            return {}
        if isinstance(model, ScoresTokens) and not model.classification:
            return frequency_groups(model.predicted(counted)[0], model.vocabulary)
        return frequency_groups(counted.labels, model.outputs)

    def exact(self, model: Model, parameters: Parameters, records: Records, groups: Groups) -> list[Score]:
        """Exact scores on public records."""
        return public_scores(model, parameters, records, groups, self.ranking, self.ends, confused=self.confused)

    def noisy(
        self, index: int, key: bytes, step: int, model: Model, parameters: Parameters, records: Batch[Any]
    ) -> Score:
        """One declared score on private records in their slots; see noisy_score, noisy_ranking and noisy_fit."""
        address, arguments = (self.declared[index], key, step, index), (model, parameters, records)
        if self.ranking is not None:
            return noisy_ranking(*address, *arguments, self.ranking)
        if self.declared[index].what == "r_squared":
            if self.ends is None:
                raise PrivacyError("R² needs the target's declared range")
            return noisy_fit(*address, *arguments, self.ends)
        return noisy_score(*address, *arguments)


def _counted_in(
    on: AccountName, task: Task, data_public: bool, holdout_public: bool
) -> Literal["train", "holdout"] | None:
    """The public part whose labels or tokens form the groups, if scores are exact."""
    if data_public:
        return "train"
    if isinstance(task, LanguageModelTask):
        return "holdout" if holdout_public and on == "holdout" else None
    raise PrivacyError("groups by frequency need public labels: label frequencies are private here")
