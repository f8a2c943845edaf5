"""Pooling over windows of 2 × 2, by compiled parts or by vectorized operations over whole tensors.

torch's own kernels visit one window at a time on the CPU: maxima took two thirds of a `conv2` step, and means a fifth
of a `conv5` step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worker.native.layers import LAYERS


class MaxPool2x2(nn.Module):
    """nn.MaxPool2d(2, stride=1): the same values, and each window's gradient at its first maximum.

    >>> MaxPool2x2()(torch.tensor([[[[1.0, 2.0], [4.0, 3.0]]]]))
    tensor([[[[4.]]]])
    """

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, h − 1, w − 1) for x (n, c, h, w)."""
        pooled: Tensor = _Largest.apply(x)  # type: ignore[no-untyped-call]
        return pooled

    def __repr__(self) -> str:
        """The torch layer with the same values: model cards print it."""
        return "MaxPool2d(2, stride=1)"


class AvgPool2x2(nn.Module):
    """nn.AvgPool2d(2): the same values and gradients.

    >>> AvgPool2x2()(torch.tensor([[[[1.0, 2.0], [4.0, 5.0]]]]))
    tensor([[[[3.]]]])
    """

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, ⌊h / 2⌋, ⌊w / 2⌋) for x (n, c, h, w)."""
        pooled: Tensor = _Mean.apply(x)  # type: ignore[no-untyped-call]
        return pooled

    def __repr__(self) -> str:
        """The torch layer with the same values: model cards print it."""
        return repr(nn.AvgPool2d(2))


class _Mean(torch.autograd.Function):
    """The four numbers of a window are added in their order in memory, and their sum is divided by 4."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape = x.shape
        pooled = LAYERS.average(x.contiguous()) if LAYERS is not None else None
        return F.avg_pool2d(x, 2).contiguous() if pooled is None else pooled

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        g = gradients[0].contiguous()
        back = LAYERS.average_back(g, ctx.shape) if LAYERS is not None else None
        if back is not None:
            return back
        of_shape = g.new_empty(ctx.shape)
        gradient: Tensor = torch.ops.aten.avg_pool2d_backward(g, of_shape, [2, 2], [2, 2], [0, 0], False, True, None)
        return gradient


class _Largest(torch.autograd.Function):
    """The maximum of each number and its right neighbour, then of these and the row below.

    Both work on the flat tensor: rows and records touch there, but what crosses their edges is cut off or zero.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x)
        pooled = LAYERS.maximum(x) if LAYERS is not None else None
        if pooled is not None:
            return pooled
        width, flat = x.shape[-1], x.view(-1)
        pairs = torch.maximum(flat[:-1], flat[1:])
        squares = torch.empty_like(flat)
        torch.maximum(pairs[:-width], pairs[width:], out=squares[: -width - 1])
        return squares.view(x.shape)[..., :-1, :-1].contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,), g = ctx.saved_tensors, gradients[0]
        back = LAYERS.maximum_back(g.contiguous(), x) if LAYERS is not None else None
        if back is not None:
            return back
        flat, width = x.view(-1), x.shape[-1]
        wide = g.new_zeros(x.shape)
        wide[..., :-1, :-1] = g
        upper = _first(wide.view(-1), torch.maximum(flat[:-1], flat[1:]), width)
        return _first(upper, flat, 1).view(x.shape)


def _first(g: Tensor, compared: Tensor, step: int) -> Tensor:
    """Each gradient at its place where the number there is not below the one `step` further on; else further on.

    The gradients are 0 where a window would cross an edge. Masks are floats: torch multiplies by booleans slowly.
    """
    size = len(compared) - step
    out = torch.empty_like(g)
    torch.ge(compared[:-step], compared[step:], out=out[:size])
    out[:size].mul_(g[:size])
    out[size:] = 0.0
    g.sub_(out)
    out[step:] += g[:-step]
    return out
