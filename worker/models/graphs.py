"""The first layer of a graph network of two hops: one linear map of a node and of its neighbours."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TwoHops(nn.Module):
    """[h(v), mean of h(w) over v's children w], with h = act(W [x, mean of x below] + b): (n, 2 h) of trees (n, W).

    Trees are laid out as core.parts.nodes says: (1 + K) nodes of two halves each, and K weights, 0 of no child.

    Args:
        width: W = (1 + K) · 2 columns + K.
        neighbours: K.
        hidden: h.
        act: the activation.
    """

    def __init__(self, width: int, neighbours: int, hidden: int, act: nn.Module) -> None:
        super().__init__()
        self.neighbours, self.halves = neighbours, (width - neighbours) // (1 + neighbours)
        self.linear = nn.Linear(self.halves, hidden)
        self.act = act

    @property
    def outputs(self) -> int:
        """2 h."""
        return 2 * self.linear.out_features

    def forward(self, trees: Tensor) -> Tensor:
        """(n, 2 h)."""
        ends = self.halves * (1 + self.neighbours)
        nodes = trees[:, :ends].unflatten(1, (1 + self.neighbours, self.halves))
        seen = self.act(self.linear(nodes))
        mean = (seen[:, 1:] * trees[:, ends:, None]).sum(dim=1)
        return torch.cat([seen[:, 0], mean], dim=1)
