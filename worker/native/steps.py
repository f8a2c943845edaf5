"""The compiled elementwise parts of a step, for flat tensors on the CPU.

Each answers whether it did the work. Where it did not, the caller does it by torch, with the same bits: there is no
library, or the tensors are of another type, on another device, or not contiguous. All of these are public.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Self

import torch
from torch import Tensor

from core.native.library import INSTALLED, Library
from worker.native.threads import of_torch, team

POINTER, COUNT, NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
MOST = 2**31  # a product's sizes are 32-bit integers


@dataclass(frozen=True)
class AdamStep:
    """The public numbers of one update by Adam, in the order of steps.c.

    Attributes:
        coupled: λ of λθ, which is added to the gradient; 0: none.
        keep1, take1, keep2, take2: β₁, 1 − β₁, β₂, 1 − β₂.
        weight1, weight2: 1 − β₁ᵗ, 1 − β₂ᵗ.
        eps, rate: γ, η_t.
        shrink: 1 − η_t λ if λ is decoupled; 1: none.
    """

    coupled: float
    keep1: float
    take1: float
    keep2: float
    take2: float
    weight1: float
    weight2: float
    eps: float
    rate: float
    shrink: float


class Steps:
    """The compiled parts of one library."""

    def __init__(self, library: Library) -> None:
        self.path, opened = library.number, library.opened
        self._widen, self._add, self._adam = opened.scrimp_widen, opened.scrimp_add_on_grid, opened.scrimp_adam
        self._add_narrow = opened.scrimp_add_narrow_on_grid
        self._widen.argtypes, self._widen.restype = [ctypes.c_int, POINTER, *[POINTER] * 3, COUNT, COUNT], None
        for each in (self._add, self._add_narrow):
            each.argtypes, each.restype = [ctypes.c_int, POINTER, POINTER, POINTER, COUNT, NUMBER], COUNT
        self._narrow, self._from_grid, self._descend = (
            opened.scrimp_narrow,
            opened.scrimp_from_grid,
            opened.scrimp_descend,
        )
        self._narrow.argtypes, self._narrow.restype = self._widen.argtypes, None
        self._from_grid.argtypes, self._from_grid.restype = [ctypes.c_int, POINTER, POINTER, COUNT, NUMBER], None
        self._descend.argtypes, self._descend.restype = (
            [ctypes.c_int, POINTER, POINTER, POINTER, COUNT, NUMBER, NUMBER],
            None,
        )
        self._squares, self._add_formed = opened.scrimp_squares, opened.scrimp_add_formed
        self._squares.argtypes, self._squares.restype = [ctypes.c_int, POINTER, *[POINTER] * 2, COUNT, COUNT], None
        self._squares_of_rows = opened.scrimp_squares_of_rows
        self._squares_of_rows.argtypes, self._squares_of_rows.restype = (
            [ctypes.c_int, POINTER, *[POINTER] * 4, *[COUNT] * 3],
            None,
        )
        self._add_formed.argtypes = [ctypes.c_int, POINTER, *[POINTER] * 3, *[COUNT] * 3, NUMBER]
        self._add_formed.restype = COUNT
        self._products, self._sgemm = opened.scrimp_add_products, of_torch("sgemm_")
        self._products.argtypes = [ctypes.c_int, *[POINTER] * 5, *[COUNT] * 5, NUMBER]
        self._products.restype = COUNT
        self._adam.argtypes, self._adam.restype = [ctypes.c_int, POINTER, *[POINTER] * 4, COUNT, POINTER], None

    @classmethod
    def installed(cls) -> Self | None:
        """Those of this installation, if it has a library."""
        return None if INSTALLED is None else cls(INSTALLED)

    def widen(self, out: Tensor, numbers: Tensor, factors: Tensor | None) -> bool:
        """out[i] = nan_to_num(numbers[i] · factors[i]), from float32 to float64.

        Args:
            factors: float64 (n,); None: all 1.
        """
        return self._by_factors(self._widen, out, numbers, factors, torch.float64)

    def narrow(self, out: Tensor, numbers: Tensor, factors: Tensor) -> bool:
        """As `widen`, but the result is rounded to float32."""
        return self._by_factors(self._narrow, out, numbers, factors, torch.float32)

    def _by_factors(
        self, work: Callable[..., None], out: Tensor, numbers: Tensor, factors: Tensor | None, dtype: torch.dtype
    ) -> bool:
        rows = numbers.shape[0]  # `len` of a tensor takes microseconds
        fit = out.shape == numbers.shape
        fit = fit and (factors is None or (_flat(factors, torch.float64) and factors.shape == (rows,)))
        if not (fit and rows and _flat(numbers, torch.float32) and _flat(out, dtype)):
            return False
        by = None if factors is None else factors.data_ptr()
        work(self.path, team(), out.data_ptr(), numbers.data_ptr(), by, rows, numbers.numel() // rows)
        return True

    def add_on_grid(self, totals: Tensor, sums: Tensor, inverse: float) -> bool | None:
        """totals += nearest(sums · inverse), in int64 from float64 or float32.

        Args:
            inverse: a power of two.

        Returns:
            True if |sums · inverse| < 2⁵¹ for all; False if the totals are of no use; None if nothing was done.
        """
        narrow = _flat(sums, torch.float32)
        wide = _flat(sums, torch.float64)
        if not (_flat(totals, torch.int64) and (narrow or wide) and totals.shape == sums.shape):
            return None
        return not (self._add_narrow if narrow else self._add)(
            self.path, team(), totals.data_ptr(), sums.data_ptr(), sums.shape[0], inverse
        )

    def from_grid(self, totals: Tensor, unit: float) -> bool:
        """Overwrites int64 (n,) by the float64 `totals · unit`."""
        if not _flat(totals, torch.int64):
            return False
        self._from_grid(self.path, team(), totals.data_ptr(), totals.numel(), unit)
        return True

    def descend(self, theta: Tensor, direction: Tensor, shrink: float, rate: float) -> bool:
        """θ = shrink · θ − rate · direction, float64 (n,), in place."""
        if not (_flat(theta, torch.float64) and _flat(direction, torch.float64) and theta.shape == direction.shape):
            return False
        self._descend(self.path, team(), theta.data_ptr(), direction.data_ptr(), theta.numel(), shrink, rate)
        return True

    def squares(self, out: Tensor, numbers: Tensor) -> bool:
        """out[i] = ‖numbers[i]‖², float64 (n,) of float32 (n, m): LANES sums side by side."""
        fit = _flat(out, torch.float64) and _flat(numbers, torch.float32) and out.shape == numbers.shape[:1]
        if not (fit and numbers.numel()):
            return False
        self._squares(self.path, team(), out.data_ptr(), numbers.data_ptr(), *numbers.shape)
        return True

    def squares_of_rows(self, out: Tensor, places: Tensor, ids: Tensor, values: Tensor) -> bool:
        """out[i] = Σ_t ⟨v_t, v_t + 2 Σ of the v_s before it with its id⟩, over a record's rows in the order of ids.

        Args:
            out: float64 (n,).
            places: int64 (n, T), the rows' places in that order.
            ids: int64 (n, T), sorted.
            values: float32 (n, T, q), in the rows' own order.
        """
        fit = _flat(out, torch.float64) and _flat(values, torch.float32) and values.shape[:2] == ids.shape
        fit = fit and _flat(places, torch.int64) and _flat(ids, torch.int64) and places.shape == ids.shape
        if not (fit and values.numel() and out.shape == ids.shape[:1]):
            return False
        tensors = (out, places, ids, values)
        self._squares_of_rows(self.path, team(), *(each.data_ptr() for each in tensors), *values.shape)
        return True

    def add_formed(self, totals: Tensor, gradients: Tensor, factors: Tensor, group: int, inverse: float) -> bool | None:
        """totals += Σ over groups of nearest(inverse · Σ_i factors_i gradients_i), in int64 from float32 sums.

        Args:
            totals: (m,).
            gradients: float32 (n, m).
            factors: float32 (n,); a row with factor 0 adds 0, whatever it is.
            group: the rows that float32 adds, one after the other.
            inverse: see add_on_grid.

        Returns:
            see add_on_grid.
        """
        fit = _flat(totals, torch.int64) and _flat(gradients, torch.float32) and _flat(factors, torch.float32)
        if not (fit and gradients.shape == factors.shape + totals.shape):
            return None
        sizes = (gradients.shape[0], group, gradients.shape[1])
        return not self._add_formed(
            self.path, team(), totals.data_ptr(), gradients.data_ptr(), factors.data_ptr(), *sizes, inverse
        )

    def add_products(
        self, totals: Tensor, left: Tensor, right: Tensor, group: int, each: int, inverse: float
    ) -> bool | None:
        """totals += Σ over groups of nearest(inverse · Σ_i left_i ⊗ right_i), in int64 from torch's float32 products.

        Args:
            totals: (p · q,).
            left: float32 (n, p).
            right: float32 (n, q).
            group: the records of one product.
            each: the rows of one product.
            inverse: see add_on_grid.

        Returns:
            see add_on_grid.
        """
        fit = _flat(totals, torch.int64) and _flat(left, torch.float32) and _flat(right, torch.float32)
        (n, p), (m, q) = left.shape, right.shape
        if not fit or self._sgemm is None or n != m or p * q != totals.shape[0]:
            return None
        if max(n, p, q) >= MOST or min(p, q, group) < 1:
            return None
        tensors = (each.data_ptr() for each in (totals, left, right))
        found = self._products(self.path, team(), self._sgemm, *tensors, n, p, q, group, each, inverse)
        return None if found < 0 else not found

    def adam(self, gradient: Tensor, theta: Tensor, m: Tensor, v: Tensor, by: AdamStep) -> bool:
        """One update of θ, m and v, float64 (n,) each, in place."""
        tensors = (gradient, theta, m, v)
        if not all(_flat(each, torch.float64) and each.shape == gradient.shape for each in tensors):
            return False
        numbers = (NUMBER * len(astuple(by)))(*astuple(by))
        self._adam(self.path, team(), *(each.data_ptr() for each in tensors), len(gradient), numbers)
        return True


def _flat(tensor: Tensor, dtype: torch.dtype) -> bool:
    return tensor.dtype == dtype and tensor.is_contiguous() and tensor.device.type == "cpu"


STEPS = Steps.installed()
