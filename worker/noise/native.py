"""Opens libnoise.so, if it is there and was built from this native.c. Without it, worker.noise computes the same bits.

Loaded at import: an attempt's process can open no files once it sees data.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from app.errors import PrivacyError
from worker.noise.build import LIBRARY, digest

PATHS = ("plain", "avx2")


class Native:
    """The compiled noise step. Threads may share it; calls release the interpreter's lock.

    Attributes:
        path: the instructions that it uses: "plain" or "avx2".
    """

    def __init__(self, library: ctypes.CDLL, path: str) -> None:
        self.path, self._path = path, PATHS.index(path)
        self._release = library.scrimp_release
        pointer, number = ctypes.c_void_p, ctypes.c_double
        self._release.argtypes = [ctypes.c_int, *[pointer] * 3, ctypes.c_int64, *[number] * 3, pointer]
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
        for each in (words, sums, out):
            if each.shape != (len(words),) or not each.is_contiguous() or each.element_size() != 8 or not each.is_cpu:
                raise PrivacyError("the noise step needs flat, contiguous 64-bit tensors of one length on the CPU")
        undecided = np.empty(len(words), dtype=np.int64)
        left = self._release(
            self._path,
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


def load(library: Path = LIBRARY, path: str | None = None) -> Native | None:
    """Opens a library.

    Args:
        path: the instructions to use; None: the best of this CPU.

    Returns:
        None if there is no library for this machine, if it was built from another native.c, or if the CPU lacks the
        path.
    """
    try:
        opened = ctypes.CDLL(str(library))
        opened.scrimp_digest.restype = ctypes.c_char_p
        built_from, best = opened.scrimp_digest().decode(), int(opened.scrimp_path())
        if built_from != digest():
            return None
    except (OSError, AttributeError):
        return None
    chosen = PATHS[best] if path is None else path
    return Native(opened, chosen) if PATHS.index(chosen) <= best else None


NATIVE = load()
