"""What a busy machine does to a test's timing: processes that burn processor time at the lowest priority, and others
that stand still for a while."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

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


STILL_S, BETWEEN_S = 1.5, 2.5
IDLE = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_ZOMBIE)


@contextmanager
def standing_still(pid: int, seed: int) -> Iterator[None]:
    """Every four seconds another half of a process and all below it stands still for 1.5 s, until the block's end: as
    where the machine gives them no processor, while those that they talk to go on."""
    draw, over = random.Random(seed), threading.Event()

    def stall() -> None:
        while not over.wait(BETWEEN_S * draw.uniform(0.6, 1.4)):
            stopped = _stopped(pid, draw)
            over.wait(STILL_S)
            for each in stopped:
                with suppress(psutil.Error):
                    each.send_signal(signal.SIGCONT)

    thread = threading.Thread(target=stall)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _stopped(pid: int, draw: random.Random) -> list[psutil.Process]:
    """Stops half of them; not those that a test has stopped."""
    stopped: list[psutil.Process] = []
    with suppress(psutil.Error):
        top = psutil.Process(pid)
        for each in [top, *top.children(recursive=True)]:
            with suppress(psutil.Error):
                if draw.random() < 0.5 and each.status() not in IDLE:
                    each.send_signal(signal.SIGSTOP)
                    stopped.append(each)
    return stopped
