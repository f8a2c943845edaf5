"""The compiled parts of a step for tests: the installed library, or one that is built for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from core.native import build, library
from core.native.library import Library

SURVEY = Path(__file__).with_name("native_survey.c")


def built(folder: Path, *options: str, sources: Sequence[Path] = build.SOURCES) -> Path:
    """Compiles into a folder. Skips the test where there is no compiler."""
    made = folder / build.LIBRARY.name
    if build.build(made, sources, *options) is None:
        pytest.skip("there is no C compiler")
    return made


def opened(folder: Path, path: str) -> Library:
    """The library with the given path. Skips the test where the CPU lacks the path."""
    return library.load(build.LIBRARY, path) or of_path(built(folder), path)


def of_path(made: Path, path: str) -> Library:
    """A built library with the given path. Skips the test where the CPU lacks the path."""
    found = library.load(made, path)
    if found is None:
        pytest.skip(f"this CPU lacks {path}")
    return found
