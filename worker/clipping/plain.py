"""Σ g_i without clipping, by autograd: for public data only, built by the plan where no privacy is claimed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from worker.clipping.engine import Clip
from worker.models.base import Parameters

B = TypeVar("B")


class PlainGradient(Generic[B]):
    """The sum of the batch's gradients; the same module and losses as the private engines take.

    Args:
        module: the model.
        losses: each record's loss, (n,).
    """

    def __init__(self, module: nn.Module, losses: Callable[[nn.Module, B], Tensor]) -> None:
        self._module, self._losses = module, losses
        self._trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}

    def private_sum(self, parameters: Parameters, batches: Sequence[B], clip: Clip | None = None) -> Parameters:
        total = {name: torch.zeros(value.shape, dtype=torch.float64) for name, value in parameters.items()}
        with torch.no_grad():
            for name, value in parameters.items():
                self._trainable[name].copy_(value)
        for batch in batches:
            loss = self._losses(self._module, batch).sum()
            gradients = torch.autograd.grad(loss, list(self._trainable.values()), materialize_grads=True)
            for name, gradient in zip(self._trainable, gradients, strict=True):
                total[name] += gradient
        return clip.divided(total) if clip else total
