"""Reusable memory: touching a fresh page for the first time costs more than the computation in it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from worker.native.flat_steps import STEPS


class Scratch:
    """One buffer for each name. Asking for a name again overwrites its old content, so earlier views become invalid.

    >>> Scratch().empty("sum", (2, 3), torch.float64, torch.device("cpu")).shape
    torch.Size([2, 3])
    """

    def __init__(self) -> None:
        self._held: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}

    def empty(self, name: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """A view of the buffer, not initialized."""
        size, key = math.prod(shape), (name, dtype, device)
        buffer = self._held.get(key)
        if buffer is None or buffer.numel() < size:
            buffer = self._held[key] = torch.empty(size, dtype=dtype, device=device)
        return buffer[:size].view(tuple(shape))

    def finite(self, name: str, numbers: Tensor, dtype: torch.dtype) -> Tensor:
        """The same numbers in this type, with 0 for NaN and finite numbers for infinities.

        Only rows with factor 0 contain such values, and 0 · NaN is NaN. The shape is that of `numbers` in every case.
        """
        out = self.empty(name, numbers.shape, dtype, numbers.device)
        if dtype == numbers.dtype:
            return torch.nan_to_num(numbers, out=out)
        if STEPS is not None and STEPS.widen(out, numbers, None):
            return out
        return torch.nan_to_num(out.copy_(numbers), out=out)

    def scaled(self, name: str, numbers: Tensor, factors: Tensor) -> Tensor:
        """numbers[i] · factors[i], in the type of the factors (n,); 0 for a factor 0, whatever the numbers are."""
        out = self.empty(name, numbers.shape, factors.dtype, numbers.device)
        if STEPS is not None and STEPS.widen(out, numbers, factors):
            return out
        out.copy_(numbers)  # `mul` of two types would copy them to new memory
        out.mul_(factors.view(-1, *(1,) * (numbers.dim() - 1)))
        return torch.nan_to_num(out, out=out)

    def narrowed(self, name: str, numbers: Tensor, factors: Tensor) -> Tensor:
        """As `scaled`, and then rounded to float32: the factor alone may be too small for that type."""
        out = self.empty(name, numbers.shape, torch.float32, numbers.device)
        if STEPS is not None and STEPS.narrow(out, numbers, factors):
            return out
        return out.copy_(self.scaled(name, numbers, factors))

    def of_products(self, left: Tensor, right: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
        """`narrowed` of the left ones and `finite` of the right ones, float32 both: read and written once each."""
        outs = [
            self.empty(name, each.shape, torch.float32, each.device)
            for name, each in (("left", left), ("right", right))
        ]
        if STEPS is not None and STEPS.scaled((outs[0], outs[1]), left, right, factors):
            return outs[0], outs[1]
        return self.narrowed("left", left, factors), self.finite("right", right, torch.float32)
