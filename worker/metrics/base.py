"""What an evaluation needs of a metric."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from worker.models.base import Model


class RecordMetric(Protocol):
    """A mean over records of a value of each record alone.

    Scores on private data clip the values to [0, Δ], Δ from core.contracts.metrics; a NaN counts as Δ.
    """

    def suits(self, model: Model) -> bool:
        """Returns True if the model's outputs have such values."""
        ...

    def values(self, model: Model, outputs: Tensor, labels: Tensor) -> Tensor:
        """Each record's value, (n,), at least 0, from outputs (K, n) and labels (n,).

        Guarantee: a record's value depends on its own outputs and label alone.
        """
        ...
