"""What `scrimp serve` costs while nothing happens: its start, and the processor time and memory of each process."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests import servers

ROOT = Path(__file__).resolve().parents[1]
SETTLE_S = 15.0  # the pricing process loads its libraries meanwhile
# A process's name in the report, by a part of its command line.
NAMES = {
    "scrimp_server.api": "API",
    "app.lifecycle.relay": "relay",
    "worker.celery_app": "worker",
    "worker.attempt.fork_server": "fork server",
    "pricing_server": "pricing",
    "serve": "supervisor",
}


@dataclass(frozen=True)
class Idle:
    """One process: percent of a core, MiB, and how often it woke up a second."""

    name: str
    cpu_percent: float
    pss_mib: float
    wakeups: float


@contextmanager
def served(home: Path) -> Iterator[tuple[psutil.Process, float]]:
    """A service on a free port, and the seconds until it said that it is ready."""
    line = [sys.executable, "-m", "scrimp.cli", "serve", "--home", str(home), "--port", str(servers.free_port())]
    began = time.monotonic()
    process = subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert process.stdout is not None
    try:
        for said in process.stdout:
            if said.startswith("ready"):
                break
        else:
            raise RuntimeError("scrimp serve ended before it was ready")
        yield psutil.Process(process.pid), time.monotonic() - began
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def start_s(home: Path, times: int = 3) -> float:
    """The median time of a start in a home that exists."""
    with served(home):
        pass
    found = []
    for _ in range(times):
        with served(home) as (_, seconds):
            found.append(seconds)
    return statistics.median(found)


def idle(home: Path, seconds: float) -> list[Idle]:
    """Each process of an idle service, once it has settled."""
    with served(home) as (root, _):
        time.sleep(SETTLE_S)
        processes = [root, *root.children(recursive=True)]
        before = [(sum(each.cpu_times()[:2]), each.num_ctx_switches().voluntary) for each in processes]
        time.sleep(seconds)
        return [
            Idle(
                process_name(each),
                100 * (sum(each.cpu_times()[:2]) - cpu) / seconds,
                each.memory_full_info().pss / 2**20,
                (each.num_ctx_switches().voluntary - switches) / seconds,
            )
            for each, (cpu, switches) in zip(processes, before, strict=True)
        ]


def process_name(process: psutil.Process) -> str:
    """What the report calls it."""
    line = " ".join(process.cmdline())
    return next((name for part, name in NAMES.items() if part in line), line[-40:])
