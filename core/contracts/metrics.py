"""The metrics of an evaluation: each is the mean over records of a value between 0 and Δ; or AUC with its parts, from a
histogram (core.privacy.score_histogram), or macro-F1 with its parts, from one of true and predicted classes
(worker.metrics.confusion); or, of `r_squared`, a ratio of such means (worker.metrics.regression_fit).

A new metric needs its name and its rule here, and a class that computes it (worker.metrics.build).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal, assert_never, get_args

from pydantic import Field

from core.contracts.base import Document, is_none

CountedMetric = Literal["accuracy", "auc", "macro_f1"]  # counts of records
MeanMetric = Literal["accuracy", "loss"]  # means over records
SummedMetric = Literal["loss", "r_squared"]  # sums of values
Metric = Literal[CountedMetric, SummedMetric]
MEANS: tuple[MeanMetric, ...] = get_args(MeanMetric)
METRICS: tuple[Metric, ...] = get_args(Metric)
CELLS = 2 * 256  # of a histogram of scores by class
# What follows from that histogram, which is released for `auc` (core.privacy.score_histogram).
AUC_PARTS = (
    "average_precision",
    "accuracy",
    "balanced_accuracy",
    "recall",
    "precision",
    "positive_share",
    "mean_prediction",
)


# Of each of two classes: how long a gradient is at a residual of 1, in units of C (core.privacy.two_class_answers).
ClipRatio = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
ClipRatios = Annotated[tuple[ClipRatio, ...], Field(min_length=2, max_length=2)]


def default_metric(*, classes: bool) -> MeanMetric:
    """What is scored where no metric is named: accuracy of classes, else the loss."""
    return "accuracy" if classes else "loss"


MOST_CONFUSED = 50  # classes of a histogram of true and predicted ones


def confusion_parts(classes: int) -> tuple[str, ...]:
    """What follows from the histogram of true and predicted classes, which is released for `macro_f1`.

    >>> confusion_parts(2)
    ('accuracy', 'balanced_accuracy', 'largest_share', 'recall:0', 'recall:1')
    """
    recalls = (f"recall:{each}" for each in range(classes))
    return ("accuracy", "balanced_accuracy", "largest_share", *recalls)


class ReleasedHistogram(Document):
    """A histogram of records by class and score, as released.

    Attributes:
        cells: 256 counts of the first class, then 256 of the second, in bins of the score x, the model's second output
            less its first: 254 equal bins from −8 to 8, and an open one at each end. Noisy counts may be negative.
        noise_std: σ of the noise on each of the weighted sums from which `cells` follow; 0: exact.
        clip_ratios: what predicted probabilities undo (docs/choosing.md); null: they are 1/(1 + e⁻ˣ).
    """

    cells: Annotated[tuple[float, ...], Field(min_length=CELLS, max_length=CELLS)]
    noise_std: Annotated[float, Field(ge=0.0)]
    clip_ratios: ClipRatios | None = Field(default=None, exclude_if=is_none)


@dataclass(frozen=True)
class MetricRule:
    """What prices, admission and studies know of a metric.

    Attributes:
        bound: Δ, the most that one record's value can be; None: `loss_bound`, to which values are clipped.
        task: the kind of task that it needs; None: any.
        classes: how many classes it needs; None: any number.
        most_classes: the most that it is for; None: any number.
        larger_is_better: how studies compare trials by it.
    """

    bound: float | None
    task: str | None
    larger_is_better: bool
    classes: int | None = None
    most_classes: int | None = None


def rule_of(metric: Metric) -> MetricRule:
    """The rule of a metric.

    >>> rule_of("accuracy").bound
    1.0
    """
    match metric:
        case "accuracy":
            return MetricRule(bound=1.0, task="classification", larger_is_better=True)
        case "auc":
            return MetricRule(bound=1.0, task="classification", larger_is_better=True, classes=2)
        case "macro_f1":
            return MetricRule(bound=1.0, task="classification", larger_is_better=True, most_classes=MOST_CONFUSED)
        case "loss":
            return MetricRule(bound=None, task=None, larger_is_better=False)
        case "r_squared":
            return MetricRule(bound=math.sqrt(2.0), task="regression", larger_is_better=True)
        case _:
            assert_never(metric)
