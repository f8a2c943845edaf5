"""The compiled noise step. Without it, worker.noise computes the same bits."""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from core.errors import PrivacyError
from core.native.library import INSTALLED, Library
from worker.native.threads import team


class Native:
    """The compiled noise step of one library. Threads may share it; calls release the interpreter's lock."""

    def __init__(self, library: Library) -> None:
        self._path, self._release = library.number, library.opened.scrimp_release
        pointer, number = ctypes.c_void_p, ctypes.c_double
        self._release.argtypes = [ctypes.c_int, *[pointer] * 4, ctypes.c_int64, *[number] * 3, pointer]
        self._release.restype = ctypes.c_int64

    def release(
        self, words: Tensor, sums: Tensor, out: Tensor, std: float, grid: float, divisor: float
    ) -> NDArray[np.int64]:
        """Writes R / divisor into `out` (worker.noise.rounding), except where only exact arithmetic can decide.

        Args:
            words: the words of the numbers' positions, int64 (n,).
            sums: S, float64 (n,).
            out: float64 (n,); may be `sums`, or the memory of `words`.
            std, grid: s and g, a power of two.

        Returns:
            the undecided positions, ascending. `out` has S there.

        Raises:
            PrivacyError: the tensors are not contiguous, of one length and on the CPU.
        """
        for array in (words, sums, out):
            if (
                array.shape != (len(words),)
                or not array.is_contiguous()
                or array.element_size() != 8
                or not array.is_cpu
            ):
                raise PrivacyError("the noise step needs flat, contiguous 64-bit tensors of one length on the CPU")
        undecided = np.empty(len(words), dtype=np.int64)
        left = self._release(
            self._path,
            team(),
            words.data_ptr(),
            sums.data_ptr(),
            out.data_ptr(),
            len(words),
            std,
            grid,
            divisor,
            undecided.ctypes.data,
        )
        if left < 0:
            raise PrivacyError("the noise library lacks this path")
        return undecided[:left]


NATIVE = None if INSTALLED is None else Native(INSTALLED)
