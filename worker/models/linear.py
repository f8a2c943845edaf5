"""The linear model: logits = x Wᵀ (+ b) with softmax cross-entropy, or one output with half the squared error."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from worker.data.records import Records
from worker.models.base import Parameters


@dataclass(frozen=True)
class Linear:
    """One layer from d features to K outputs.

    Classification (K ≥ 2 classes, also two): loss −log softmax(f)_y. Regression (K = 1): loss ½(f − y)².

    Attributes:
        features: d.
        outputs: K; 1 means regression.
        bias: whether there is one.
    """

    features: int
    outputs: int
    bias: bool = False

    @property
    def classification(self) -> bool:
        return self.outputs > 1

    def init(self) -> Parameters:
        """Zeros: {"weight": float64 (K, d), "bias": float64 (K,)}. Depends on nothing but the public shape."""
        parameters = {"weight": torch.zeros(self.outputs, self.features, dtype=torch.float64)}
        if self.bias:
            parameters["bias"] = torch.zeros(self.outputs, dtype=torch.float64)
        return parameters

    def forward(self, parameters: Parameters, records: Records) -> Tensor:
        """Outputs f, float64 (K, n): logits, or the prediction. Records are the fast dimension: K is small."""
        outputs = records.apply(parameters["weight"])
        return outputs + parameters["bias"][:, None] if self.bias else outputs

    def residuals(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """∂loss/∂f, float64 (K, n): softmax(f) − e_y, or f − y."""
        if not self.classification:
            return outputs - labels
        minus_one = outputs.new_full((1, len(labels)), -1.0)
        return torch.softmax(outputs, dim=0).scatter_add_(0, labels[None], minus_one)

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Each record's loss, float64 (n,)."""
        if self.classification:
            return torch.logsumexp(outputs, dim=0) - outputs.gather(0, labels[None])[0]
        return 0.5 * self.squared_errors(outputs, labels)

    def squared_errors(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(f − y)², float64 (n,). Regression only."""
        return (outputs[0] - labels).square()

    def correct(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Whether the largest logit (the first of equals) is the label's, bool (n,). Classification only.

        An output that is not a number is never correct.
        """
        return (outputs.argmax(dim=0) == labels) & torch.isfinite(outputs).all(dim=0)
