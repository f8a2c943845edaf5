"""Processes that burn processor time at the lowest priority: what a busy machine does to a test's timing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# It ends with its parent, whatever ends that one.
BURN = """
import os, sys
os.nice(19)
while os.getppid() == int(sys.argv[1]):
    sum(range(100_000))
"""


@contextmanager
def burning(count: int) -> Iterator[list[int]]:
    """So many of them, by their pids, until the end of the block."""
    command = [sys.executable, "-S", "-c", BURN, str(os.getpid())]
    processes = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield [each.pid for each in processes]
    finally:
        for each in processes:
            each.kill()
            each.wait()
