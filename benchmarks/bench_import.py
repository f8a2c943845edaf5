"""Measures the import time of the API in a fresh interpreter: the median of several, in seconds."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

MODULES = ("app.main", "scrimp", "scrimp.cli")
TIMES = 7


def seconds(statement: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return time.perf_counter() - began


def main() -> None:
    bare = statistics.median(seconds("pass") for _ in range(TIMES))
    print(f"{'interpreter alone':20} {bare:.3f} s")
    for module in MODULES:
        taken = sorted(seconds(f"import {module}") for _ in range(TIMES))
        print(
            f"import {module:13} {statistics.median(taken):.3f} s (from {taken[0]:.3f} to {taken[-1]:.3f}, n = {TIMES})"
        )


if __name__ == "__main__":
    main()
