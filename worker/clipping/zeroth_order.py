"""Clipped slopes along one public direction: two forward passes, and no gradient.

Source: Tang, Panda, Nasr, Mahloujifar & Mittal 2024, "Private fine-tuning of large language models with zeroth-order
optimization" (DP-ZO); the direction of signs: Spall 1992.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from core.errors import PrivacyError
from worker.clipping.bookkeeping import refuse_mixing
from worker.clipping.engine import AUTOMATIC_GAMMA, Clip, ClippingKind, Sample, traced
from worker.clipping.precision import in_tf32
from worker.clipping.totals import Floats, FloatTotals, Grid, Totals, totals_for
from worker.data.passes import Batch
from worker.data.placed import device_of, passes_on
from worker.models.base import Model, Parameters
from worker.models.dropout import without_dropout
from worker.models.linear import Linear
from worker.models.matrix_factorization import MatrixFactorization
from worker.models.modules import ModuleModel
from worker.noise.directions import ALONG, Directions

Losses = Callable[[Any], Tensor]  # of a pass's records, (P,)


@dataclass(frozen=True)
class Slope:
    """How a record's slope is measured and bounded.

    Attributes:
        phi: φ, how far the losses are taken from θ.
        kind: "flat" or "automatic"; None: nothing is clipped, for public data.
        max_grad_norm: C.
        records_per_unit: k: each record is clipped to C/k.
    """

    phi: float
    kind: ClippingKind | None = None
    max_grad_norm: float = 1.0
    records_per_unit: int = 1

    def measured(self, plus: Tensor, minus: Tensor) -> Tensor:
        """s = (loss(θ + φz) − loss(θ − φz)) / 2φ, float64 (P,)."""
        return (plus.double() - minus.double()) / (2.0 * self.phi)

    def clipped(self, slopes: Tensor, max_grad_norm: float) -> Tensor:
        """The slopes in [−C/k, C/k], whatever they are; 0 where one is not finite. Unclipped on public data."""
        if self.kind is None:
            return slopes
        bound = max_grad_norm / self.records_per_unit
        if self.kind == "automatic":
            slopes = bound * (slopes / (slopes.abs() + AUTOMATIC_GAMMA))
        return torch.where(torch.isfinite(slopes), slopes, 0.0).clamp(-bound, bound)


class ZerothOrder:
    """Σ clip_C(s_i), one number: each record's slope of its loss along the step's direction z.

    Guarantee: see GradientEngine, for the sum {"along": (1,)}. A record's two losses are functions of that record, of
    the parameters and of the public z, and its clipped slope is at most C/k in size; so one record more or less moves
    the number by at most C/k · slack. All rows of the batch take both forward passes.

    Args:
        model: any; dropout is off.
        slope: how slopes are measured and clipped.
        directions: the public ones.
        over: how passes are added: on a grid of integers, in float64 over the ranks for public data, or in one process.

    Raises:
        PrivacyError: a layer mixes records, or clipping is neither "flat" nor "automatic".
    """

    def __init__(self, model: Model, slope: Slope, directions: Directions, over: Grid | Floats | None = None) -> None:
        if slope.kind not in (None, "flat", "automatic"):
            raise PrivacyError("a slope is one number: its clipping is flat or automatic")
        self._model, self._slope, self._directions, self._over = model, slope, directions, over
        self._filled = _filler(model)
        self._step = 1

    def begin(self, step: int) -> None:
        """The next sums are of this step: its direction replaces the last one's."""
        self._step = step

    def private_sum(self, parameters: Parameters, records: Batch[Any], clip: Clip | None = None) -> Parameters:
        """See GradientEngine.private_sum; of {"along": float64 (1,)}.

        Raises:
            PrivacyError: divisors are given, of which a slope has none.
        """
        by = clip or Clip(self._slope.max_grad_norm)
        if by.divisors is not None:
            raise PrivacyError("a slope cannot be divided by parameter")
        totals = self._totals(device_of(parameters), by)
        with torch.no_grad():
            forward_losses = [losses for losses, _ in self._passes(parameters, records, self._slope.phi)]
            backward_losses = self._passes(parameters, records, -self._slope.phi)
            for plus, (minus, present) in zip(forward_losses, backward_losses, strict=True):
                clipped = self._slope.clipped(self._slope.measured(plus, minus), by.max_grad_norm)
                totals.add(ALONG, torch.where(present, clipped, 0.0).sum()[None])
        return totals.finish()

    def trace(
        self, parameters: Parameters, records: Batch[Any], clip: Clip | None = None, sample: Sample = None
    ) -> list[Tensor]:
        """The losses on one side, the slopes, and the losses on the other side."""
        with torch.no_grad():
            plus, minus = (self._shown(parameters, records, by) for by in (self._slope.phi, -self._slope.phi))
        slopes = self._slope.measured(plus, minus)
        numbers = [plus, slopes, self._slope.clipped(slopes, self._slope.max_grad_norm), minus]
        return numbers if sample is None else [each[sample] for each in numbers]

    def _totals(self, device: torch.device, by: Clip) -> Totals:
        along = {ALONG: torch.zeros(1, dtype=torch.float64, device=device)}
        if isinstance(self._over, Floats):
            return FloatTotals(along, by, self._over)
        return totals_for(self._over, along, by)

    def _passes(self, parameters: Parameters, records: Batch[Any], by: float) -> Iterator[tuple[Tensor, Tensor]]:
        """Each pass's losses at θ + by · z, and which rows are records: (P,) each."""
        losses, model = self._filled(self._directions.beside(parameters, self._step, by)), self._model
        for part in passes_on(device_of(parameters), records, model.rows_per_pass, model.dtype):
            yield _checked(losses(part.records), model.rows_per_pass), part.present

    def _shown(self, parameters: Parameters, records: Batch[Any], by: float) -> Tensor:
        losses, model = self._filled(self._directions.beside(parameters, self._step, by)), self._model
        passes = passes_on(device_of(parameters), records, model.rows_per_pass, model.dtype)
        return traced(passes, lambda piece: [losses(piece)])[0]


def _checked(losses: Tensor, rows: int) -> Tensor:
    if losses.shape != (rows,):
        raise PrivacyError("a model must give exactly one loss per record")
    return losses


def _filler(model: Model) -> Callable[[Iterator[tuple[str, Tensor]]], Losses]:
    """Returns what makes each record's training loss of named parameters, which come one after another.

    Raises:
        PrivacyError: a layer mixes records.
    """
    if isinstance(model, ModuleModel):
        return _module_filler(model)
    if isinstance(model, Linear | MatrixFactorization):
        return lambda parameters: _shallow(model, dict(parameters))
    raise TypeError("no losses for this kind of model")


def _module_filler(model: ModuleModel) -> Callable[[Iterator[tuple[str, Tensor]]], Losses]:
    module = model.module()
    refuse_mixing(module)
    trainable = {name: each for name, each in module.named_parameters() if each.requires_grad}

    def losses(records: Any) -> Tensor:
        with without_dropout(module), in_tf32(model.tf32):
            return model.record_losses(module, records)

    def filled(parameters: Iterator[tuple[str, Tensor]]) -> Losses:
        left = set(trainable)
        for name, value in parameters:
            trainable[name].copy_(value)
            left.remove(name)
        if left:
            raise PrivacyError("the parameters' names differ from the model's")
        return losses

    return filled


def _shallow(model: Linear | MatrixFactorization, parameters: Parameters) -> Losses:
    def losses(records: Any) -> Tensor:
        losses_of = model.losses(model.pass_outputs(parameters, records).double(), records.labels)
        return losses_of * model.weights_of(records.labels, losses_of.dtype) if model.class_weights else losses_of

    return losses
