"""Learned positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Positions(nn.Module):
    """Learned positions: x (n, T, q) + P[:T], for T up to `length`. A separate module, so a clipping rule applies."""

    def __init__(self, length: int, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(length, features))

    def forward(self, x: Tensor) -> Tensor:
        """Adds the first T positions."""
        return x + self.weight[: x.shape[1]]


class PerRecord(nn.Module):
    """A parameter that no layer holds, (n, …): a copy for each record, whose gradient is that record's."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        """Copies, without memory of their own, for as many records as x has."""
        return self.weight.expand(len(x), *self.weight.shape)
