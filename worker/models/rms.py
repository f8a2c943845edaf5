"""Root-mean-square norm with its scale around 1."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ShiftedRMSNorm(nn.Module):
    """y = (1 + w) ⊙ x / √(mean(x²) + eps) over the last dimension: Gemma's norm, whose w begins at 0.

    >>> ShiftedRMSNorm(2, eps=0.0)(torch.tensor([[3.0, 3.0]]))
    tensor([[1., 1.]], grad_fn=<MulBackward0>)
    """

    def __init__(self, features: int, *, eps: float, device: torch.device | str | None = None) -> None:
        super().__init__()
        self.normalized_shape, self.eps = (features,), eps
        self.weight = nn.Parameter(torch.zeros(features, device=device))

    def forward(self, x: Tensor) -> Tensor:
        """Normalizes and scales."""
        return F.rms_norm(x, list(self.normalized_shape), eps=self.eps) * (1.0 + self.weight)
