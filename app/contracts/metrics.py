"""The metrics of an evaluation: each is the mean over records of a value between 0 and Δ; or, of `r_squared`, a ratio
of such means (worker.metrics.fit).

A new metric needs its name and its rule here, and a class that computes it (worker.metrics.build).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, assert_never, get_args

CountedMetric = Literal["accuracy"]  # counts of records
MeanMetric = Literal[CountedMetric, "loss"]
SummedMetric = Literal["loss", "r_squared"]  # sums of values
Metric = Literal[CountedMetric, SummedMetric]
MEANS: tuple[MeanMetric, ...] = get_args(MeanMetric)
METRICS: tuple[Metric, ...] = get_args(Metric)


@dataclass(frozen=True)
class MetricRule:
    """What prices, admission and studies know of a metric.

    Attributes:
        bound: Δ, the most that one record's value can be; None: `loss_bound`, to which values are clipped.
        task: the kind of task that it needs; None: any.
        larger_is_better: how studies compare trials by it.
    """

    bound: float | None
    task: str | None
    larger_is_better: bool


def rule_of(metric: Metric) -> MetricRule:
    """The rule of a metric.

    >>> rule_of("accuracy").bound
    1.0
    """
    match metric:
        case "accuracy":
            return MetricRule(bound=1.0, task="classification", larger_is_better=True)
        case "loss":
            return MetricRule(bound=None, task=None, larger_is_better=False)
        case "r_squared":
            return MetricRule(bound=math.sqrt(2.0), task="regression", larger_is_better=True)
        case _:
            assert_never(metric)
