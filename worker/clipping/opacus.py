"""The reference engine: every per-record gradient formed by Opacus' GradSampleModule, then clipped and added up."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

import torch
from opacus.grad_sample import GradSampleModule
from torch import Tensor, nn

from worker.clipping.bookkeeping import add_clipped, fill_in, refuse_mixing
from worker.clipping.books import ParameterBook
from worker.clipping.engine import Clip, ClippingKind
from worker.clipping.terms import Dense
from worker.models.base import Parameters

B = TypeVar("B")


class OpacusClipping(Generic[B]):
    """As Bookkeeping, with Opacus' per-record gradients in place of books. See GradientEngine for the guarantee.

    Source: Yousefpour et al. 2021, "Opacus: user-friendly differential privacy library in PyTorch".
    """

    def __init__(
        self,
        module: nn.Module,
        losses: Callable[[nn.Module, B], Tensor],
        count: Callable[[B], int],
        *,
        kind: ClippingKind,
        max_grad_norm: float,
        records_per_unit: int = 1,
    ) -> None:
        refuse_mixing(module)
        self._trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._wrapped = GradSampleModule(module, loss_reduction="sum")
        self._losses, self._count = losses, count
        self._kind: ClippingKind = kind
        self._clip, self._records_per_unit = Clip(max_grad_norm), records_per_unit

    def private_sum(self, parameters: Parameters, batches: Sequence[B], clip: Clip | None = None) -> Parameters:
        return self.private_sum_and_count(parameters, batches, clip)[0]

    def private_sum_and_count(
        self, parameters: Parameters, batches: Sequence[B], clip: Clip | None = None
    ) -> tuple[Parameters, Tensor]:
        clip = clip or self._clip
        fill_in(self._trainable, parameters)
        total = {name: torch.zeros(value.shape, dtype=torch.float64) for name, value in parameters.items()}
        count = torch.zeros(1, dtype=torch.float64)
        for batch in batches:
            if self._count(batch) > 0:
                books = self._books(batch, clip.divisors or {})
                norm = clip.max_grad_norm / self._records_per_unit
                add_clipped(total, count, books, self._trainable, self._kind, norm)
        return clip.divided(total), count

    def _books(self, batch: B, divisors: Mapping[str, Tensor]) -> dict[str, ParameterBook]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a first layer's input has no gradient, which torch mentions
            self._losses(self._wrapped, batch).sum().backward()
        books = {}
        for name, parameter in self._trainable.items():
            gradients = parameter.grad_sample  # type: ignore[attr-defined]
            if gradients is not None:
                books[name] = ParameterBook([Dense(gradients)], parameter.shape, divisors.get(name))
        self._wrapped.zero_grad(set_to_none=True)
        return books
