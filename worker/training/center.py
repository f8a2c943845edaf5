"""Centres features by a private mean of the training part, which is released once and charged for."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from app.contracts.job_spec import JobSpec, LinearModel, PrivateMean
from app.errors import PrivacyError
from app.privacy.mechanism import MechanismConfig
from app.privacy.numerics import RELEASE_SLACK
from app.privacy.releases import NoisyMean
from worker.data.mapped import MappedDense
from worker.data.records import DenseRecords, Records
from worker.messages import Shape
from worker.noise.generator import GaussianGenerator
from worker.noise.rounding import add_noise
from worker.training.before import Released

STEP, INDEX = 0, 0  # the noise's address: scores start at step 1
TENSOR = "mean"  # its name among the model's tensors


@dataclass(frozen=True)
class Centering:
    """How features are centred.

    Attributes:
        max_norm: each record's features are clipped to this norm in the sum.
        records: the public number of training records, the divisor.
        declared: the stored mechanism's release; None on public data without privacy, and where the mean is given.
        given: the mean that the study's first trial released; None: this job computes its own.
    """

    max_norm: float
    records: int
    declared: NoisyMean | None
    given: Tensor | None = None

    @classmethod
    def of(
        cls, spec: JobSpec, mechanism: MechanismConfig | None, shape: Shape, given: Tensor | None = None
    ) -> Centering | None:
        """None for a job without centring.

        Raises:
            PrivacyError: a mean is given that the job does not ask for, or that it would release a second time.
        """
        asked = center_of(spec)
        if asked is None and given is None:
            return None
        before = mechanism.before if mechanism else ()
        declared = next((each for each in before if isinstance(each, NoisyMean)), None)
        if asked is None or (given is not None and declared is not None):
            raise PrivacyError("a study's mean is released once, and only its trials with `center` use it")
        return cls(asked.max_norm, shape.records_train, declared, given)

    @property
    def charged(self) -> bool:
        """See Release.charged."""
        return self.declared is not None

    def release(self, train: Records, key: bytes, *, data_public: bool) -> Released:
        """Releases the mean, or takes the given one: it centres records and is published with the weights."""
        mean = self.mean(train, key, data_public=data_public) if self.given is None else self.given
        return Released(lambda records: centered(records, mean), {TENSOR: mean})

    def mean(self, train: Records, key: bytes, *, data_public: bool) -> Tensor:
        """m = (Σ clip(x_i) + noise) / records: float64 (d,).

        Guarantee: a record changes the sum by at most `max_norm` in ℓ₂, exactly, and the noise has std max_norm / μ:
        one μ-GDP release. The sum adds integers, so it does not depend on the order. For the same features and key, m
        is bit for bit the same.

        Args:
            train: the training records, dense.
            key: 32 bytes of purpose "release", of the job's first segment.

        Raises:
            PrivacyError: a private mean was not charged, or the records have no dense features.
        """
        if not isinstance(train, DenseRecords | MappedDense) or (self.declared is None and not data_public):
            raise PrivacyError("a feature mean needs dense records, and on private data it must be charged")
        private_sum = train.clipped_sum(self.max_norm)
        if self.declared is None:
            return private_sum / self.records
        generator = GaussianGenerator(key)
        noise = generator.noise(STEP, INDEX, len(private_sum))
        return (
            add_noise(private_sum, noise, self.declared.noise_std * RELEASE_SLACK, generator.stream, STEP, INDEX)
            / self.records
        )


def center_of(spec: JobSpec) -> PrivateMean | None:
    """The mean that a job requests."""
    return spec.model.center if isinstance(spec.model, LinearModel) else None


def centered(records: Records, mean: Tensor) -> Records:
    """x − m.

    Raises:
        PrivacyError: the records have no dense features.
    """
    if not isinstance(records, DenseRecords | MappedDense):
        raise PrivacyError("only dense features can be centred")
    return records.less(mean)
