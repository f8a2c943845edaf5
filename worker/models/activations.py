"""tanh as a ratio of polynomials, for float32 passes on a processor: torch's takes five times as long.

    tanh x ≈ y p(y²) / q(y²) for y = x within ±7.9, and x where |x| < 0.0004

It errs by at most 4.1 · 10⁻⁷ and never exceeds 1 (tests/worker/test_native_layers.py). Only products, sums and one
quotient, each rounded once: torch has the same bits where the library is absent.

Source: Eigen's fast tanh (`ptanh_float`), which XLA and TensorFlow use.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from worker.native.layers import LAYERS

LARGEST = 7.90531110763549805  # beyond it float32's tanh is 1
OWN = 0.0004  # below it float32's tanh x is x
# From the highest power of x² down; as in layers.c.
P = (
    -2.76076847742355e-16,
    2.00018790482477e-13,
    -8.60467152213735e-11,
    5.12229709037114e-08,
    1.48572235717979e-05,
    6.37261928875436e-04,
    4.89352455891786e-03,
)
Q = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)


class Tanh(nn.Tanh):
    """The layer. Other types, and a GPU, take torch's.

    >>> Tanh()(torch.tensor([0.0, 1.0]))
    tensor([0.0000, 0.7616])
    """

    def forward(self, x: Tensor) -> Tensor:
        """tanh of each number."""
        if x.dtype != torch.float32 or x.device.type != "cpu":
            return torch.tanh(x)
        values: Tensor = _Ratio.apply(x)  # type: ignore[no-untyped-call]
        return values


class _Ratio(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        compiled = LAYERS.tanh(x) if LAYERS is not None else None
        values = _by_torch(x) if compiled is None else compiled
        ctx.save_for_backward(values)
        return values

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gradient: Tensor = torch.ops.aten.tanh_backward(gradients[0], *ctx.saved_tensors)
        return gradient


def _by_torch(x: Tensor) -> Tensor:
    y = x.clamp(-LARGEST, LARGEST)
    s = y.square()
    ratio = _polynomial(P, s).mul_(y).div_(_polynomial(Q, s))
    return torch.where(x.abs() < OWN, x, ratio)


def _polynomial(coefficients: tuple[float, ...], s: Tensor) -> Tensor:
    first, *lower = coefficients
    value = torch.full_like(s, first)
    for coefficient in lower:
        value.mul_(s).add_(coefficient)
    return value
