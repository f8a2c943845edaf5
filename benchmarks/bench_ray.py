"""Measures what a rank costs a step: among processes of one machine, and on two and three of Ray's nodes. Writes
reports/ray.md.

    python -m benchmarks.bench_ray        # pip install 'scrimp[ray]'

The step is the MLP's of bench_ranks.py. On Ray each rank is a process beside an actor that carries its bytes over TLS
to the next one (worker.cluster.links), as in an attempt, but for the sandbox. The nodes are three raylets on this
machine, so bytes go over its loopback. Processor time alone is measured: of the rank, and of the threads that carry.
The hash of the parameters after the last step is compared with that of one process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from app.sandbox.processes import ATTEMPT_ENVIRONMENT
from benchmarks import bench_ranks
from benchmarks.bench_ranks import CASES, ROUNDS, STEPS, WARM, one_rank, processor_name
from scripts.ray_machines import HERE, Machines
from worker.attempt.ring import RingRanks
from worker.cluster.links import RING, Address, Bridge, Port

REPORT = bench_ranks.ROOT / "benchmarks" / "reports" / "ray.md"
CASE, PARAMETERS = "mlp", 785 * 512 + 513 * 256 + 257 * 10  # the one that exchanges most for its work
SIZES = (2, 3)
PATIENCE_S = 600.0
TEXT = """# What a rank costs a step, on one machine and on several

Made by `python -m benchmarks.bench_ray`.

Machine: {machine}; load average {load:.1f} at the start: no time by the clock was measured.

Processor milliseconds a step and rank: medians over {rounds} rounds in which the layouts take turns, of {steps} steps
each. *Rank*: its passes, the sum with the others, the whole noise, the update. *Carrying*: the actor's two threads that
bring its bytes to the next rank and from the one before, encrypted, with the connection's beginning. Ray's own
processes do nothing while an attempt runs. All nodes are raylets on this machine: bytes went over its loopback.

{table}

*Sent* is what a rank sends for one sum: 2 (W − 1) / W of eight bytes for each parameter, whatever the number of
records. So steps of many passes lose least. Processes of one machine hand it over in memory.
"""


class Counted(Bridge):
    """Counts the processor seconds of its threads."""

    used_s = 0.0

    def _tell(self, port: Port, after: Address) -> None:
        began = time.thread_time()
        super()._tell(port, after)
        self.used_s += time.thread_time() - began

    def _hear(self, previous: Any) -> None:
        began = time.thread_time()
        super()._hear(previous)
        self.used_s += time.thread_time() - began


class Place:
    """One rank's place on a node; compare worker.cluster.node."""

    def offer(self) -> Address:
        """Where this rank is reached."""
        self._port = Port(HERE)
        return self._port.address

    def run(self, rank: int, ring: Sequence[Address]) -> dict[str, Any]:
        """Runs the rank's process to its end. Returns what it says, with the seconds of carrying a step."""
        bridge = Counted(self._port, ring[(rank + 1) % len(ring)])
        bridge.hear(self._port.accept({RING: ring[rank - 1]})[RING])
        self._port.close()
        inner = bridge.inner.fileno()
        own = ["--rank", str(rank), "--size", str(len(ring)), "--ring", str(inner)]
        with bridge.inner:
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.bench_ray", *own],
                stdout=subprocess.PIPE,
                pass_fds=[inner],
                env=os.environ | ATTEMPT_ENVIRONMENT,
            )
        said: dict[str, Any] = json.loads(process.communicate(timeout=PATIENCE_S)[0])
        bridge.finish(PATIENCE_S)
        for thread in bridge._threads:
            thread.join(PATIENCE_S)
        return said | {"carrying": bridge.used_s / (WARM + STEPS)}


def on_ray(size: int) -> tuple[float, float, str]:
    """One round on so many nodes: milliseconds a step and rank, of the rank and of carrying, and the hash."""
    import ray

    place = ray.remote(num_cpus=1)(Place)
    places = [place.options(scheduling_strategy="SPREAD").remote() for _ in range(size)]
    ring = ray.get([each.offer.remote() for each in places], timeout=PATIENCE_S)
    runs = [each.run.remote(rank, ring) for rank, each in enumerate(places)]
    said = ray.get(runs, timeout=PATIENCE_S)
    for each in places:
        ray.kill(each)
    (digest,) = {each["digest"] for each in said}
    rank, carrying = (1e3 * statistics.mean(each[what] for each in said) for what in ("processor", "carrying"))
    return rank, carrying, digest


def here(size: int) -> tuple[float, float, str]:
    """One round of processes that share memory."""
    _clock, processor, digest = bench_ranks.run(CASE, size, 1)
    return processor / size, 0.0, digest


def main() -> None:
    """Measures all layouts and writes the report."""
    load = os.getloadavg()[0]
    rows = []
    with tempfile.TemporaryDirectory() as folder, closing(Machines(3, Path(folder), {})) as machines:
        os.environ.update(machines.environment)
        import ray  # reads its environment as it is loaded

        ray.init(address=machines.address, log_to_driver=False)
        name = CASES[CASE][0]
        layouts = [(here, 1, "one process")]
        layouts += [(here, size, f"{size} processes of one machine") for size in SIZES]
        layouts += [(on_ray, size, f"{size} of Ray's nodes") for size in SIZES]
        rounds: dict[str, list[tuple[float, float, str]]] = {}
        for _ in range(ROUNDS):
            for measure, size, layout in layouts:
                rounds.setdefault(layout, []).append(measure(size))
        alone = rounds["one process"][0][2]
        for _measure, size, layout in layouts:
            rank = statistics.median(each[0] for each in rounds[layout])
            carrying = statistics.median(each[1] for each in rounds[layout])
            same = "yes" if {each[2] for each in rounds[layout]} == {alone} else "no"
            sent = 2 * (size - 1) / size * 8 * PARAMETERS / 1e6
            rows.append(f"| {name} | {layout} | {rank:.1f} | {carrying:.1f} | {sent:.2f} | {same} |")
        ray.shutdown()
    heading = "| step | ranks | rank, ms | carrying, ms | sent, MB | same bits as one |"
    machine = f"{os.cpu_count()} × {processor_name()}, Python {platform.python_version()}, torch {torch.__version__}"
    machine += f", Ray {ray.__version__}"
    table = "\n".join([heading, "|---" * 6 + "|", *rows])
    REPORT.write_text(TEXT.format(machine=machine, load=load, rounds=ROUNDS, steps=STEPS, table=table))
    sys.stdout.write(REPORT.read_text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for option, kind in (("rank", int), ("size", int), ("ring", int)):
        parser.add_argument(f"--{option}", type=kind)
    asked = parser.parse_args()
    if asked.rank is None:
        main()
    else:
        ranks = RingRanks(asked.rank, asked.size, socket.socket(fileno=asked.ring))
        os.write(1, json.dumps(one_rank(CASE, ranks, 1)).encode() + b"\n")
        ranks.close()
