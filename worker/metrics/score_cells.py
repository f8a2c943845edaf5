"""The cell of a record in the histogram of scores by class."""

from __future__ import annotations

import torch
from torch import Tensor

from core.privacy.score_histogram import BINS, CLASSES, EDGES
from worker.models.base import Model


def has_histogram(model: Model) -> bool:
    """Returns True if the model predicts two classes."""
    return model.classification and model.outputs == CLASSES


def cell_of(outputs: Tensor, labels: Tensor) -> Tensor:
    """Each record's cell, label · BINS + bin, int64 (n,), from its logits (2, n) and its label (n,).

    Outputs that are not finite count as wrong with certainty: the bin at the other class's end.
    Guarantee: a record's cell depends on its own outputs and label alone.
    """
    scores = outputs[1].double() - outputs[0].double()
    bins = torch.bucketize(scores, torch.from_numpy(EDGES).to(scores.device))  # at an edge: the lower bin, as in argmax
    wrong = torch.where(labels == 1, 0, BINS - 1)
    return labels * BINS + torch.where(torch.isfinite(outputs).all(dim=0), bins, wrong)
