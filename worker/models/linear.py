"""The linear model: logits = x Wᵀ (+ b) with softmax cross-entropy, or one output with half the squared error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from worker.data.records import FeatureRecords
from worker.models.base import Model, Parameters

CLIP_RATIOS = "clip_ratios"  # its name among the model's tensors


@dataclass(frozen=True)
class Linear(Model):
    """One layer from d features to K outputs.

    Attributes:
        features: d.
        outputs: K; 1 means regression.
        bias: adds b.

    >>> Linear(features=3, outputs=2).init()["weight"].shape
    torch.Size([2, 3])
    """

    features: int
    outputs: int
    bias: bool = False

    @property
    def kind(self) -> str:
        return "linear"

    def requested(self) -> dict[str, Any]:
        """See Model.requested."""
        return {"bias": self.bias}

    def init(self, key: bytes | None = None) -> Parameters:
        """Zeros: {"weight": float64 (K, d), "bias": float64 (K,)}. Depends only on the public shape."""
        parameters = {"weight": torch.zeros(self.outputs, self.features, dtype=torch.float64)}
        if self.bias:
            parameters["bias"] = torch.zeros(self.outputs, dtype=torch.float64)
        return parameters

    @property
    def constants(self) -> Parameters:
        """Public numbers that lie with the weights: {"clip_ratios": float64 (2,)}, where answers undo the clipping."""
        return {} if self.clip_ratios is None else {CLIP_RATIOS: torch.tensor(self.clip_ratios, dtype=torch.float64)}

    @property
    def numbers(self) -> int:
        """See Model.numbers."""
        return self.outputs * (self.features + self.bias)

    def pass_outputs(self, parameters: Parameters, records: FeatureRecords) -> Tensor:
        """The outputs for one pass's records: (K, P) in the pass's type."""
        outputs = records.apply(parameters["weight"])
        return outputs + parameters["bias"].to(outputs.dtype)[:, None] if self.bias else outputs

    def evaluator(self, parameters: Parameters) -> Callable[[FeatureRecords], Tensor]:
        return partial(self.pass_outputs, parameters)

    def residuals(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """∂loss/∂f, (K, n): softmax(f) − e_y, times the weight of class y; or f − y."""
        if not self.classification:
            return outputs - labels
        minus_one = outputs.new_full((len(labels), 1), -1.0)
        residuals = torch.softmax(outputs.T.contiguous(), dim=1).scatter_add_(1, labels[:, None], minus_one).T
        return residuals * self.weights_of(labels, outputs.dtype) if self.class_weights else residuals
