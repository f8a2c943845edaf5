"""From a metric's name to what computes it."""

from __future__ import annotations

from typing import assert_never

from core.contracts.metrics import MeanMetric
from worker.metrics.accuracy import Accuracy
from worker.metrics.base import RecordMetric
from worker.metrics.loss import Loss


def metric_of(name: MeanMetric) -> RecordMetric:
    """The metric of a name."""
    match name:
        case "accuracy":
            return Accuracy()
        case "loss":
            return Loss()
        case _:
            assert_never(name)
