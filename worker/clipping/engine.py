"""What every clipping engine guarantees."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worker.clipping.precision import require_ieee
from worker.data.passes import Batch, Pass, moved
from worker.models.base import Parameters

ClippingKind = Literal["flat", "automatic", "per_layer"]
AUTOMATIC_GAMMA = 0.01
SMALLEST_NORM, LARGEST_NORM = 2.0**-40, 2.0**60  # of C, for sums in float32: no product can under- or overflow
Sample = NDArray[np.int64] | None
R = TypeVar("R")


@dataclass(frozen=True)
class Clip:
    """How one query clips. Depends on public numbers and noised gradients only.

    Attributes:
        max_grad_norm: C, for a whole unit. If the unit is a user with at most k records, each record is clipped to C/k.
        divisors: float64 tensors D > 0 in the parameters' names and shapes. g / D is clipped and summed instead of g.
            None: nothing is divided.
    """

    max_grad_norm: float
    divisors: Mapping[str, Tensor] | None = None

    def divided(self, total: Parameters) -> Parameters:
        """Σ c_i g_i / D from Σ c_i g_i: the divisor is the same for all records. 0 where D is not finite."""
        return {name: self.divided_one(name, value) for name, value in total.items()}

    def divided_one(self, name: str, total: Tensor) -> Tensor:
        """The same for one parameter."""
        if self.divisors is None:
            return total
        return torch.where(torch.isfinite(D := self.divisors[name]), total / D, 0.0)


class GradientEngine(Protocol):
    """Sums per-record gradients over one logical batch.

    A clipping engine guarantees: adding or removing any one record changes the sum by at most C/k · slack, in the ℓ₂
    norm over all tensors together. So a unit of k records changes it by at most C · slack, whatever its records hold.
    `slack` is core.privacy.numerics.sensitivity_slack, which bounds the rounding of sums; the noise is scaled by it. A
    record whose gradient is not finite contributes zero.

    The engine itself cuts the batch's rows into passes of one public number of rows, and pads the last one. Passes and
    rows without the record have the same bits with it and without (docs/theorems.md).
    """

    def private_sum(self, parameters: Parameters, records: Batch[Any], clip: Clip | None = None) -> Parameters:
        """Σ over all records, float64, in the order and shapes of `parameters`. Zeros for an empty batch.

        Args:
            records: any number of rows, each with one of the model's records or empty.
            clip: this query's clip, if it differs from the engine's own. An engine that does not clip still divides.
        """
        ...

    def trace(
        self, parameters: Parameters, records: Batch[Any], clip: Clip | None = None, sample: Sample = None
    ) -> list[Tensor]:
        """What the passes compute for each record, for the self-test: (n, …) each. Private if the records are.

        Args:
            clip: the clip whose norms are measured, if it differs from the engine's own.
            sample: the numbers of the records that are returned, ascending; None: all.
        """
        ...


@runtime_checkable
class CountingEngine(GradientEngine, Protocol):
    """An engine that also counts the records within C, for an adaptive norm. Clipping is flat."""

    def private_sum_and_count(
        self, parameters: Parameters, records: Batch[Any], clip: Clip | None = None
    ) -> tuple[Parameters, Tensor]:
        """The sum, and Σ_i (1[‖g_i‖ ≤ C] − ½), float64 (1,), exact. Each record adds +½ or −½ to the count, or 0.

        The norms are the upper bounds that the clipping uses. A norm that is not finite adds 0.
        """
        ...


def traced(passes: Iterable[Pass[R]], numbers: Callable[[R], Iterable[Tensor]], sample: Sample = None) -> list[Tensor]:
    """`numbers` of each pass's records, (P, …) each, on the processor, over all passes and without empty rows. For
    public records: their number shows.

    Args:
        sample: see GradientEngine.trace. Each tensor is cut to them before the next one is made.
    """
    numbers_of, first = [], 0
    for full in passes:
        rows, part = len(full.present), full
        if sample is not None:
            in_sample = torch.from_numpy(np.isin(np.arange(first, first + rows), sample))
            part = replace(full, present=full.present & moved(in_sample, full.present.device))
        numbers_of.append([part.only(values).cpu() for values in numbers(full.records)])
        first += rows
    return [torch.cat(each) for each in zip(*numbers_of, strict=True)]


def half_count(factors: Tensor) -> Tensor:
    """Σ_i (1[‖g_i‖ ≤ C] − ½) from flat clipping's factors f = min(1, C/‖g‖); a factor 0 adds nothing. Float64 (1,).

    A sum of halves is exact in any order.
    """
    return torch.where(factors > 0.0, (factors >= 1.0).double() - 0.5, 0.0).sum()[None]


def in_float32(gradients: Tensor, factors: Tensor) -> Tensor:
    """Σ_i factors_i g_i in float32, (m,): row by row, as steps.c and a GPU's kernel do. A factor 0 adds 0."""
    require_ieee()
    if gradients.device.type == "meta":  # of shapes alone
        return torch.mv(gradients.mT, factors)
    total = torch.zeros_like(gradients[0])
    for row, factor in zip(gradients, factors, strict=True):
        total += torch.where(factor != 0, row * factor, 0.0)
    return total


def clip_factors(norm_bounds: Tensor, kind: ClippingKind, max_grad_norm: float) -> Tensor:
    """The factor on each record's gradient.

        flat:       min(1, C / ‖g‖)
        automatic:  C / (‖g‖ + 0.01)
        per_layer:  as flat, with one layer's norm and its share C/√m

    Args:
        norm_bounds: float64 (n,), upper bounds of ‖g‖ over all parameters, or over one layer's.
        max_grad_norm: C.

    Returns:
        float64 (n,), private; 0 where the norm is not finite.

    Source: Abadi et al. 2016 (flat); Bu et al. 2022, "Automatic clipping" (γ = 0.01).
    """
    if kind != "automatic":
        factors = (max_grad_norm / norm_bounds).clamp_(max=1.0)
    else:
        factors = max_grad_norm / (norm_bounds + AUTOMATIC_GAMMA)
    return torch.where(torch.isfinite(norm_bounds), factors, 0.0)
