"""The loss: cross-entropy, or the squared error."""

from __future__ import annotations

from torch import Tensor

from worker.models.base import Model


class Loss:
    """A model's own error of each record."""

    def suits(self, model: Model) -> bool:
        """See RecordMetric.suits."""
        return True

    def values(self, model: Model, outputs: Tensor, labels: Tensor) -> Tensor:
        """See RecordMetric.values."""
        return model.errors(outputs, labels)
