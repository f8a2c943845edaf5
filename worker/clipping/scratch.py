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

    def of_type(self, name: str, numbers: Tensor, dtype: torch.dtype) -> Tensor:
        """The same numbers in this type; themselves, where they have it."""
        if numbers.dtype == dtype:
            return numbers
        return self.empty(name, numbers.shape, dtype, numbers.device).copy_(numbers)

    def scaled(self, name: str, numbers: Tensor, factors: Tensor) -> Tensor:
        """numbers[i] · factors[i], in the type of the factors (n,)."""
        out = self.empty(name, numbers.shape, factors.dtype, numbers.device)
        return torch.mul(numbers, factors.view(-1, *(1,) * (numbers.dim() - 1)), out=out)
