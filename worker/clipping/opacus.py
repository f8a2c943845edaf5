"""The reference engine: Opacus' GradSampleModule forms every per-record gradient; then they are clipped and added."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Generic, TypeVar

import torch
from opacus.grad_sample import GradSampleModule
from torch import Tensor, nn

from worker.clipping.accumulators import ParameterAccumulator
from worker.clipping.bookkeeping import add_clipped, fill_in, refuse_mixing
from worker.clipping.engine import Clip, ClippingKind, Sample, traced
from worker.clipping.precision import in_ieee
from worker.clipping.scratch import Scratch
from worker.clipping.terms import Dense
from worker.clipping.totals import Grid, begin_pass, totals_for
from worker.data.passes import Batch
from worker.data.placed import device_of, passes_on
from worker.models.base import Parameters
from worker.models.dropout import masks_of, without_dropout
from worker.models.views import Views, averaged, rows_of, stilled

B = TypeVar("B")


class OpacusClipping(Generic[B]):
    """Like Bookkeeping, but with per-record gradients formed by Opacus. See GradientEngine for the guarantee.

    Source: Yousefpour et al. 2021, "Opacus: user-friendly differential privacy library in PyTorch".
    """

    def __init__(
        self,
        module: nn.Module,
        losses: Callable[[nn.Module, B], Tensor],
        *,
        rows: int,
        positions: int | None = None,  # whole gradients are added: one position each
        dtype: torch.dtype,
        kind: ClippingKind,
        max_grad_norm: float,
        records_per_unit: int = 1,
        grid: Grid | None = None,
        views: Views | None = None,
    ) -> None:
        refuse_mixing(module)
        self._grid, self._masks, self._scratch = grid, masks_of(module), Scratch()
        self._trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._wrapped = GradSampleModule(module, loss_reduction="sum")
        self._losses, self._rows, self._dtype, self._views = averaged(losses, views), rows, dtype, views
        self._kind: ClippingKind = kind
        self._clip, self._records_per_unit = Clip(max_grad_norm), records_per_unit

    def private_sum(self, parameters: Parameters, records: Batch[B], clip: Clip | None = None) -> Parameters:
        """See GradientEngine.private_sum."""
        return self.private_sum_and_count(parameters, records, clip)[0]

    def private_sum_and_count(
        self, parameters: Parameters, records: Batch[B], clip: Clip | None = None
    ) -> tuple[Parameters, Tensor]:
        """See CountingEngine.private_sum_and_count."""
        clip = clip or self._clip
        fill_in(self._trainable, parameters)
        totals = totals_for(self._grid, parameters, clip)
        count = torch.zeros(1, dtype=torch.float64, device=device_of(parameters))
        norm = clip.max_grad_norm / self._records_per_unit
        for number, part in enumerate(passes_on(device_of(parameters), records, self._rows, self._dtype)):
            begin_pass(self._masks, number, self._rows, self._grid, self._views)
            accumulators, _ = self._accumulators(part.records, clip.divisors or {})
            add_clipped(totals, count, accumulators, self._trainable, self._kind, norm, part.weights, self._scratch)
        with in_ieee():
            return totals.finish(count), count

    def trace(
        self, parameters: Parameters, records: Batch[B], clip: Clip | None = None, sample: Sample = None
    ) -> list[Tensor]:
        """Losses and norms; dropout is off, and all records have the same views."""
        fill_in(self._trainable, parameters)
        with without_dropout(self._wrapped), stilled(self._views):
            passes = passes_on(device_of(parameters), records, self._rows, self._dtype)
            return traced(passes, partial(self._numbers, clip or self._clip), sample)

    def _numbers(self, clip: Clip, piece: B) -> list[Tensor]:
        accumulators, losses = self._accumulators(piece, clip.divisors or {})
        return [losses, *(part for accumulator in accumulators.values() for part in accumulator.squares())]

    def _accumulators(self, piece: B, divisors: Mapping[str, Tensor]) -> tuple[dict[str, ParameterAccumulator], Tensor]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that a first layer's input has no gradient
            losses = self._losses(self._wrapped, piece)
            losses.sum().backward()
        accumulators = {}
        for name, parameter in self._trainable.items():
            gradients = parameter.grad_sample  # type: ignore[attr-defined]
            if gradients is not None:
                formed = Dense(gradients).of_views(rows_of(self._views))
                accumulators[name] = ParameterAccumulator([formed], parameter.shape, divisors.get(name))
        self._wrapped.zero_grad(set_to_none=True)
        return accumulators, losses.detach()
