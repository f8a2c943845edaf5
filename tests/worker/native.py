"""The compiled noise step for tests: the installed library, or one that is built for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.noise import build, native
from worker.noise.native import Native

SURVEY = Path(__file__).with_name("native_survey.c")


def built(folder: Path, *options: str, source: Path = build.SOURCE) -> Path:
    """Compiles into a folder. Skips the test where there is no compiler."""
    library = folder / "libnoise.so"
    if build.build(library, source, *options) is None:
        pytest.skip("there is no C compiler")
    return library


def opened(folder: Path, path: str, *options: str) -> Native:
    """A library with the given path. Skips the test where the CPU lacks the path."""
    library = native.load(build.LIBRARY, path) if not options else None
    library = library or native.load(built(folder, *options), path)
    if library is None:
        pytest.skip(f"this CPU lacks {path}")
    return library
