"""The environment of the processes that the service starts: what a program needs to run, no more."""

from __future__ import annotations

import os

KEPT = ("PATH", "PYTHONPATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH")


def plain_environment(*also: str) -> dict[str, str]:
    """This process's environment without settings, addresses and secrets. `also`: further names that are kept."""
    return {name: os.environ[name] for name in (*KEPT, *also) if name in os.environ}
