"""The compiled elementwise parts of a step, for flat tensors on the CPU.

Each answers whether it did the work. Where it did not, the caller does it by torch, with the same bits: there is no
library, or the tensors are of another type, on another device, or not contiguous. All of these are public.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Self

import torch
from torch import Tensor

from core.errors import PrivacyError
from core.native.library import INSTALLED, Library
from worker.native.threads import of_torch, team

POINTER, COUNT, NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
MOST = 2**31  # a product's sizes are 32-bit integers
WORD_BYTES = 4


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


class MeasuredNumbers(ctypes.Structure):
    """One parameter's squared lengths for `clip_factors`; Measured of steps.c."""

    _fields_ = [
        ("squares", POINTER),
        ("slack", POINTER),
        ("share", NUMBER),
        ("longest", NUMBER),
    ]


class _Formed(ctypes.Structure):
    _fields_ = [*((name, POINTER) for name in ("totals", "gradients", "factors"))]
    _fields_ += [(name, COUNT) for name in ("rows", "group", "width")]


class Steps:
    """The compiled parts of one library."""

    def __init__(self, library: Library) -> None:
        self.path, opened = library.number, library.opened
        self._widen, self._add, self._adam = opened.scrimp_widen, opened.scrimp_add_on_grid, opened.scrimp_adam
        self._add_narrow = opened.scrimp_add_narrow_on_grid
        self._widen.argtypes, self._widen.restype = [ctypes.c_int, POINTER, *[POINTER] * 3, COUNT, COUNT], None
        for function in (self._add, self._add_narrow):
            function.argtypes, function.restype = [ctypes.c_int, POINTER, POINTER, POINTER, COUNT, NUMBER], COUNT
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
        self._add_formed.argtypes = [ctypes.c_int, POINTER, POINTER, COUNT, NUMBER]
        self._add_formed.restype = COUNT
        self._squares_of_products, self._scaled = opened.scrimp_squares_of_products, opened.scrimp_scaled
        self._squares_of_products.argtypes = [ctypes.c_int, *[POINTER] * 5, *[COUNT] * 3, *[NUMBER] * 3]
        self._scaled.argtypes = [ctypes.c_int, *[POINTER] * 6, *[COUNT] * 3]
        self._add_lengths, self._clip_factors = opened.scrimp_add_lengths, opened.scrimp_clip_factors
        self._add_lengths.argtypes, self._add_lengths.restype = [*[POINTER] * 3, COUNT, COUNT], None
        self._clip_factors.argtypes = [*[POINTER] * 4, COUNT, POINTER, COUNT, POINTER]
        self._clip_factors.restype = COUNT
        self._gather = opened.scrimp_gather
        self._gather.argtypes, self._gather.restype = [*[POINTER] * 5, *[COUNT] * 3], COUNT
        self._squares_of_products.restype = self._scaled.restype = None
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

    def squares_of_products(
        self, left: Tensor, right: Tensor, shares: tuple[float, float], longest: float
    ) -> tuple[Tensor, Tensor] | None:
        """‖l_i‖²‖r_i‖², and what rounding may have taken from it, float64 (n,) each; None if nothing was done.

        Args:
            left, right: float32 (n, p) and (n, q).
            shares: of the factors' squares, which rounding may have taken from these.
            longest: a factor with more squares counts as infinite.
        """
        (rows, p), q = left.shape, right.shape[1]
        if not (_flat(left, torch.float32) and _flat(right, torch.float32) and rows * p * q):
            return None
        squares, slack = torch.empty(2, 2 * rows, dtype=torch.float64)
        tensors = (each.data_ptr() for each in (squares, slack, left, right))
        self._squares_of_products(self.path, team(), *tensors, rows, p, q, *shares, longest)
        return squares[:rows], slack[:rows]

    def scaled(self, outs: Sequence[Tensor], left: Tensor, right: Tensor, factors: Tensor) -> bool:
        """The factors of products of one group: `narrow` of the left ones, and the right ones' finite numbers.

        Args:
            outs: two, float32 (n, p) and (n, q).
            left, right: likewise.
            factors: float64 (n,).
        """
        tensors = (*outs, left, right)
        fit = all(_flat(each, torch.float32) for each in tensors) and _flat(factors, torch.float64)
        fit = fit and outs[0].shape == left.shape and outs[1].shape == right.shape
        if not (fit and left.shape[0] == right.shape[0] == factors.shape[0] and left.numel() and right.numel()):
            return False
        pointers = (each.data_ptr() for each in (*tensors, factors))
        self._scaled(self.path, team(), *pointers, left.shape[0], left.shape[1], right.shape[1])
        return True

    def clip_factors(
        self,
        groups: Sequence[Sequence[MeasuredNumbers]],
        weights: Tensor,
        query: tuple[float, float, float],
    ) -> tuple[Tensor, Tensor, float]:
        """Weighted clip factors of groups of parameters: float64 and float32 (groups, n), and the first group's
        Σ_i (1[factor = 1] − ½) over factors that are not 0.

        Args:
            groups: their squares are float64 (n,), on the processor, contiguous; n is above 1.
            weights: likewise.
            query: 1 or 2 for flat and automatic clipping; a group's norm; γ.
        """
        rows, count, every = weights.shape[0], len(groups), [each for group in groups for each in group]
        bounds = [torch.empty_like(weights) for _ in groups]
        pointers = (POINTER * count)(*(each.data_ptr() for each in bounds))
        terms = (COUNT * count)(*map(len, groups))
        self._add_lengths(pointers, (MeasuredNumbers * len(every))(*every), terms, count, rows)
        for bound in bounds:
            bound.sqrt_()  # torch's own roots: their last bits are not those of the processor's
        weighted, rounded = torch.empty(count, rows, dtype=torch.float64), torch.empty(count, rows)
        numbers = (NUMBER * 3)(*query)
        outs = (weighted.data_ptr(), rounded.data_ptr())
        halves = self._clip_factors(*outs, pointers, terms, count, weights.data_ptr(), rows, numbers)
        return weighted, rounded, halves / 2

    def gather(self, values: Tensor, places: Tensor, absent: Tensor) -> Tensor | None:
        """values[places] in new memory, zeros for absent rows; None if nothing was done.

        As much is read for absent rows as for others: their own, or row 0 where the place is negative.

        Args:
            values: (n, …), n at least 1; a row has whole words of 32 bits.
            places: int64 (rows,).
            absent: bool (rows,); all with a negative place are.

        Raises:
            PrivacyError: a row that is not absent has no place among the n.
        """
        size = math.prod(values.shape[1:]) * values.element_size()
        fit = values.is_contiguous() and values.device.type == "cpu"
        fit = fit and _flat(places, torch.int64) and _flat(absent, torch.bool) and places.shape == absent.shape
        if not (fit and values.shape[0] and size and size % WORD_BYTES == 0):
            return None
        out = values.new_empty(places.shape[0], *values.shape[1:])
        pointers = (each.data_ptr() for each in (out, values, places, absent))
        if self._gather(team(), *pointers, values.shape[0], places.shape[0], size // WORD_BYTES):
            raise PrivacyError("a row has a place that no record has")
        return out

    def add_formed(self, sums: Sequence[tuple[Tensor, Tensor, Tensor, int]], inverse: float) -> bool | None:
        """totals += Σ over groups of nearest(inverse · Σ_i factors_i gradients_i), in int64 from float32 sums, of all
        parameters in one call.

        Args:
            sums: of each parameter totals, int64 (m,), which do not overlap; gradients, float32 (n, m); factors,
                float32 (n,), where a row with factor 0 adds 0, whatever it is; and the rows that float32 adds, one
                after the other.
            inverse: see add_on_grid.

        Returns:
            see add_on_grid.
        """
        formed = (_Formed * len(sums))()
        for at, (totals, gradients, factors, group) in enumerate(sums):
            fit = _flat(totals, torch.int64) and _flat(gradients, torch.float32) and _flat(factors, torch.float32)
            rows, width = gradients.shape
            if not (fit and factors.shape == (rows,) and totals.shape == (width,)):
                return None
            formed[at] = _Formed(totals.data_ptr(), gradients.data_ptr(), factors.data_ptr(), rows, group, width)
        return not self._add_formed(self.path, team(), formed, len(sums), inverse)

    def add_products(
        self, totals: Tensor, left: Tensor, right: Tensor, group: int, per_group: int, inverse: float
    ) -> bool | None:
        """totals += Σ over groups of nearest(inverse · Σ_i left_i ⊗ right_i), in int64 from torch's float32 products.

        Args:
            totals: (p · q,).
            left: float32 (n, p).
            right: float32 (n, q).
            group: the records of one product.
            per_group: the rows of one product.
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
        status = self._products(self.path, team(), self._sgemm, *tensors, n, p, q, group, per_group, inverse)
        return None if status < 0 else not status

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
