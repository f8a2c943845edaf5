"""How the service's processes start: their environment, and the loading of their libraries."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

KEPT = ("PATH", "PYTHONPATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH")

M_ARENA_MAX, ARENAS = -8, 2  # of glibc's malloc.h

# For a process that trains. Threads that spin while they wait make steps ten times slower on a busy machine. Memory
# freed by a step is kept for the next one: otherwise touching fresh pages takes a tenth of the step.
ATTEMPT_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    # cuBLAS sums in a fixed order only with this workspace. It is read when CUDA is initialized.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}


def plain_environment(*also: str) -> dict[str, str]:
    """This process's environment without settings, addresses and secrets. `also`: further names to keep."""
    return {name: os.environ[name] for name in (*KEPT, *also) if name in os.environ}


@contextmanager
def loading() -> Iterator[None]:
    """For the imports of a process that starts: the garbage collector rests meanwhile, and ignores what was loaded.

    None of it is garbage until the process ends. Looking for some took a fifth of the API's start.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def use_few_arenas() -> None:
    """Lets all threads share two of the allocator's arenas; call it before a thread starts. Else each of many threads
    keeps what it once needed. Does nothing without glibc."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, ARENAS)


def give_memory_back() -> None:
    """Returns free memory to the system, which takes milliseconds; other threads continue. Nothing without glibc."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
