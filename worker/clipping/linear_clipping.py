"""Exact per-record clipping of the linear model, without forming any per-record gradient.

One record's gradient is an outer product, residual ⊗ (x, 1). Its norm is ‖residual‖·√(‖x‖² + 1) with a bias and
‖residual‖·‖x‖ without. The clipped sum is one product of the scaled residuals with X.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from core.errors import PrivacyError
from core.privacy.numerics import SumType
from worker.clipping.accumulators import at_least
from worker.clipping.engine import (
    LARGEST_NORM,
    SMALLEST_NORM,
    Clip,
    ClippingKind,
    Sample,
    clip_factors,
    half_count,
    traced,
)
from worker.clipping.precision import require_ieee
from worker.clipping.residuals import Query, clipped_residuals
from worker.clipping.totals import ONE_PROCESS, Floats, FloatTotals, Grid, Totals, begin_pass, totals_for
from worker.data.norms import ROUNDING, norm_bound, product_bound, root_bound
from worker.data.passes import Batch, Pass
from worker.data.placed import device_of, passes_on
from worker.data.records import FeatureRecords, SparseRecords
from worker.models.base import Parameters
from worker.models.linear import Linear
from worker.models.views import Views, rows_of, stilled

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
        sums: float32 lets float32 add 48 rows at a time.
        grid: adds passes as integers, over all ranks. None: in float64, in one process.
        views: of hashed words; see Bookkeeping. A record's gradient is Σ_v residual_v ⊗ (x_v, 1) / K, and its norm
            comes from the Gram matrices of its residuals and its words.
    """

    model: Linear
    kind: ClippingKind
    max_grad_norm: float
    records_per_unit: int = 1
    sums: SumType = "float64"
    grid: Grid | None = None
    views: Views | None = None

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

    def trace(
        self, parameters: Parameters, records: Batch[FeatureRecords], clip: Clip | None = None, sample: Sample = None
    ) -> list[Tensor]:
        """See GradientEngine.trace."""
        by = clip or Clip(self.max_grad_norm)

        query = self._query(by, device_of(parameters))

        def numbers(piece: FeatureRecords) -> list[Tensor]:
            if query is not None:
                outputs, everyone = self.model.pass_outputs(parameters, piece), torch.ones(len(piece), dtype=torch.bool)
                clipped, norms = clipped_residuals(outputs, piece.labels, piece.private_norms, everyone, query)
                return [outputs.mT, clipped.mT, norms]
            seen = _seen(piece, self.views)
            outputs, residuals = _residuals(self.model, parameters, seen, self.views)
            transposed = [each.mT.unflatten(0, (-1, rows_of(self.views))).flatten(1) for each in (outputs, residuals)]
            return [*transposed, self._norms(residuals, seen, by)]

        with stilled(self.views):
            passes = passes_on(device_of(parameters), records, self.model.rows_per_pass, self.model.dtype)
            return traced(passes, numbers, sample)

    def _clipped_sum(
        self, parameters: Parameters, records: Batch[FeatureRecords], clip: Clip | None, count: Tensor | None
    ) -> Parameters:
        """The sum. Adds the count of the records within C to `count`, if given."""
        by = clip or Clip(self.max_grad_norm)
        query, norm = self._query(by, device_of(parameters)), by.max_grad_norm / self.records_per_unit

        def factors_of(norms: Tensor, pass_records: Pass[FeatureRecords]) -> Tensor:
            return clip_factors(norms, self.kind, norm) * pass_records.weights

        def clipped(pass_records: Pass[FeatureRecords]) -> Tensor:
            """The residuals, scaled to clip residual ⊗ (x, 1); 0 for empty rows and non-finite gradients."""
            if query is not None:
                outputs = self.model.pass_outputs(parameters, pass_records.records)
                labels, lengths = pass_records.records.labels, pass_records.records.private_norms
                scaled, norms = clipped_residuals(outputs, labels, lengths, pass_records.present, query)
                if count is not None:
                    count.add_(half_count(factors_of(norms, pass_records)))
                return scaled
            residuals = _residuals(self.model, parameters, pass_records.records, self.views)[1]
            factors = factors_of(self._norms(residuals, pass_records.records, by), pass_records)
            if count is not None:
                count.add_(half_count(factors))
            factors = factors.repeat_interleave(rows_of(self.views))
            # A factor 0 is not enough: 0 · NaN is NaN.
            return torch.where(factors > 0.0, residuals * factors, 0.0)

        totals = totals_for(self.grid, parameters, by)
        passes = _Passes(self.model, parameters, records, self.grid, self.views)
        passes.add_to(totals, clipped, _sum_type(self.sums, by))
        return totals.finish(count)

    def _query(self, by: Clip, device: torch.device) -> Query | None:
        """How a pass is clipped; None where torch takes residuals: of views, divided, weighted, or on a GPU."""
        if self.views is not None or by.divisors is not None or device.type != "cpu" or self.model.class_weights:
            return None
        longest = LONGEST if self.sums == "float32" else torch.inf
        return Query(self.kind, by.max_grad_norm / self.records_per_unit, bool(self.model.bias), longest)

    def _norms(self, residuals: Tensor, records: FeatureRecords, by: Clip) -> Tensor:
        if self.views is not None:
            return self._norms_of_views(residuals, records, self.views.each, by)
        if by.divisors is not None:
            return _divided_norms(residuals, records, by)
        inputs = records.private_norms
        if self.sums == "float32":  # a longer record counts as not finite
            inputs = inputs.masked_fill(inputs > LONGEST, torch.inf)
        if self.model.bias:
            inputs = root_bound(inputs.square() + 1.0, 2)
        return product_bound(norm_bound(residuals, dim=0), inputs)

    def _norms_of_views(self, residuals: Tensor, records: FeatureRecords, views: int, by: Clip) -> Tensor:
        """‖Σ_v r_v ⊗ (x_v, 1)‖² = Σ_{u,v} ⟨r_u, r_v⟩ (⟨x_u, x_v⟩ + 1) for each record: upper bounds, (P,)."""
        if by.divisors is not None or not isinstance(records, SparseRecords):
            raise PrivacyError("views of a linear model are of hashed words, and their gradients are not divided")
        rows = residuals.mT.unflatten(0, (-1, views))  # (P, K, outputs)
        inputs, bias_term = records.grams(views), 1.0 if self.model.bias else 0.0
        squares = (torch.bmm(rows, rows.mT) * (inputs + bias_term)).sum(dim=(1, 2))
        lengths = rows.square().sum(dim=2) * (inputs.diagonal(dim1=1, dim2=2) + bias_term)
        scale = lengths.sqrt().sum(dim=1)
        terms = self.model.features + self.model.outputs + views**2 + 16
        squares, slack = at_least(squares, terms * ROUNDING * scale.square() * 2.0, scale, views)
        bounds = root_bound(squares.clamp(min=0.0) + slack, 2)
        return torch.where(torch.isfinite(records.private_norms[::views]), bounds, torch.inf)


@dataclass(frozen=True)
class LinearGradient:
    """Σ g_i without clipping, for public data only. The plan builds it if no privacy is claimed."""

    model: Linear
    sums: SumType = "float64"
    over: Floats = ONE_PROCESS
    views: Views | None = None

    def private_sum(
        self, parameters: Parameters, records: Batch[FeatureRecords], clip: Clip | None = None
    ) -> Parameters:
        """See GradientEngine.private_sum; nothing is clipped."""

        compiled = self.views is None and device_of(parameters).type == "cpu" and not self.model.class_weights

        def weighted(pass_records: Pass[FeatureRecords]) -> Tensor:
            if compiled:
                outputs = self.model.pass_outputs(parameters, pass_records.records)
                return clipped_residuals(
                    outputs,
                    pass_records.records.labels,
                    pass_records.records.private_norms,
                    pass_records.present,
                    Query(kind=None),
                )[0]
            residuals = _residuals(self.model, parameters, pass_records.records, self.views)[1]
            return residuals * pass_records.weights.repeat_interleave(rows_of(self.views))

        totals = FloatTotals(parameters, clip or Clip(1.0), self.over)
        passes = _Passes(self.model, parameters, records, self.over, self.views)
        passes.add_to(totals, weighted, getattr(torch, self.sums))
        return totals.finish()

    def trace(
        self, parameters: Parameters, records: Batch[FeatureRecords], clip: Clip | None = None, sample: Sample = None
    ) -> list[Tensor]:
        """Empty: the self-test does not run on public data."""
        return []  # public data: no guarantee depends on it


def _sum_type(sum_type: SumType, by: Clip) -> torch.dtype:
    """The type of products over records. Divided gradients, and norms near the ends of float32's range, take float64;
    both are public."""
    narrow = sum_type == "float32" and by.divisors is None and SMALLEST_NORM <= by.max_grad_norm <= LARGEST_NORM
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


def _seen(piece: FeatureRecords, views: Views | None) -> FeatureRecords:
    """What a step sees of a pass's records."""
    seen: FeatureRecords = piece if views is None else views.of(piece)
    return seen


def _residuals(
    model: Linear, parameters: Parameters, seen: FeatureRecords, views: Views | None
) -> tuple[Tensor, Tensor]:
    """Outputs, and the gradient of each record's mean loss at them, float64: (K, rows) each."""
    outputs = model.pass_outputs(parameters, seen)
    residuals = model.residuals(outputs, seen.labels).double()
    return outputs, residuals if views is None else residuals / views.each


@dataclass(frozen=True)
class _Passes:
    """The passes of one query."""

    model: Linear
    parameters: Parameters
    records: Batch[FeatureRecords]
    over: Grid | Floats | None
    views: Views | None

    def add_to(self, totals: Totals, scaled: Callable[[Pass[FeatureRecords]], Tensor], sums: torch.dtype) -> None:
        """Adds all passes, in their order."""
        require_ieee()
        model, rows = self.model, self.model.rows_per_pass
        for number, part in enumerate(passes_on(device_of(self.parameters), self.records, rows, model.dtype)):
            begin_pass((), number, rows, self.over, self.views)
            seen = replace(part, records=_seen(part.records, self.views))
            coefficients = scaled(seen)
            totals.add("weight", seen.records.adjoint(coefficients.to(sums)))
            if model.bias:
                totals.add("bias", coefficients.sum(dim=1))
