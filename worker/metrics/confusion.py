"""Scores of several classes from the K × K histogram of records by true and predicted class.

With cells n_ij, row sums r_i, column sums c_i and n of all, all of them noisy:

    recall of class i    n_ii / r_i                       balanced accuracy    its mean over the classes
    F1 of class i        2 n_ii / (r_i + c_i)             macro-F1             its mean
    accuracy             Σ n_ii / n                       largest share        max r_i / n

Cells may be negative; only ratios are cut to [0, 1], so that noise does not push small cells up. Each std is σ times
the length of the ratio's gradient at the noisy cells, to first order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LEAST = 1e-9  # of a denominator of exact counts: a class without records has recall 0


class Estimate(NamedTuple):
    """A number, and the std of the noise on it."""

    value: float
    std: float


def confusion_cell(outputs: Tensor, labels: Tensor) -> Tensor:
    """Each record's cell, label · K + predicted class, int64 (n,), from its logits (K, n).

    The largest logit's class, the first of ties. Outputs that are not finite count as wrong: the class after the label.
    Guarantee: a record is in one cell, which depends on its own outputs and label alone.
    """
    classes = len(outputs)
    wrong = (labels + 1) % classes
    return labels * classes + torch.where(torch.isfinite(outputs).all(dim=0), outputs.argmax(dim=0), wrong)


def confusion_scores(cells: NDArray[np.float64], noise_std: float) -> dict[str, Estimate]:
    """Macro-F1 first, then what comes with it.

    Args:
        cells: (K, K), by true and predicted class.
        noise_std: σ of the noise on each cell; 0: exact.
    """
    classes, floor = len(cells), max(noise_std, LEAST)
    right = np.diag(cells)
    rows, both = (np.maximum(each, floor) for each in (cells.sum(axis=1), cells.sum(axis=1) + cells.sum(axis=0)))
    total, one = max(float(cells.sum()), floor), np.eye(classes)
    recalls, f1 = np.clip(right / rows, 0.0, 1.0), np.clip(2.0 * right / both, 0.0, 1.0)
    recall_slopes = one / rows[:, None] - (recalls / rows)[:, None] * np.ones((1, classes))
    pull = f1 / both  # each cell of a class's row and column adds to its denominator
    f1_slopes = (np.diag(2.0 / both) - pull[:, None] - pull[None, :]) / classes
    accuracy, shares = float(np.clip(right.sum() / total, 0.0, 1.0)), np.clip(cells.sum(axis=1) / total, 0.0, 1.0)
    largest = int(shares.argmax())
    share_slopes = (np.arange(classes) == largest)[:, None] - shares[largest] * np.ones((classes, classes))
    slopes = {
        "macro_f1": (f1.mean(), f1_slopes),
        "accuracy": (accuracy, (one - accuracy) / total),
        "balanced_accuracy": (recalls.mean(), recall_slopes / classes),
        "largest_share": (shares[largest], share_slopes / total),
        **{f"recall:{each}": (recalls[each], recall_slopes[each]) for each in range(classes)},
    }
    return {
        name: Estimate(float(value), noise_std * float(np.linalg.norm(slope)))
        for name, (value, slope) in slopes.items()
    }
