"""Exact per-record clipping of the linear model, without forming a single per-record gradient.

The gradient of one record is an outer product, residual ⊗ (x, 1), so its norm is ‖residual‖·√(‖x‖² + 1) with a bias
and ‖residual‖·‖x‖ without, and the clipped sum is one product of the scaled residuals with X.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from worker.clipping.engine import ClippingKind, clip_factors
from worker.clipping.norms import norm_bound, product_bound, root_bound
from worker.data.records import FeatureRecords
from worker.models.base import Parameters
from worker.models.linear import Linear


@dataclass(frozen=True)
class LinearClipping:
    """Σ clip_C(g_i) for the linear model; see GradientEngine for the guarantee.

    Norms are float64 upper bounds (worker.clipping.norms); on dense and sparse features alike.

    Attributes:
        model: the linear model.
        kind: "flat", "automatic", or "per_layer", which is flat with one layer.
        max_grad_norm: C.
    """

    model: Linear
    kind: ClippingKind
    max_grad_norm: float

    def private_sum(self, parameters: Parameters, batches: Sequence[FeatureRecords]) -> Parameters:
        return _summed(self.model, parameters, batches, self._clipped)

    def _clipped(self, residuals: Tensor, records: FeatureRecords) -> Tensor:
        """The residuals scaled so that residual ⊗ (x, 1) is clipped; zeros where a gradient is not finite."""
        inputs = records.private_norms
        if self.model.bias:
            inputs = root_bound(inputs.square() + 1.0, 2)
        norms = product_bound(norm_bound(residuals, dim=0), inputs)
        factors = clip_factors(norms, self.kind, self.max_grad_norm)
        # A factor of 0 is not enough: 0 · NaN is NaN.
        return torch.where(torch.isfinite(norms), residuals * factors, 0.0)


@dataclass(frozen=True)
class LinearGradient:
    """Σ g_i without clipping, for public data only: built by the plan where no privacy is claimed."""

    model: Linear

    def private_sum(self, parameters: Parameters, batches: Sequence[FeatureRecords]) -> Parameters:
        return _summed(self.model, parameters, batches, lambda residuals, _: residuals)


class _Scaling(Protocol):
    def __call__(self, residuals: Tensor, records: FeatureRecords, /) -> Tensor: ...


def _summed(model: Linear, parameters: Parameters, batches: Sequence[FeatureRecords], scaled: _Scaling) -> Parameters:
    """The sum over physical batches, in their order, so that it is the same in every run on one machine."""
    total = {name: torch.zeros_like(value) for name, value in parameters.items()}
    for records in batches:
        coefficients = scaled(model.residuals(model.forward(parameters, records), records.labels), records)
        total["weight"] += records.adjoint(coefficients)
        if model.bias:
            total["bias"] += coefficients.sum(dim=1)
    return total
