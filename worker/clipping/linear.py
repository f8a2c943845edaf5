"""Exact per-record clipping of the linear model, without forming any per-record gradient.

One record's gradient is an outer product, residual ⊗ (x, 1). Its norm is ‖residual‖·√(‖x‖² + 1) with a bias and
‖residual‖·‖x‖ without. The clipped sum is one product of the scaled residuals with X.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from app.errors import PrivacyError
from app.privacy.numerics import SumType
from worker.clipping.engine import LARGEST_NORM, SMALLEST_NORM, Clip, ClippingKind, clip_factors, half_count, traced
from worker.clipping.totals import ONE_PROCESS, Floats, FloatTotals, Grid, Totals, totals_for
from worker.data.norms import norm_bound, product_bound, root_bound
from worker.data.passes import Batch, Pass
from worker.data.placed import device_of, passes_on
from worker.data.records import FeatureRecords
from worker.models.base import Parameters
from worker.models.linear import Linear

LONGEST = 2.0**60  # the longest record for sums in float32, so that no product can overflow


@dataclass(frozen=True)
class LinearClipping:
    """Σ clip_C(g_i) for the linear model; see GradientEngine for the guarantee.

    Norms are float64 upper bounds (worker.data.norms), for dense and sparse features alike.

    Attributes:
        model: the linear model.
        kind: "flat", "automatic", or "per_layer", which equals flat because there is one layer.
        max_grad_norm: C.
        records_per_unit: k.
        sums: float32 lets float32 add 48 records at a time. The order of the records must then be random.
        grid: adds passes as integers, over all ranks. None: in float64, in one process.
    """

    model: Linear
    kind: ClippingKind
    max_grad_norm: float
    records_per_unit: int = 1
    sums: SumType = "float64"
    grid: Grid | None = None

    def private_sum(
        self, parameters: Parameters, records: Batch[FeatureRecords], clip: Clip | None = None
    ) -> Parameters:
        """See GradientEngine.private_sum."""
        return self._clipped_sum(parameters, records, clip, None)

    def private_sum_and_count(
        self, parameters: Parameters, records: Batch[FeatureRecords], clip: Clip | None = None
    ) -> tuple[Parameters, Tensor]:
        """See CountingEngine.private_sum_and_count."""
        count = torch.zeros(1, dtype=torch.float64, device=device_of(parameters))
        return self._clipped_sum(parameters, records, clip, count), count

    def trace(self, parameters: Parameters, records: Batch[FeatureRecords], clip: Clip | None = None) -> list[Tensor]:
        """See GradientEngine.trace."""
        by = clip or Clip(self.max_grad_norm)

        def numbers(piece: FeatureRecords) -> list[Tensor]:
            outputs = self.model.pass_outputs(parameters, piece)
            residuals = self.model.residuals(outputs, piece.labels).double()
            return [outputs.mT, residuals.mT, self._norms(residuals, piece, by)]

        return traced(passes_on(device_of(parameters), records, self.model.rows_per_pass, self.model.dtype), numbers)

    def _clipped_sum(
        self, parameters: Parameters, records: Batch[FeatureRecords], clip: Clip | None, count: Tensor | None
    ) -> Parameters:
        """The sum. Adds the count of the records within C to `count`, if given.

        Raises:
            PrivacyError: sums are in float32, and the records are not in a random order.
        """
        by = clip or Clip(self.max_grad_norm)
        if self.sums == "float32" and not records.in_random_order:
            raise PrivacyError("sums in float32 need the records in a secret random order")

        def clipped(residuals: Tensor, of: Pass[FeatureRecords]) -> Tensor:
            """The residuals, scaled to clip residual ⊗ (x, 1); 0 for padding rows and non-finite gradients."""
            norms = self._norms(residuals, of.records, by)
            weights = of.weights(len(norms), norms.device)
            factors = clip_factors(norms, self.kind, by.max_grad_norm / self.records_per_unit) * weights
            if count is not None:
                count.add_(half_count(factors))
            # A factor 0 is not enough: 0 · NaN is NaN.
            return torch.where(factors > 0.0, residuals * factors, 0.0)

        totals = totals_for(self.grid, parameters, by)
        _add_passes(totals, self.model, parameters, records, clipped, _sum_type(self.sums, by))
        return totals.finish(count)

    def _norms(self, residuals: Tensor, records: FeatureRecords, by: Clip) -> Tensor:
        if by.divisors is not None:
            return _divided_norms(residuals, records, by)
        inputs = records.private_norms
        if self.sums == "float32":  # a longer record counts as not finite
            inputs = inputs.masked_fill(inputs > LONGEST, torch.inf)
        if self.model.bias:
            inputs = root_bound(inputs.square() + 1.0, 2)
        return product_bound(norm_bound(residuals, dim=0), inputs)


@dataclass(frozen=True)
class LinearGradient:
    """Σ g_i without clipping, for public data only. The plan builds it if no privacy is claimed."""

    model: Linear
    sums: SumType = "float64"
    over: Floats = ONE_PROCESS

    def private_sum(
        self, parameters: Parameters, records: Batch[FeatureRecords], clip: Clip | None = None
    ) -> Parameters:
        """See GradientEngine.private_sum; nothing is clipped."""

        def weighted(residuals: Tensor, of: Pass[FeatureRecords]) -> Tensor:
            return residuals * of.weights(len(residuals.mT), residuals.device)

        totals = FloatTotals(parameters, clip or Clip(1.0), self.over)
        _add_passes(totals, self.model, parameters, records, weighted, getattr(torch, self.sums))
        return totals.finish()

    def trace(self, parameters: Parameters, records: Batch[FeatureRecords], clip: Clip | None = None) -> list[Tensor]:
        """Empty: the self-test does not run on public data."""
        return []  # public data: no guarantee depends on it


def _sum_type(asked: SumType, by: Clip) -> torch.dtype:
    """The type of products over records. Divided gradients, and norms near the ends of float32's range, take float64;
    both are public."""
    narrow = asked == "float32" and by.divisors is None and SMALLEST_NORM <= by.max_grad_norm <= LARGEST_NORM
    return torch.float32 if narrow else torch.float64


def _divided_norms(residuals: Tensor, records: FeatureRecords, by: Clip) -> Tensor:
    """Upper bounds of ‖(residual ⊗ (x, 1)) / D‖ = √(Σ_k r_k² (Σ_j x_j²/D_kj² + 1/D_bk²)); ∞ where x is not finite."""
    inverse = {name: divisor.square().reciprocal() for name, divisor in (by.divisors or {}).items()}
    inputs = records.weighted_squares(inverse["weight"])
    if "bias" in inverse:
        inputs = inputs + inverse["bias"][:, None]
    terms = sum(inverse["weight"].shape)
    norms = root_bound((residuals.square() * inputs).sum(dim=0), terms)
    return torch.where(torch.isfinite(records.private_norms), norms, torch.inf)


def _add_passes(
    totals: Totals,
    model: Linear,
    parameters: Parameters,
    records: Batch[FeatureRecords],
    scaled: Callable[[Tensor, Pass[FeatureRecords]], Tensor],
    sums: torch.dtype,
) -> None:
    """Adds all passes, in their order."""
    for each in passes_on(device_of(parameters), records, model.rows_per_pass, model.dtype):
        outputs = model.pass_outputs(parameters, each.records)
        coefficients = scaled(model.residuals(outputs, each.records.labels).double(), each)
        totals.add("weight", each.records.adjoint(coefficients.to(sums)))
        if model.bias:
            totals.add("bias", coefficients.sum(dim=1))
