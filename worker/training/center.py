"""Features centred by a private mean of the training part, released once and charged for."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from app.contracts.job_spec import JobSpec, PrivateMean
from app.errors import PrivacyError
from app.privacy.mechanism import MechanismConfig
from app.privacy.numerics import RELEASE_SLACK
from app.privacy.releases import NoisyMean
from worker.data.records import DenseRecords, Records
from worker.messages import Shape
from worker.noise.generator import GaussianGenerator
from worker.noise.rounding import add_noise
from worker.training.before import Released

STEP, INDEX = 0, 0  # of the noise: scores begin at step 1
TENSOR = "mean"  # its name among the model's files


@dataclass(frozen=True)
class Centering:
    """What features are centred by.

    Attributes:
        max_norm: what a record's features are clipped to in the sum.
        records: the public number of training records, the divisor.
        declared: the stored mechanism's; None on public data without privacy.
    """

    max_norm: float
    records: int
    declared: NoisyMean | None

    @classmethod
    def of(cls, spec: JobSpec, mechanism: MechanismConfig | None, shape: Shape) -> Centering | None:
        """None for a job that does without."""
        asked = center_of(spec)
        if asked is None:
            return None
        before = mechanism.before if mechanism else ()
        declared = next((each for each in before if isinstance(each, NoisyMean)), None)
        return cls(asked.max_norm, shape.records_train, declared)

    @property
    def charged(self) -> bool:
        return self.declared is not None

    def release(self, train: Records, key: bytes, *, data_public: bool) -> Released:
        """The mean: records are centred by it, and it is handed out."""
        mean = self.mean(train, key, data_public=data_public)
        return Released(lambda records: centered(records, mean), {TENSOR: mean})

    def mean(self, train: Records, key: bytes, *, data_public: bool) -> Tensor:
        """m = (Σ clip(x_i) + noise) / records: float64 (d,).

        Guarantee: a record changes the sum by at most `max_norm` in ℓ₂, exactly, and the noise has std max_norm / μ:
        one μ-GDP release. The sum is one of integers, so that it does not depend on the order of adding: for the same
        features and key m is the same bit for bit.

        Args:
            train: the training records, dense.
            key: 32 bytes of purpose "release", of the job's first segment.

        Raises:
            PrivacyError: a private mean that was not charged for, or of records that have none.
        """
        if not isinstance(train, DenseRecords) or (self.declared is None and not data_public):
            raise PrivacyError("a mean of features is one of dense records, and private ones are charged for")
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
    """What a job asks for."""
    return spec.model.center if spec.model.kind == "linear" else None


def centered(records: Records, mean: Tensor) -> Records:
    """x − m.

    Raises:
        PrivacyError: records without dense features.
    """
    if not isinstance(records, DenseRecords):
        raise PrivacyError("dense features are centred, and no others")
    return records.less(mean)
