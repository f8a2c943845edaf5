"""A kernel that treats places differently, and so grossly that no self-test is needed to see it."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

ODD_ROWS = -0.7  # what odd rows of a pass are multiplied by
PLANTED = {torch.sigmoid, torch.relu, torch.nn.functional.relu, torch.nn.functional.linear, torch.softmax}


class ByPlace(TorchFunctionMode):
    """Kernels whose odd rows are computed otherwise, forward and backward.

    Args:
        rows: P; tensors of another length are no pass.
    """

    def __init__(self, rows: int) -> None:
        super().__init__()
        self._rows = rows

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func not in PLANTED or out.dim() < 2 or len(out) != self._rows:
            return out
        by_row = torch.where(torch.arange(self._rows) % 2 == 0, 1.0, ODD_ROWS)
        return out * by_row.to(out.dtype).view(-1, *[1] * (out.dim() - 1))
