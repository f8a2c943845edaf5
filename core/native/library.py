"""Opens libscrimp.so, if it is there and was built from these C files. Without it, Python computes the same bits.

Loaded at import: an attempt's process can open no files once it sees data.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

from core.native.build import LIBRARY, digest

PATHS = ("plain", "avx2", "avx512")


@dataclass(frozen=True)
class Library:
    """The compiled parts. Threads may share it; calls release the interpreter's lock.

    Attributes:
        opened: the library.
        path: the instructions that it uses: "plain", "avx2" or "avx512".
    """

    opened: ctypes.CDLL
    path: str

    @property
    def number(self) -> int:
        """The path as the library counts it."""
        return PATHS.index(self.path)


def load(library: Path = LIBRARY, path: str | None = None) -> Library | None:
    """Opens a library.

    Args:
        path: the instructions to use; None: the best of this CPU.

    Returns:
        None if there is no library for this machine, if it was built from other C files, or if the CPU lacks the path.
    """
    try:
        opened = ctypes.CDLL(str(library))
        opened.scrimp_digest.restype = ctypes.c_char_p
        built_from, best = opened.scrimp_digest().decode(), int(opened.scrimp_path())
        if built_from != digest():
            return None
    except (OSError, AttributeError):
        return None
    best_path = PATHS[best] if path is None else path
    return Library(opened, best_path) if PATHS.index(best_path) <= best else None


INSTALLED = load()
