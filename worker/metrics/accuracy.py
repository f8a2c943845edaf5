"""Accuracy: the share of records whose class is predicted."""

from __future__ import annotations

from torch import Tensor

from worker.models.base import Model


class Accuracy:
    """1 where the largest logit is the label's, else 0."""

    def suits(self, model: Model) -> bool:
        """See RecordMetric.suits."""
        return model.classification

    def values(self, model: Model, outputs: Tensor, labels: Tensor) -> Tensor:
        """See RecordMetric.values."""
        return model.correct(outputs, labels).double()
