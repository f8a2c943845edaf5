"""How often items occur, for re-attention: public knowledge, or one noisy count that is charged for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from core.contracts.dataset_spec import Interactions
from core.errors import PrivacyError
from core.privacy.mechanism import TrainingMechanism
from core.privacy.releases import NoisyHistogram
from worker.data.passes import Batch
from worker.data.sequence_records import item_counts
from worker.models.next_item import NextItem
from worker.models.re_attention import Errors
from worker.statistics.base import Job, Noise, Released, Statistic


@dataclass(frozen=True)
class ItemFrequencies(Statistic):
    """Sets a model's effective errors from the noise, before its first pass.

    Attributes:
        errors: the model's.
        items, length: the number of declared items, and the number of a user's items that are counted.
        training: the stored mechanism's training part: σ and L.
        declared: the charged count; None: p_i are public.
        records: the public number of users.
        public: p_i from public knowledge; None: they are counted.
    """

    kind: ClassVar[type[NoisyHistogram]] = NoisyHistogram
    errors: Errors
    items: int
    length: int
    training: TrainingMechanism
    declared: NoisyHistogram | None
    records: int
    public: Tensor | None

    @classmethod
    def of(cls, job: Job) -> Self | None:
        """None for a model that does not need frequencies.

        Raises:
            PrivacyError: the model corrects for noise, but the job has none.
        """
        model, features = job.model, job.features
        if not isinstance(model, NextItem) or model.effective_errors is None:
            return None
        if job.mechanism is None:
            raise PrivacyError("re-attention corrects for noise, and this job has none")
        frequencies = features.item_frequencies if isinstance(features, Interactions) else None
        declared = job.declared(NoisyHistogram)
        return cls(
            errors=model.effective_errors,
            items=model.items,
            length=model.spec.max_length,
            training=job.mechanism.training,
            declared=declared,
            records=job.shape.records_train,
            public=None if declared or frequencies is None else torch.tensor(frequencies, dtype=torch.float64),
        )

    def release(self, train: Batch[Any], noise: Noise, *, data_public: bool) -> Released:
        """Computes the frequencies and sets them in the model. Records stay unchanged.

        p_i = (count + noise) / records, at least max(1, the noise's std) / records: smaller values are noise.

        Guarantee: a user adds 1 to at most `length` bins, whose noise has std √length / μ: one μ-GDP release. The
        result is bit for bit the same for the same data and noise.

        Args:
            train: the training records in their slots.

        Raises:
            PrivacyError: private items would be counted without charged noise.
        """
        charged, lowest = self.declared, 1.0
        frequencies = self.public
        if frequencies is None:
            if charged is None and not data_public:
                raise PrivacyError("item frequencies are private: counting them must be charged")
            private_counts = item_counts(train, self.items, self.length)
            if charged is not None:
                if charged.max_items != self.length:
                    raise PrivacyError("the number of a user's counted items differs from the charged one")
                private_counts = noise.add(private_counts, charged.noise_std)
                lowest = max(1.0, charged.noise_std)
            frequencies = private_counts / self.records
        sigma, batch = self.training.step_noise_multiplier, self.training.expected_batch_size
        self.errors.instantiate(sigma, batch, frequencies, lowest / self.records)
        return Released()
