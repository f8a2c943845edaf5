"""The compiled parts of a step for tests: the installed library, or one that is built for them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import pytest

from core.native import build, library
from core.native.library import Library
from tests.worker.kept import kept

SURVEY = Path(__file__).with_name("native_survey.c")
KERNELS = Path(__file__).with_name("kernels_on_processor.c")


def built(*options: str, sources: Sequence[Path] = build.SOURCES) -> Path:
    """The compiled library. Skips the test where there is no compiler."""
    command = [*(word for each in build.compilers() for word in each.command), *build.FLAGS, *options]
    read = (*sources, *build.SOURCES, *build.FOLDER.glob("*.h"))  # some include others

    def compile_to(path: Path) -> bool:
        return build.build(path, sources, *options) is not None

    made = kept(build.LIBRARY.name, [*command, *(each.name for each in sources)], read, compile_to) if command else None
    if made is None:
        pytest.skip("there is no C compiler")
    return made


def gpu_kernels(*options: str, source: Path = KERNELS) -> ctypes.CDLL:
    """The GPU's kernels, compiled for this processor."""
    library = ctypes.CDLL(str(built(*options, f"-I{build.FOLDER}", sources=[source])))
    library.run.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int]
    library.run.restype = None
    library.scrimp_noise_tables()
    return library


def opened(path: str) -> Library:
    """The library with the given path. Skips the test where the CPU lacks the path."""
    return library.load(build.LIBRARY, path) or of_path(built(), path)


def of_path(made: Path, path: str) -> Library:
    """A built library with the given path. Skips the test where the CPU lacks the path."""
    found = library.load(made, path)
    if found is None:
        pytest.skip(f"this CPU lacks {path}")
    return found
