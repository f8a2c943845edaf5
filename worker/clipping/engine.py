"""What every clipping engine promises."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from worker.data.passes import Batch, Pass
from worker.models.base import Parameters

ClippingKind = Literal["flat", "automatic", "per_layer"]
AUTOMATIC_GAMMA = 0.01
R = TypeVar("R")


@dataclass(frozen=True)
class Clip:
    """How one query clips: public numbers, and functions of noised gradients.

    Attributes:
        max_grad_norm: C, of a whole unit: where it is a user with k records at most, each is clipped to C/k.
        divisors: float64 tensors D > 0 in the names and shapes of the parameters: g / D is clipped and summed in place
            of g. None: nothing is divided.
    """

    max_grad_norm: float
    divisors: Mapping[str, Tensor] | None = None

    def divided(self, total: Parameters) -> Parameters:
        """Σ c_i g_i / D of Σ c_i g_i: the divisor is the same for all records. 0 where D is not finite."""
        if self.divisors is None:
            return total
        return {name: torch.where(torch.isfinite(D := self.divisors[name]), S / D, 0.0) for name, S in total.items()}


class GradientEngine(Protocol):
    """Sums per-record gradients over one logical batch.

    A clipping engine guarantees: adding or removing any one record changes the sum by at most C/k · slack in the ℓ₂
    norm over all tensors together, so that a unit of k records changes it by at most C · slack, whatever its records
    hold. `slack` is app.privacy.numerics.sensitivity_slack, a bound of what sums round, and the noise is scaled by it.
    A record whose gradient is not finite contributes zero.

    The engine itself cuts the batch into passes of one public number of rows and fills them up: a record's clipped
    gradient is then a function of that record alone, to the last bit (worker.data.passes).
    """

    def private_sum(self, parameters: Parameters, records: Batch[Any], clip: Clip | None = None) -> Parameters:
        """Σ over all records, float64, in the order and shapes of `parameters`. No records give zeros.

        Args:
            records: any number of them, of the model's kind.
            clip: this query's, where it is not the one that the engine was built with. An engine that does not clip
                divides all the same.
        """
        ...

    def trace(self, parameters: Parameters, records: Batch[Any], clip: Clip | None = None) -> list[Tensor]:
        """What the passes compute of each record, for the self-test: (n, …) each. Private where the records are.

        Args:
            clip: norms are those that it measures, where it is not the one that the engine was built with.
        """
        ...


@runtime_checkable
class CountingEngine(GradientEngine, Protocol):
    """An engine that can count the records within C, for an adaptive norm. Clipping is flat."""

    def private_sum_and_count(
        self, parameters: Parameters, records: Batch[Any], clip: Clip | None = None
    ) -> tuple[Parameters, Tensor]:
        """The sum, and Σ_i (1[‖g_i‖ ≤ C] − ½), float64 (1,) and exact, to which no record adds more than ½ either way.

        Norms are the upper bounds that are clipped by; one that is not finite adds 0.
        """
        ...


def traced(passes: Iterable[Pass[R]], numbers: Callable[[R], Sequence[Tensor]]) -> list[Tensor]:
    """What `numbers` makes of each pass's records, (P, …) each, of all passes and without rows that fill up."""
    found = [[values[: each.count] for values in numbers(each.records)] for each in passes]
    return [torch.cat(each) for each in zip(*found, strict=True)]


def half_count(factors: Tensor) -> Tensor:
    """Σ_i (1[‖g_i‖ ≤ C] − ½) by flat clipping's factors f = min(1, C/‖g‖); nothing where one is 0. Float64 (1,).

    A sum of halves: exact, whatever the order.
    """
    return torch.where(factors > 0.0, (factors >= 1.0).double() - 0.5, 0.0).sum()[None]


def clip_factors(norm_bounds: Tensor, kind: ClippingKind, max_grad_norm: float) -> Tensor:
    """What each record's gradient is multiplied with.

        flat:       min(1, C / ‖g‖)
        automatic:  C / (‖g‖ + 0.01)
        per_layer:  flat's, of one layer's norm and its share C/√m

    Args:
        norm_bounds: float64 (n,), upper bounds of ‖g‖ over all parameters, or those of one layer.
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
