"""The environment of an attempt, for benchmarks of what attempts do."""

from __future__ import annotations

import os
import sys

from app.processes import ATTEMPT_ENVIRONMENT


def as_in_an_attempt() -> None:
    """Begins this program again in it: the allocator and OpenMP read it when they are loaded, before torch is."""
    if not os.environ.keys() >= ATTEMPT_ENVIRONMENT.keys():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ATTEMPT_ENVIRONMENT})  # noqa: S606
