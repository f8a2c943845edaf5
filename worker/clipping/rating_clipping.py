"""Exact per-record clipping of matrix factorization, without forming any per-record gradient.

One rating touches one row of each tensor. With r = f − y its gradient is r q_i in row u of the users, r p_u in row i of
the items, and r in each bias. So ‖g‖ = |r| · √(‖p_u‖² + ‖q_i‖² + 2), without biases |r| · √(‖p_u‖² + ‖q_i‖²). The
clipped sum adds the scaled rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from worker.clipping.engine import Clip, ClippingKind, Sample, clip_factors, half_count, traced
from worker.clipping.totals import ONE_PROCESS, Floats, FloatTotals, Grid, Totals, totals_for
from worker.data.norms import norm_bound, product_bound, root_bound
from worker.data.passes import Batch
from worker.data.placed import device_of, passes_on
from worker.data.ratings import RatingRecords, add_rows
from worker.models.base import Parameters
from worker.models.matrix_factorization import MatrixFactorization


@dataclass(frozen=True)
class RatingClipping:
    """Σ clip_C(g_i) for matrix factorization; see GradientEngine for the guarantee.

    Attributes:
        model: the model.
        kind: "flat", "automatic", or "per_layer", which equals flat because there is one layer.
        max_grad_norm: C.
        grid: adds passes as integers, over all ranks. None: in float64, in one process.
    """

    model: MatrixFactorization
    kind: ClippingKind
    max_grad_norm: float
    grid: Grid | None = None

    def private_sum(
        self, parameters: Parameters, records: Batch[RatingRecords], clip: Clip | None = None
    ) -> Parameters:
        """See GradientEngine.private_sum."""
        return self.private_sum_and_count(parameters, records, clip)[0]

    def private_sum_and_count(
        self, parameters: Parameters, records: Batch[RatingRecords], clip: Clip | None = None
    ) -> tuple[Parameters, Tensor]:
        """See CountingEngine.private_sum_and_count."""
        by, device = clip or Clip(self.max_grad_norm), device_of(parameters)
        count = torch.zeros(1, dtype=torch.float64, device=device)
        totals = totals_for(self.grid, parameters, by)
        for part in passes_on(device, records, self.model.rows_per_pass, torch.float64):
            residuals = _residuals(self.model, parameters, part.records)
            norms = product_bound(residuals.abs(), self._inputs(parameters, part.records, by))
            factors = clip_factors(norms, self.kind, by.max_grad_norm) * part.weights
            count += half_count(factors)
            # A factor 0 is not enough: 0 · NaN is NaN.
            _add(totals, parameters, part.records, torch.where(factors > 0.0, residuals * factors, 0.0))
        return totals.finish(count), count

    def trace(
        self, parameters: Parameters, records: Batch[RatingRecords], clip: Clip | None = None, sample: Sample = None
    ) -> list[Tensor]:
        """See GradientEngine.trace."""
        by = clip or Clip(self.max_grad_norm)

        def numbers(piece: RatingRecords) -> list[Tensor]:
            return [_residuals(self.model, parameters, piece), self._inputs(parameters, piece, by)]

        passes = passes_on(device_of(parameters), records, self.model.rows_per_pass, torch.float64)
        return traced(passes, numbers, sample)

    def _inputs(self, parameters: Parameters, records: RatingRecords, by: Clip) -> Tensor:
        """Upper bounds of ‖g‖ / |r|."""
        if by.divisors is not None:
            return _divided_inputs(parameters, records, by)
        users, items = (norm_bound(parameters[name], dim=1) for name in ("users", "items"))
        squares = users[records.users].square() + items[records.items].square()
        return root_bound(squares + (2.0 if self.model.bias else 0.0), 3)


@dataclass(frozen=True)
class RatingGradient:
    """Σ g_i without clipping, for public data only. The plan builds it if no privacy is claimed."""

    model: MatrixFactorization
    over: Floats = ONE_PROCESS

    def private_sum(
        self, parameters: Parameters, records: Batch[RatingRecords], clip: Clip | None = None
    ) -> Parameters:
        """See GradientEngine.private_sum; nothing is clipped."""
        totals = FloatTotals(parameters, clip or Clip(1.0), self.over)
        for part in passes_on(device_of(parameters), records, self.model.rows_per_pass, torch.float64):
            residuals = _residuals(self.model, parameters, part.records)
            _add(totals, parameters, part.records, residuals * part.weights)
        return totals.finish()

    def trace(
        self, parameters: Parameters, records: Batch[RatingRecords], clip: Clip | None = None, sample: Sample = None
    ) -> list[Tensor]:
        """Empty: the self-test does not run on public data."""
        return []  # public data: no guarantee depends on it


def _divided_inputs(parameters: Parameters, records: RatingRecords, by: Clip) -> Tensor:
    """Upper bounds of ‖g / D‖ / |r|: each row's own divisors divide the other tensor's vector."""
    divisors = by.divisors or {}
    squares = torch.zeros(len(records), dtype=torch.float64, device=records.labels.device)
    terms = 0
    for own_ids, other_ids, other, at in (
        ("users", records.users, "items", records.items),
        ("items", records.items, "users", records.users),
    ):
        quotients = parameters[other][at].double() / divisors[own_ids][other_ids]
        squares += quotients.square().sum(dim=1)
        terms += quotients.shape[1]
    for bias, other_ids in (("user_bias", records.users), ("item_bias", records.items)):
        if bias in divisors:
            squares += divisors[bias][other_ids].square().reciprocal()
            terms += 1
    return root_bound(squares, terms)


def _residuals(model: MatrixFactorization, parameters: Parameters, records: RatingRecords) -> Tensor:
    return model.residuals(model.pass_outputs(parameters, records), records.labels)


def _add(totals: Totals, parameters: Parameters, records: RatingRecords, coefficients: Tensor) -> None:
    """Adds a pass's Σ c · ∂f/∂θ, record by record in their order."""
    for own_ids, other_ids, other, at in (
        ("users", records.users, "items", records.items),
        ("items", records.items, "users", records.users),
    ):
        totals.add(own_ids, add_rows(other_ids, _scaled(coefficients, parameters[other][at]), len(parameters[own_ids])))
    if "user_bias" in parameters:
        ones = coefficients[:, None]
        totals.add("user_bias", add_rows(records.users, ones, len(parameters["user_bias"]))[:, 0])
        totals.add("item_bias", add_rows(records.items, ones, len(parameters["item_bias"]))[:, 0])


def _scaled(coefficients: Tensor, vectors: Tensor) -> Tensor:
    """c · v, and 0 where c = 0, so that a vector that is not finite reaches no sum."""
    return torch.where(coefficients[:, None] == 0.0, 0.0, coefficients[:, None] * vectors)
