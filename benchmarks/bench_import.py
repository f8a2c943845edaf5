"""Measures the import time of the API in a fresh interpreter: the median of several, in seconds and in processor time,
which says more on a machine that others use too. The bytecode is there, as in an installation and in the images."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

STATEMENTS = {
    "interpreter alone": "pass",
    "import app.main": "import app.main",
    # What scrimp_server.api does: without the garbage collector.
    "app.main, as the API loads it": "from app.sandbox.processes import loading\nwith loading(): import app.main",
    "import scrimp": "import scrimp",
    "import scrimp.cli": "import scrimp.cli",
}
TIMES = 7


def seconds(statement: str, bytecode: str) -> tuple[float, float]:
    """How long a statement takes, and its processor time."""
    environment = os.environ | {"PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", statement], check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began, used


def main() -> None:
    with tempfile.TemporaryDirectory() as bytecode:
        for name, statement in STATEMENTS.items():
            seconds(statement, bytecode)  # compiles
            walls, used = zip(*sorted(seconds(statement, bytecode) for _ in range(TIMES)), strict=True)
            spread = f"from {walls[0]:.3f} to {walls[-1]:.3f}, n = {TIMES}"
            cpu = f"{statistics.median(used):.3f} s of processor time, {min(used):.3f} at least"
            print(f"{name:30} {statistics.median(walls):.3f} s ({spread}), {cpu}")


if __name__ == "__main__":
    main()
