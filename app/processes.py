"""The environment of the service's child processes: only what a program needs to run."""

from __future__ import annotations

import os

KEPT = ("PATH", "PYTHONPATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH")

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
