"""Centres features by a private mean of the training part, which is released once and charged for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import Tensor

from core.contracts.job_spec import LinearModel
from core.errors import PrivacyError
from core.privacy.numerics import release_slack
from core.privacy.releases import NoisyMean
from worker.data.mapped import MappedDense
from worker.data.passes import Batch
from worker.data.records import DenseRecords, Records, clipped_sum
from worker.statistics.base import Job, Noise, Released, Statistic

TENSOR = "mean"  # its name among the model's tensors


@dataclass(frozen=True)
class Centering(Statistic):
    """How features are centred.

    Attributes:
        max_norm: each record's features are clipped to this norm in the sum.
        records: the public number of training records, the divisor.
        declared: the stored mechanism's release; None on public data without privacy, and where the mean is given.
        features: d.
        given: the mean that the study's first trial released; None: this job computes its own.
    """

    kind: ClassVar[type[NoisyMean]] = NoisyMean
    max_norm: float
    records: int
    declared: NoisyMean | None
    features: int
    given: Tensor | None = None

    @classmethod
    def of(cls, job: Job) -> Self | None:
        """None for a job without centring.

        Raises:
            PrivacyError: a mean is given that the job does not ask for, or that it would release a second time.
        """
        center = job.spec.model.center if isinstance(job.spec.model, LinearModel) else None
        if center is None and job.mean is None:
            return None
        declared = job.declared(NoisyMean)
        if center is None or (job.mean is not None and declared is not None):
            raise PrivacyError("a study's mean is released once, and only its trials with `center` use it")
        return cls(center.max_norm, job.shape.records_train, declared, job.model.features, job.mean)

    def release(self, train: Batch[Any], noise: Noise, *, data_public: bool) -> Released:
        """Releases the mean, or takes the given one: it centres records and is published with the weights."""
        mean = self.mean(train, noise, data_public=data_public) if self.given is None else self.given
        return Released(lambda records: centered(records, mean), {TENSOR: mean})

    def mean(self, train: Batch[Any], noise: Noise, *, data_public: bool) -> Tensor:
        """m = (Σ clip(x_i) + noise) / records: float64 (d,).

        Guarantee: a record changes the sum by at most `max_norm` in ℓ₂, exactly, and the noise has std max_norm / μ:
        one μ-GDP release. The sum adds integers, so it does not depend on the order. For the same features and noise, m
        is bit for bit the same.

        Args:
            train: the training records in their slots, dense.

        Raises:
            PrivacyError: a private mean was not charged.
        """
        if self.declared is None and not data_public:
            raise PrivacyError("a feature mean of private data must be charged")
        private_sum = clipped_sum(train, self.features, self.max_norm)
        if self.declared is None:
            return private_sum / self.records
        return noise.add(private_sum, self.declared.noise_std * release_slack(len(train))) / self.records


def centered(records: Records, mean: Tensor) -> Records:
    """x − m.

    Raises:
        PrivacyError: the records have no dense features.
    """
    if not isinstance(records, DenseRecords | MappedDense):
        raise PrivacyError("only dense features can be centred")
    return records.less(mean)
