"""One histogram of scores by class, and what it says of a model of two classes: all post-processing.

A record's score is x, the second output less the first. Its cell is (true class, bin of x). The bins' edges are public
and fixed: equal steps of x from −8 to 8, and two open ends; the middle one is x = 0, where the predicted class changes.
Its predicted probability follows from x by public numbers (core.privacy.two_class_answers).

What is released are not the 512 cells but, for each class, their weighted sums S = W h of a binary tree (Haar): the
total, and at each of 8 levels the right half of a node less its left half. A record adds ±w to one sum of each level.

Guarantee: with Σ w² ≤ 1 over the levels a record moves S by at most 1 in ℓ₂ norm: one Gaussian mechanism with the
sensitivity of a single count. Noise on S instead of h costs the same, and ranges of bins have less of it: at equal
noise_mu accuracy has a quarter to an eighth, AUC less than half of the noise.

Of the noisy tree, non-negative cells follow from the top down: each difference is clipped to its node's count.

Source: Xiao, Wang & Gehrke 2010, "Differential privacy via wavelet transforms"; consistency: Hay, Rastogi, Miklau &
Suciu 2010, "Boosting the accuracy of differentially private histograms through consistency".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt

from core.contracts.metrics import CELLS, ClipRatios
from core.privacy.two_class_answers import answer_logits

CLASSES = 2
BINS = CELLS // CLASSES  # a power of two
RANGE = 8.0  # logits: a predicted probability between 0.0003 and 0.9997
EDGES: npt.NDArray[np.float64] = np.linspace(-RANGE, RANGE, BINS - 1)
# Of the total and of each level, from the halves down to neighbours. Dyadic, so that weighted counts are exact.
WEIGHTS: npt.NDArray[np.float64] = np.array([32, 32, 26, 22, 18, 14, 11, 8, 6]) / 64.0
COARSE = 16  # groups of bins of a reliability plot, each a node of the tree
REPLICATES = 200
NORMAL_95 = 1.96
Floats = npt.NDArray[np.float64]
Statistic = Callable[[Floats], Floats]  # of cells (…, 2, BINS)


def tree_sums(cells: npt.ArrayLike) -> Floats:
    """S = W h: for each class the weighted total, then each level's weighted differences, (…, BINS).

    >>> float(np.sum(tree_sums(np.eye(BINS)[3]) ** 2)) <= 1.0
    True
    """
    counts, levels = np.asarray(cells, dtype=np.float64), list[Floats]()
    for weight in WEIGHTS[:0:-1]:
        left, right = counts[..., 0::2], counts[..., 1::2]
        levels.append((right - left) * weight)
        counts = left + right
    return np.concatenate([counts * WEIGHTS[0], *reversed(levels)], axis=-1)


def cells_of(sums: Floats) -> Floats:
    """h = W⁻¹ S: the noisy counts, unbiased; they may be negative."""
    return _descend(sums, clipped=False)


def _descend(sums: Floats, *, clipped: bool) -> Floats:
    nodes: Floats = sums[..., :1] / WEIGHTS[0]
    first = 1
    if clipped:
        nodes = np.maximum(nodes, 0.0)
    for weight in WEIGHTS[1:]:
        differences = sums[..., first : 2 * first] / weight
        if clipped:
            differences = np.clip(differences, -nodes, nodes)
        halves = np.stack([nodes - differences, nodes + differences], axis=-1) / 2.0
        nodes = halves.reshape(*nodes.shape[:-1], 2 * first)
        first *= 2
    return nodes


@dataclass(frozen=True)
class Estimate:
    """A number from a histogram. `std`: the root of its mean squared error by the noise; 0 if it is exact."""

    value: float
    std: float


@dataclass(frozen=True)
class Curve:
    """Points x, y with 95 % bands of y: of the noise and of the draw of the scored records. All within [0, 1]."""

    x: Floats
    y: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True)
class Threshold:
    """A predicted probability from which on the second class is predicted, and what follows from it.

    Attributes:
        cost: of a missed positive, in false alarms; the threshold has the least total cost.
        flagged: the share of records that are predicted positive.
    """

    cost: float
    probability: float
    recall: Estimate
    precision: Estimate
    flagged: Estimate


class ScoreHistogram:
    """Counts of records by true class and bin of the predicted score."""

    def __init__(self, cells: npt.ArrayLike, noise_std: float, clip_ratios: ClipRatios | None = None) -> None:
        """Takes released counts.

        Args:
            cells: the unbiased noisy counts, or exact ones, (2, BINS), flat or not.
            noise_std: of the noise on each of `tree_sums`; 0: exact.
            clip_ratios: of the model's training, which its probabilities undo; None: they are the softmax.
        """
        self.noise_std, self.clip_ratios = noise_std, clip_ratios
        self.centres = _probability(answer_logits(CENTRES, clip_ratios))
        released = np.asarray(cells, dtype=np.float64).reshape(CLASSES, BINS)
        self.cells = _descend(tree_sums(released), clipped=True)

    @cached_property
    def replicates(self) -> Floats:
        """Histograms as noise of the same size might have released them of these cells, (REPLICATES, 2, BINS).

        Drawn from a public seed: the same for the same released numbers.
        """
        if self.noise_std == 0.0:
            return self.cells[None]
        return self._noisy(np.broadcast_to(self.cells, (REPLICATES, CLASSES, BINS)))

    @cached_property
    def sampled(self) -> Floats:
        """Replicates that also draw the records anew: counts are Poisson, then come the noise and the clipping."""
        drawn = np.random.default_rng(1).poisson(self.cells, (REPLICATES, CLASSES, BINS)).astype(np.float64)
        return self._noisy(drawn) if self.noise_std else drawn

    def _noisy(self, cells: Floats) -> Floats:
        noise = np.random.default_rng(0).standard_normal(cells.shape) * self.noise_std
        return _descend(tree_sums(cells) + noise, clipped=True)

    def estimate(self, statistic: Statistic) -> Estimate:
        """A statistic, and its std by simulation: the root mean square of replicates around it, their bias included."""
        value = float(statistic(self.cells))
        errors = statistic(self.replicates) - value
        return Estimate(value, float(np.sqrt(np.mean(errors**2))) if self.noise_std else 0.0)

    def scores(self) -> dict[str, Estimate]:
        """AUC and what else follows from one release (core.contracts.metrics), by name."""
        return {name: self.estimate(statistic) for name, statistic in self.statistics.items()}

    @property
    def statistics(self) -> dict[str, Statistic]:
        """AUC and what follows beside it, by name."""
        return STATISTICS | {"mean_prediction": partial(_mean, values=self.centres)}

    def banded(self, statistic: Statistic) -> Estimate:
        """A statistic, and its std by the noise and by the draw of the scored records."""
        value = float(statistic(self.cells))
        return Estimate(value, float(np.sqrt(np.mean((statistic(self.sampled) - value) ** 2))))

    @property
    def larger_class(self) -> int:
        """The larger class, 0 or 1: what a model that has learned nothing answers always."""
        return int(_positive_share(self.cells) > 0.5)

    def gain(self) -> Estimate:
        """Accuracy above the larger class's share, which a model that always answers it has."""
        return self.banded(_gain)

    def roc(self) -> Curve:
        """Recall over the false-positive rate, at each bin's edge; the bands are those of recall at the same edge."""
        false, true = (_cumulated(self.cells[place]) / _total(self.cells[place]) for place in range(CLASSES))
        drawn = _cumulated(self.sampled[:, 1]) / _total(self.sampled[:, 1])[:, None]
        return _banded(false, true, drawn)

    def reliability(self) -> Curve:
        """Observed over mean predicted probability of COARSE groups of bins, without groups of less than one record."""
        x, y, counts = _grouped(self.cells, self.centres)
        _, drawn, _ = _grouped(self.sampled, self.centres)
        filled = counts >= 1.0
        return _banded(x[filled], y[filled], drawn[:, filled])

    def thresholds(self, costs: Iterable[float]) -> list[Threshold]:
        """For each cost of a missed positive (in false alarms) the threshold of least total cost."""
        thresholds = []
        for cost in costs:
            missed = self.cells[1].sum() - _cumulated(self.cells[1])
            place = int(np.argmin(cost * missed + _cumulated(self.cells[0])))  # bins that are flagged, from the top
            edge = -np.inf if place == BINS else np.inf if place == 0 else EDGES[BINS - 1 - place]
            bins = slice(BINS - place, BINS)
            thresholds.append(
                Threshold(
                    cost,
                    float(_probability(answer_logits(edge, self.clip_ratios))),
                    *(self.estimate(partial(each, bins=bins)) for each in (_recall, _precision, _flagged)),
                )
            )
        return thresholds


UPPER = slice(BINS // 2, BINS)  # bins in which the second class is predicted at a threshold of 0.5


def _probability(logits: npt.ArrayLike) -> Floats:
    with np.errstate(over="ignore"):
        return np.asarray(1.0 / (1.0 + np.exp(-np.asarray(logits, dtype=np.float64))))


STEP = 2.0 * RANGE / (BINS - 2)
CENTRES: Floats = -RANGE + STEP * (np.arange(BINS, dtype=np.float64) - 0.5)  # an open end: half a step beyond its edge


def _sum(counts: Floats, axis: int | tuple[int, int] = -1) -> Floats:
    return np.asarray(counts.sum(axis=axis), dtype=np.float64)


def _total(counts: Floats) -> Floats:
    return np.maximum(_sum(counts), 1e-9)


def _records(cells: Floats) -> Floats:
    return np.maximum(_sum(cells, (-2, -1)), 1e-9)


def _cumulated(counts: Floats) -> Floats:
    """Counts of the uppermost 0, 1, …, BINS bins."""
    sums = np.cumsum(counts[..., ::-1], axis=-1)
    return np.concatenate([np.zeros((*sums.shape[:-1], 1)), sums], axis=-1)


def _banded(x: Floats, y: Floats, drawn: Floats) -> Curve:
    spread = NORMAL_95 * np.sqrt(np.mean((drawn - y) ** 2, axis=0))
    return Curve(x, y, np.maximum(y - spread, 0.0), np.minimum(y + spread, 1.0))


def _grouped(cells: Floats, centres: Floats) -> tuple[Floats, Floats, Floats]:
    """Mean predicted and observed probability of each group, and its records, (…, COARSE)."""
    groups = cells.reshape(*cells.shape[:-1], COARSE, BINS // COARSE)
    both = _sum(groups, -3)
    records = _sum(both)
    divisor = np.maximum(records, 1e-9)
    predicted = _sum(both * centres.reshape(COARSE, -1)) / divisor
    return predicted, _sum(groups[..., 1, :, :]) / divisor, records


def _auc(cells: Floats) -> Floats:
    """The chance that a positive's score is above a negative's; within a bin one half. 0.5 where a class is empty."""
    negatives, positives = cells[..., 0, :], cells[..., 1, :]
    below = np.cumsum(negatives, axis=-1) - negatives / 2.0
    pairs = _sum(negatives) * _sum(positives)
    return np.where(pairs > 0.0, _sum(positives * below) / np.maximum(pairs, 1e-9), 0.5)


def _average_precision(cells: Floats) -> Floats:
    """Σ precision · Δrecall from the top, with half of a bin's own records. 0 where there are no positives."""
    negatives, positives = cells[..., 0, ::-1], cells[..., 1, ::-1]
    true, false = (np.cumsum(each, axis=-1) - each / 2.0 for each in (positives, negatives))
    precision = true / np.maximum(true + false, 1e-9)
    return _sum(precision * positives) / _total(positives)


def _accuracy(cells: Floats) -> Floats:
    right = _sum(cells[..., 0, : BINS // 2]) + _sum(cells[..., 1, UPPER])
    return right / _records(cells)


def _recall(cells: Floats, bins: slice = UPPER) -> Floats:
    return _sum(cells[..., 1, bins]) / _total(cells[..., 1, :])


def _precision(cells: Floats, bins: slice = UPPER) -> Floats:
    return _sum(cells[..., 1, bins]) / _records(cells[..., bins])


def _flagged(cells: Floats, bins: slice) -> Floats:
    return _sum(cells[..., bins], (-2, -1)) / _records(cells)


def _balanced_accuracy(cells: Floats) -> Floats:
    rejected = _sum(cells[..., 0, : BINS // 2]) / _total(cells[..., 0, :])
    return (_recall(cells) + rejected) / 2.0


def _positive_share(cells: Floats) -> Floats:
    return _sum(cells[..., 1, :]) / _records(cells)


def larger_share(cells: Floats) -> Floats:
    """The larger class's share."""
    share = _positive_share(cells)
    return np.maximum(share, 1.0 - share)


def _gain(cells: Floats) -> Floats:
    return _accuracy(cells) - larger_share(cells)


def _mean(cells: Floats, values: Floats) -> Floats:
    """The mean over records of a value of their bin."""
    return _sum(_sum(cells, -2) * values) / _records(cells)


STATISTICS: dict[str, Statistic] = {
    "auc": _auc,
    "average_precision": _average_precision,
    "accuracy": _accuracy,
    "balanced_accuracy": _balanced_accuracy,
    "recall": _recall,
    "precision": _precision,
    "positive_share": _positive_share,
}
