"""The compiled parts of a linear model's step.

Each answers whether it does the work. Where it does not, the caller does it by NumPy or torch, with the same bits:
there is no library, or the arrays are of another type, on another device, or not contiguous. All of these are public.
"""

from __future__ import annotations

import ctypes
from dataclasses import astuple, dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.native.library import INSTALLED, Library
from worker.native.threads import team

POINTER, COUNT, NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
ROWS = 64  # as in linear.c
SUMS = 4  # of a row's entries, side by side; as in linear.c
KINDS = {(np.dtype(np.uint16), np.dtype(np.float32)): "narrow", (np.dtype(np.int32), np.dtype(np.float64)): "wide"}
EVEN = "even"


@dataclass(frozen=True)
class ClipNumbers:
    """The public numbers of one query, in the order of linear.c.

    Attributes:
        kind: 0: residuals alone; 1: flat; 2: automatic.
        norm, gamma: C of a record; γ of automatic clipping.
        bias: 1 if there is one.
        longest: a record with a larger norm counts as not finite.
    """

    kind: float
    norm: float
    gamma: float
    bias: float
    longest: float


class _Outputs(ctypes.Structure):
    _fields_ = [("numbers", POINTER), ("narrow", COUNT), ("by_row", COUNT), ("by_output", COUNT)]


class LinearSteps:
    """The compiled parts of one library."""

    def __init__(self, library: Library) -> None:
        self.path, opened = library.number, library.opened
        entries: list[Any] = [ctypes.c_int, POINTER, COUNT, *[POINTER] * 4, COUNT]
        self._products, self._scatters = {}, {}
        for kind in (*KINDS.values(), EVEN):
            product = self._products[kind] = opened[f"scrimp_product_{kind}"]
            product.argtypes, product.restype = [*entries, COUNT, COUNT], None
        for kind in KINDS.values():
            scatter = self._scatters[kind] = opened[f"scrimp_scatter_{kind}"]
            scatter.argtypes, scatter.restype = entries, None
        self._groups, self._clip = opened.scrimp_add_groups, opened.scrimp_clip
        self._groups.argtypes, self._groups.restype = [ctypes.c_int, *[POINTER] * 3, COUNT, COUNT], None
        self._clip.argtypes = [ctypes.c_int, *[POINTER] * 8, COUNT, COUNT, POINTER, POINTER]
        self._clip.restype = COUNT

    @classmethod
    def installed(cls) -> Self | None:
        """Those of this installation, if it has a library."""
        return None if INSTALLED is None else cls(INSTALLED)

    def takes(self, columns: NDArray[Any], values: NDArray[Any]) -> bool:
        """True if there are products of entries of these types."""
        return (columns.dtype, values.dtype) in KINDS

    def product(
        self,
        out: Tensor,
        ends: NDArray[np.int64],
        columns: NDArray[Any],
        values: NDArray[Any],
        table: Tensor,
        part: slice,
        *,
        even: bool,
    ) -> None:
        """out[k, i] = Σ over row i's entries of value · table[column, k], for the rows of `part`: in SUMS sums, which
        are added by pairs.

        Args:
            out: float64 (K, n).
            ends, columns, values: the rows, of types that it `takes`; rows end where the next one begins.
            table: float64 (columns, K).
            even: `values` has one for all entries of a row; columns take two bytes.
        """
        call = self._products[EVEN if even else KINDS[columns.dtype, values.dtype]]
        call(*self._arguments(out, out.shape[1], ends, columns, values, table), part.start, part.stop)

    def scatter(
        self, out: Tensor, ends: NDArray[np.int64], columns: NDArray[Any], values: NDArray[Any], table: Tensor
    ) -> None:
        """out[column, k] += value · table[i, k], row by row and entry by entry.

        Args:
            out: float64 (columns, K).
            table: float64 (n, K).
        """
        call = self._scatters[KINDS[columns.dtype, values.dtype]]
        call(*self._arguments(out, len(table), ends, columns, values, table))

    def _arguments(
        self,
        out: Tensor,
        rows: int,
        ends: NDArray[np.int64],
        columns: NDArray[Any],
        values: NDArray[Any],
        table: Tensor,
    ) -> tuple[int | None, ...]:
        pointers = (each.ctypes.data for each in (ends, columns, values))
        return self.path, out.data_ptr(), rows, *pointers, table.data_ptr(), table.shape[1]

    def add_groups(self, out: Tensor, groups: Tensor) -> bool:
        """out = Σ_g groups[g], float64 (…) of float32 (g, …), group by group."""
        fit = groups.dtype == torch.float32 and out.dtype == torch.float64 and out.shape == groups.shape[1:]
        if not (fit and _here(groups) and _here(out)):
            return False
        self._groups(self.path, team(), out.data_ptr(), groups.data_ptr(), len(groups), out.numel())
        return True

    def clip(
        self,
        out: Tensor,
        norms: Tensor,
        outputs: Tensor,
        labels: Tensor,
        lengths: Tensor,
        present: Tensor,
        query: ClipNumbers,
    ) -> bool:
        """Scaled residuals and norms; see worker.clipping.residuals.

        Args:
            out: float64 (P, K).
            norms: float64 (P,).
            outputs: (K, P), float64 or float32, in any strides.
            labels: (P,): int64 if K > 1, else float64.
            lengths: float64 (P,).
            present: bool (P,), the rows that are records.

        Raises:
            IndexError: a label is no class.
        """
        rows, width = out.shape
        classes = width > 1
        narrow = outputs.dtype == torch.float32
        fit = labels.dtype == (torch.int64 if classes else torch.float64) and lengths.dtype == torch.float64
        fit = (
            fit
            and present.dtype == torch.bool
            and (narrow or outputs.dtype == torch.float64)
            and outputs.device.type == "cpu"
        )
        if not (fit and all(map(_here, (out, norms, labels, lengths, present)))):
            return False
        outputs_of = _Outputs(outputs.data_ptr(), narrow, outputs.stride(1), outputs.stride(0))
        numbers = (NUMBER * len(astuple(query)))(*astuple(query))
        scratch = torch.empty(ROWS * width * torch.get_num_threads(), dtype=torch.float64)
        targets = (labels.data_ptr(), None) if classes else (None, labels.data_ptr())
        rows_and_sizes = (lengths.data_ptr(), present.data_ptr(), rows, width)
        pointers = (out.data_ptr(), norms.data_ptr(), ctypes.byref(outputs_of), *targets)
        if self._clip(self.path, team(), *pointers, *rows_and_sizes, numbers, scratch.data_ptr()):
            raise IndexError("a label is none of the classes")
        return True


def _here(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and tensor.device.type == "cpu"


LINEAR = LinearSteps.installed()
