"""Threads for work that has no order: which of them does a piece changes no bit.

Compiled work runs on torch's own threads, within one call (threads.h); Python's work on threads of a pool.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import torch

POINTER = ctypes.c_void_p


class _Team(ctypes.Structure):
    """Team of threads.h."""

    _fields_ = [("region", POINTER), ("threads", ctypes.c_int64)]


@cache
def of_torch(name: str) -> int | None:
    """The address of a function of torch's library, or of one that it was linked with; None if there is none.

    >>> of_torch("no_such_function") is None
    True
    """
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"))
        return ctypes.cast(library[name], POINTER).value
    except (OSError, AttributeError):
        return None


_REGION = of_torch("GOMP_parallel")  # at import: an attempt's process can open no files once it sees data


def team() -> Any:
    """The first argument of compiled work after its path: as many threads as torch uses here, if torch has OpenMP."""
    return _team(torch.get_num_threads())


@cache
def _team(threads: int) -> Any:
    return ctypes.pointer(_Team(_REGION, threads))


def on_threads(work: Callable[[int], None], pieces: Sequence[int]) -> None:
    """Does the work of each piece, in any order, on as many threads as torch uses."""
    threads = min(torch.get_num_threads(), len(pieces))
    if threads <= 1:
        for piece in pieces:
            work(piece)
        return
    earlier = torch.get_num_threads()
    for _ in pool(earlier).map(work, pieces):
        pass
    torch.set_num_threads(earlier)  # new threads start with this number, which a helper thread changed


@cache
def pool(threads: int) -> ThreadPoolExecutor:
    """Threads whose operations stay on them: MKL would spread each erf⁻¹ over cores that the gradient needs."""
    return ThreadPoolExecutor(threads, thread_name_prefix="step", initializer=torch.set_num_threads, initargs=(1,))
