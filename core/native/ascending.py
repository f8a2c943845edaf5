"""Sorts digests, and adds up the counts of equal ones: compiled, or by numpy, to the same numbers."""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from core.native.library import INSTALLED, Library

Counted = tuple[NDArray[np.uint64], NDArray[np.int64]]  # different digests (n, 2) in ascending order, their counts (n,)


class Compiled:
    """The compiled sort of one library. Threads may share it; calls release the interpreter's lock."""

    def __init__(self, library: Library) -> None:
        self._ascending, pointer = library.opened.scrimp_ascending, ctypes.c_void_p
        self._ascending.argtypes = [pointer, pointer, ctypes.c_int64, pointer, pointer]
        self._ascending.restype = ctypes.c_int64

    def ascending(self, digests: NDArray[np.uint64], counts: NDArray[np.int64] | None) -> Counted:
        """As the function below."""
        digests = np.ascontiguousarray(digests)
        counts = None if counts is None else np.ascontiguousarray(counts)
        out, sums = np.empty_like(digests), np.empty(len(digests), dtype=np.int64)
        by = None if counts is None else counts.ctypes.data
        different = self._ascending(digests.ctypes.data, by, len(digests), out.ctypes.data, sums.ctypes.data)
        if different < 0:
            raise MemoryError
        return out[:different].copy(), sums[:different].copy()  # not the room of all


COMPILED = None if INSTALLED is None else Compiled(INSTALLED)


def ascending(digests: NDArray[np.uint64], counts: NDArray[np.int64] | None) -> Counted:
    """Sorts digests (n, 2), and adds the counts (n,) of equal ones; without counts, each one is counted once.

    Raises:
        ValueError: a shape or a type differs from these.
    """
    if digests.ndim != 2 or digests.shape[1] != 2 or digests.dtype != np.uint64:
        raise ValueError("a digest has two words")
    if counts is not None and (counts.shape != (len(digests),) or counts.dtype != np.int64):
        raise ValueError("each digest has a count")
    if COMPILED is not None:
        return COMPILED.ascending(digests, counts)
    return by_numpy(digests, counts)


def by_numpy(digests: NDArray[np.uint64], counts: NDArray[np.int64] | None) -> Counted:
    """As `ascending`, with numpy alone."""
    order = np.argsort(digests[:, 0])
    digests = digests[order]
    ties = digests[1:, 0] == digests[:-1, 0]
    if np.any(ties & (digests[1:, 1] < digests[:-1, 1])):
        second = np.lexsort((digests[:, 1], digests[:, 0]))
        digests, order = digests[second], order[second]
    new = np.ones(len(digests), dtype=np.bool_)
    new[1:] = np.any(digests[1:] != digests[:-1], axis=1)
    starts = np.flatnonzero(new)
    if counts is None:
        return digests[starts], np.diff(np.append(starts, len(digests)))
    return digests[starts], np.add.reduceat(counts[order], starts) if len(starts) else counts[:0]
