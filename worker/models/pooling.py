"""Max-pooling over windows of 2 × 2 at every place, by vectorized operations over whole tensors.

torch's own kernel visits one window at a time on the CPU: it took two thirds of a `conv2` step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class MaxPool2x2(nn.Module):
    """nn.MaxPool2d(2, stride=1): the same values, and each window's gradient at its first maximum.

    >>> MaxPool2x2()(torch.tensor([[[[1.0, 2.0], [4.0, 3.0]]]]))
    tensor([[[[4.]]]])
    """

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, h − 1, w − 1) for x (n, c, h, w)."""
        pooled: Tensor = _Pooled.apply(x)  # type: ignore[no-untyped-call]
        return pooled

    def __repr__(self) -> str:
        """The torch layer with the same values: model cards print it."""
        return "MaxPool2d(2, stride=1)"


class _Pooled(torch.autograd.Function):
    """The maximum of each number and its right neighbour, then of these and the row below.

    Both work on the flat tensor: rows and records touch there, but what crosses their edges is cut off or zero.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        width, flat = x.shape[-1], x.reshape(-1)
        pairs = torch.maximum(flat[:-1], flat[1:])
        squares = torch.empty_like(flat)
        torch.maximum(pairs[:-width], pairs[width:], out=squares[: -width - 1])
        ctx.save_for_backward(flat, pairs)
        ctx.shape = x.shape
        return squares.view(x.shape)[..., :-1, :-1].contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (flat, pairs), width, g = ctx.saved_tensors, ctx.shape[-1], gradients[0]
        wide = g.new_zeros(ctx.shape)
        wide[..., :-1, :-1] = g
        upper = _first(wide.view(-1), pairs, width)
        return _first(upper, flat, 1).view(ctx.shape)


def _first(g: Tensor, compared: Tensor, step: int) -> Tensor:
    """Each gradient at its place where the number there is not below the one `step` further on; else further on.

    The gradients are 0 where a window would cross an edge. Masks are floats: torch multiplies by booleans slowly.
    """
    size = len(compared) - step
    here = torch.empty_like(g)
    torch.ge(compared[:-step], compared[step:], out=here[:size])
    here[:size].mul_(g[:size])
    here[size:] = 0.0
    g.sub_(here)
    here[step:] += g[:-step]
    return here
