"""Probabilities of a model of two classes that was trained with clipped gradients: post-processing, by public numbers.

Clipping keeps the order of records and starves the level: the many records of the frequent class are hardly cut, the
few others are. Let a_y = w_y √2 ‖x‖ / C, the length of a gradient of class y at a residual of 1, in units of C (its
clip ratio). Training stands still where the clipped gradients of the records with such features cancel. With p the
softmax and π the share of the second class among them:

    π a_1 min(1 − p, 1/a_1) = (1 − π) a_0 min(p, 1/a_0)

    logit π = ln min(a_0 p, 1) − ln min(a_1 (1 − p), 1)

Between 1/a_0 and 1 − 1/a_1 that is flat: both classes are cut there, as in a regression of the median. Records would
tie, so SLOPE times the logit of p is added within that range: the answer rises strictly with p, and no order changes.

    SLOPE was chosen by log loss on eleven public tables (benchmarks/reports/tables.md).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from core.contracts.metrics import ClipRatios

SLOPE = 0.05
Floats = npt.NDArray[np.float64]


def clip_ratios(length: float, max_grad_norm: float, weights: tuple[float, float] = (1.0, 1.0)) -> ClipRatios:
    """a_y of a linear model of two classes.

    Args:
        length: ‖x‖ of the records, with the 1 of a bias; public.
        max_grad_norm: C of a record.
        weights: w_y.

    >>> [round(each, 6) for each in clip_ratios(1.0, 0.2 * math.sqrt(2.0))]
    [5.0, 5.0]
    """
    first, second = (weight * math.sqrt(2.0) * length / max_grad_norm for weight in weights)
    return first, second


def answer_logits(scores: npt.ArrayLike, ratios: ClipRatios | None) -> Floats:
    """logit π of scores, the logits of p: the second output less the first.

    Args:
        ratios: None: nothing is undone.

    >>> [round(float(1.0 / (1.0 + np.exp(-each))), 3) for each in answer_logits([-4.595, -2.197, 0.0], (5.0, 5.0))]
    [0.046, 0.316, 0.5]
    """
    x = np.asarray(scores, dtype=np.float64)
    if ratios is None:
        return x
    first, second = ratios
    rise = np.minimum(math.log(first) - np.logaddexp(0.0, -x), 0.0)
    fall = np.minimum(math.log(second) - np.logaddexp(0.0, x), 0.0)
    low, high = _flat_range(ratios)
    return np.asarray(rise - fall + SLOPE * (np.clip(x, low, high) - (low + high) / 2.0))


def _flat_range(ratios: ClipRatios) -> tuple[float, float]:
    """Between these scores both classes' gradients are cut. Two zeros: nowhere."""
    if min(ratios) > 1.0:
        low, high = -math.log(ratios[0] - 1.0), math.log(ratios[1] - 1.0)
        if low < high:
            return low, high
    return 0.0, 0.0
