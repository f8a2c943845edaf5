"""How often items occur, for re-attention: from public knowledge, or counted once under noise that is charged for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from app.contracts.dataset_spec import Features
from app.errors import PrivacyError
from app.privacy.mechanism import MechanismConfig, TrainingMechanism
from app.privacy.releases import NoisyHistogram
from worker.data.records import Records
from worker.data.sequences import SequenceRecords
from worker.models.base import Model
from worker.models.next_item import NextItem
from worker.models.re_attention import Errors
from worker.noise.generator import GaussianGenerator
from worker.noise.rounding import add_noise
from worker.training.before import Released

STEP, INDEX = 0, 0  # of the noise: scores begin at step 1


@dataclass(frozen=True)
class ItemFrequencies:
    """Tells a model's effective errors of the noise, before its first pass.

    Attributes:
        errors: the model's.
        items, length: how many are declared, and how many of a user's are counted.
        training: the stored mechanism's: σ and L.
        declared: what is counted and charged for; None: p_i are public.
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
        """None for a model that does without.

        Raises:
            PrivacyError: a model that corrects for the noise of a job that has none.
        """
        if not isinstance(model, NextItem) or model.effective_errors is None:
            return None
        if mechanism is None:
            raise PrivacyError("without noise there is nothing that attention is corrected for")
        given = features.item_frequencies if features.kind == "interactions" else None
        public = torch.tensor(given, dtype=torch.float64) if given is not None else None
        declared = next((each for each in mechanism.before if isinstance(each, NoisyHistogram)), None)
        errors, length = model.effective_errors, model.spec.max_length
        return cls(errors, model.items, length, mechanism.training, declared, records, None if declared else public)

    @property
    def charged(self) -> bool:
        return self.declared is not None

    def release(self, train: Records, key: bytes, *, data_public: bool) -> Released:
        """The frequencies, which the model is told: records stay as they are."""
        self.instantiate(train, key, data_public=data_public)
        return Released()

    def instantiate(self, train: Records, key: bytes, *, data_public: bool) -> None:
        """p_i = (count + noise) / records, at least (1 or the noise's std) / records: less is not to be told from none.

        Guarantee: a user adds 1 to at most `length` bins, whose noise has std √length / μ: one μ-GDP release. It is
        bit for bit the same for the same data and key.

        Args:
            train: the training records.
            key: 32 bytes of purpose "release", of the job's first segment.

        Raises:
            PrivacyError: private items are counted without noise that was charged for.
        """
        charged, least = self.declared, 1.0
        frequencies = self.public
        if frequencies is None:
            if not isinstance(train, SequenceRecords) or (charged is None and not data_public):
                raise PrivacyError("how often items occur is private, and counted only where that is charged for")
            private_counts = train.item_counts(self.items, self.length)
            if charged is not None:
                if charged.max_items != self.length:
                    raise PrivacyError("a user counts for as many items as were charged for")
                generator, least = GaussianGenerator(key), max(1.0, charged.noise_std)
                noise = generator.noise(STEP, INDEX, self.items)
                private_counts = add_noise(private_counts, noise, charged.noise_std, generator.stream, STEP, INDEX)
            frequencies = private_counts / self.records
        sigma, batch = self.training.gradient_noise_multiplier, self.training.expected_batch_size
        self.errors.instantiate(sigma, batch, frequencies, least / self.records)
