"""Σ g_i without clipping, by autograd. For public data only: the plan builds it if no privacy is claimed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from worker.clipping.engine import Clip, Sample
from worker.clipping.precision import in_tf32
from worker.clipping.totals import ONE_PROCESS, Floats, FloatTotals, begin_pass
from worker.data.passes import Batch
from worker.data.placed import device_of, passes_on
from worker.models.base import Parameters
from worker.models.dropout import masks_of
from worker.models.views import Views, averaged

B = TypeVar("B")


class PlainGradient(Generic[B]):
    """The sum of the batch's gradients; takes the same module and losses as the private engines.

    Args:
        module: the model.
        losses: each record's loss, (n,).
        rows: P of its passes.
        dtype: of its passes.
        over: the ranks that share the passes.
        views: of each record; None: the record itself.
        tf32: see Bookkeeping.
    """

    def __init__(
        self,
        module: nn.Module,
        losses: Callable[[nn.Module, B], Tensor],
        *,
        rows: int,
        dtype: torch.dtype,
        over: Floats = ONE_PROCESS,
        views: Views | None = None,
        tf32: bool = False,
    ) -> None:
        self._module, self._losses, self._rows, self._dtype = module, averaged(losses, views), rows, dtype
        self._views, self._tf32 = views, tf32
        self._over, self._masks = over, masks_of(module)
        self._trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}

    def private_sum(self, parameters: Parameters, records: Batch[B], clip: Clip | None = None) -> Parameters:
        """See GradientEngine.private_sum; nothing is clipped."""
        totals = FloatTotals(parameters, clip or Clip(1.0), self._over)
        with torch.no_grad():
            for name, value in parameters.items():
                self._trainable[name].copy_(value)
        for number, part in enumerate(passes_on(device_of(parameters), records, self._rows, self._dtype)):
            begin_pass(self._masks, number, self._rows, self._over, self._views)
            with in_tf32(self._tf32):
                loss = torch.where(part.present, self._losses(self._module, part.records), 0.0).sum()
                gradients = torch.autograd.grad(loss, list(self._trainable.values()), materialize_grads=True)
            for name, gradient in zip(self._trainable, gradients, strict=True):
                totals.add(name, gradient)
        return totals.finish()

    def trace(
        self, parameters: Parameters, records: Batch[B], clip: Clip | None = None, sample: Sample = None
    ) -> list[Tensor]:
        """Empty: the self-test does not run on public data."""
        return []  # public data: no guarantee depends on it
