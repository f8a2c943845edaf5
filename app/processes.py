"""The environment of the processes that the service starts: what a program needs to run, no more."""

from __future__ import annotations

import os

KEPT = ("PATH", "PYTHONPATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH")

# Of a process that trains. Threads that spin while they wait make steps ten times slower on a busy machine. Memory that
# a step gives back is kept for the next one: else the first touch of fresh pages takes a tenth of it.
ATTEMPT_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
}


def plain_environment(*also: str) -> dict[str, str]:
    """This process's environment without settings, addresses and secrets. `also`: further names that are kept."""
    return {name: os.environ[name] for name in (*KEPT, *also) if name in os.environ}
