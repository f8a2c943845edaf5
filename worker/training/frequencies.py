"""How often items occur, for re-attention: public knowledge, or one noisy count that is charged for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from app.contracts.dataset_spec import Features, Interactions
from app.errors import PrivacyError
from app.privacy.mechanism import MechanismConfig, TrainingMechanism
from app.privacy.releases import NoisyHistogram
from worker.data.mapped import MappedSequences
from worker.data.records import Records
from worker.data.sequences import SequenceRecords
from worker.models.base import Model
from worker.models.next_item import NextItem
from worker.models.re_attention import Errors
from worker.noise.generator import GaussianGenerator
from worker.noise.rounding import add_noise
from worker.training.before import Released

STEP, INDEX = 0, 0  # the noise's address: scores start at step 1


@dataclass(frozen=True)
class ItemFrequencies:
    """Sets a model's effective errors from the noise, before its first pass.

    Attributes:
        errors: the model's.
        items, length: the number of declared items, and the number of a user's items that are counted.
        training: the stored mechanism's training part: σ and L.
        declared: the charged count; None: p_i are public.
        records: the public number of users.
        public: p_i from public knowledge; None: they are counted.
    """

    errors: Errors
    items: int
    length: int
    training: TrainingMechanism
    declared: NoisyHistogram | None
    records: int
    public: Tensor | None

    @classmethod
    def of(
        cls, model: Model, mechanism: MechanismConfig | None, features: Features, records: int
    ) -> ItemFrequencies | None:
        """None for a model that does not need frequencies.

        Raises:
            PrivacyError: the model corrects for noise, but the job has none.
        """
        if not isinstance(model, NextItem) or model.effective_errors is None:
            return None
        if mechanism is None:
            raise PrivacyError("re-attention corrects for noise, and this job has none")
        given = features.item_frequencies if isinstance(features, Interactions) else None
        public = torch.tensor(given, dtype=torch.float64) if given is not None else None
        declared = next((each for each in mechanism.before if isinstance(each, NoisyHistogram)), None)
        errors, length = model.effective_errors, model.spec.max_length
        return cls(errors, model.items, length, mechanism.training, declared, records, None if declared else public)

    @property
    def charged(self) -> bool:
        """See Release.charged."""
        return self.declared is not None

    def release(self, train: Records, key: bytes, *, data_public: bool) -> Released:
        """Computes the frequencies and sets them in the model. Records stay unchanged."""
        self.instantiate(train, key, data_public=data_public)
        return Released()

    def instantiate(self, train: Records, key: bytes, *, data_public: bool) -> None:
        """p_i = (count + noise) / records, at least max(1, the noise's std) / records: smaller values are noise.

        Guarantee: a user adds 1 to at most `length` bins, whose noise has std √length / μ: one μ-GDP release. The
        result is bit for bit the same for the same data and key.

        Args:
            train: the training records.
            key: 32 bytes of purpose "release", of the job's first segment.

        Raises:
            PrivacyError: private items would be counted without charged noise.
        """
        charged, least = self.declared, 1.0
        frequencies = self.public
        if frequencies is None:
            if not isinstance(train, SequenceRecords | MappedSequences) or (charged is None and not data_public):
                raise PrivacyError("item frequencies are private: counting them must be charged")
            private_counts = train.item_counts(self.items, self.length)
            if charged is not None:
                if charged.max_items != self.length:
                    raise PrivacyError("the number of a user's counted items differs from the charged one")
                generator, least = GaussianGenerator(key), max(1.0, charged.noise_std)
                noise = generator.noise(STEP, INDEX, self.items)
                private_counts = add_noise(private_counts, noise, charged.noise_std, generator.stream, STEP, INDEX)
            frequencies = private_counts / self.records
        sigma, batch = self.training.step_noise_multiplier, self.training.expected_batch_size
        self.errors.instantiate(sigma, batch, frequencies, least / self.records)
