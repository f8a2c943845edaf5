"""Public side information: the gradient of public records at a step's parameters. It costs no privacy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from worker.clipping.engine import GradientEngine
from worker.data.records import Records
from worker.models.base import Parameters
from worker.noise.attempt_keys import public_key_of_seed
from worker.noise.generator import KeyedStream


@dataclass(frozen=True)
class PublicSide:
    """Public records, and the engine for their gradients.

    Attributes:
        records: all of them public.
        engine: an engine that does not clip.
        batch_size: how many records are drawn for a step, with replacement; None: all.
    """

    records: Records
    engine: GradientEngine
    batch_size: int | None

    def gradient(self, parameters: Parameters, step: int) -> dict[str, Tensor]:
        """The mean gradient of the step's batch. The same in every replay: the draw's key is publicly known."""
        batch = self.records if self.batch_size is None else self.records.select(self._drawn(step, self.batch_size))
        total = self.engine.private_sum(parameters, batch)
        return {name: value / len(batch) for name, value in total.items()}

    def _drawn(self, step: int, size: int) -> NDArray[np.int64]:
        words = KeyedStream(public_key_of_seed(0, "sampler")).words(step, 0, 0, 0, size)
        return np.mod(words, len(self.records))
