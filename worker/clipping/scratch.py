"""Memory that is used again and again: the first touch of a fresh page costs more than what is computed in it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


class Scratch:
    """A buffer for each name. What it held before is overwritten: a view lives until its name is asked for again."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}

    def empty(self, name: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Not initialized."""
        size, key = math.prod(shape), (name, dtype, device)
        held = self._held.get(key)
        if held is None or held.numel() < size:
            held = self._held[key] = torch.empty(size, dtype=dtype, device=device)
        return held[:size].view(tuple(shape))

    def finite(self, name: str, numbers: Tensor, dtype: torch.dtype) -> Tensor:
        """The same numbers in this type, 0 for what is NaN and some finite number for what is infinite: only rows whose
        factor is 0 hold any, and 0 · NaN is NaN. The shape is that of `numbers` whatever they are."""
        out = self.empty(name, numbers.shape, dtype, numbers.device).copy_(numbers)
        return torch.nan_to_num(out, out=out)

    def scaled(self, name: str, numbers: Tensor, factors: Tensor) -> Tensor:
        """numbers[i] · factors[i], in the type of the factors (n,); 0 where the factor is, whatever the numbers are."""
        out = self.empty(name, numbers.shape, factors.dtype, numbers.device)
        torch.mul(numbers, factors.view(-1, *(1,) * (numbers.dim() - 1)), out=out)
        return torch.nan_to_num(out, out=out)
