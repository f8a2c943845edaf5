"""A statistic of the training part, released once before a job's first step: what each one is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, TypeVar

from torch import Tensor

from core.contracts.dataset_spec import Features
from core.contracts.job_spec import JobSpec
from core.privacy.mechanism import MechanismConfig
from core.privacy.releases import BeforeFirstStep
from worker.data.passes import Batch
from worker.data.records import Records
from worker.messages import Shape
from worker.models.base import Model
from worker.noise.generator import GaussianGenerator
from worker.noise.rounding import add_noise

Prepare = Callable[[Records], Records]  # transforms records
STEP = 0  # of the noise's address: scores start at step 1
Declared = TypeVar("Declared", bound=BeforeFirstStep)


@dataclass(frozen=True)
class Job:
    """What a statistic may know of its job.

    Attributes:
        mechanism: the stored mechanism; None on public data without privacy.
        mean: the mean of the features, if the study's first trial released it; the mechanism then has none.
    """

    spec: JobSpec
    mechanism: MechanismConfig | None
    model: Model
    features: Features
    shape: Shape
    mean: Tensor | None = None

    def declared(self, kind: type[Declared]) -> Declared | None:
        """The stored mechanism's release of this class: what was charged; None if there is none."""
        before_training = self.mechanism.before if self.mechanism else ()
        return next((each for each in before_training if isinstance(each, kind)), None)


@dataclass(frozen=True)
class Noise:
    """The noise of one statistic, at an address of its own under the job's key.

    Attributes:
        key: 32 bytes of purpose "release", of the job's first segment.
        index: the statistic's place among those of its job.
    """

    key: bytes
    index: int

    def add(self, private_sum: Tensor, std: float) -> Tensor:
        """The sum (d,) of float64 with Gaussian noise, rounded exactly. Call it once: the noise is the same again."""
        generator = GaussianGenerator(self.key)
        noise = generator.noise(STEP, self.index, len(private_sum))
        return add_noise(private_sum, noise, std, generator.stream, STEP, self.index)


@dataclass(frozen=True)
class Released:
    """The result of a release.

    Attributes:
        prepare: transforms the records that passes see from now on, in both parts; None: unchanged.
        tensors: published with the weights, by name.
    """

    prepare: Prepare | None = None
    tensors: dict[str, Tensor] = field(default_factory=dict)


class Statistic(ABC):
    """A statistic of the training part, released once per job.

    Attributes:
        kind: the class that knows its event, sensitivity and noise.
        declared: what was charged; None: it has no noise, because its records are public or others released it.
    """

    kind: ClassVar[type[BeforeFirstStep]]
    declared: BeforeFirstStep | None

    @classmethod
    @abstractmethod
    def of(cls, job: Job) -> Self | None:
        """The job's statistic; None if it needs none.

        Raises:
            PrivacyError: the job needs one that it may not release.
        """

    @property
    def charged(self) -> bool:
        """True if it has noise and was paid for: under other keys it would be a second release."""
        return self.declared is not None

    @abstractmethod
    def release(self, train: Batch[Any], noise: Noise, *, data_public: bool) -> Released:
        """Releases it. The result is bit for bit the same for the same records and noise.

        Args:
            train: the training records in their slots, unchanged by other statistics.

        Raises:
            PrivacyError: the records are private and nothing was charged.
        """
