"""Sets an attempt's environment, for benchmarks of attempts."""

from __future__ import annotations

import os
import sys

from app.sandbox.processes import ATTEMPT_ENVIRONMENT


def as_in_an_attempt() -> None:
    """Restarts this program in an attempt's environment: the allocator and OpenMP read it at load, before torch."""
    if not os.environ.keys() >= ATTEMPT_ENVIRONMENT.keys():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ATTEMPT_ENVIRONMENT})  # noqa: S606
