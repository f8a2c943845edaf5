"""What a tiny job costs: processor time of each process of the real service, a job, and what it costs idle.

    python -m benchmarks.bench_tiny [--jobs 200] [--mlps 50] [--idle 60]

Ten full-batch steps of a linear model on 2,000 records, then an MLP of one kind. All are queued before the first count.
Processor time includes that of children that have ended, so the attempts' is in the fork server's and in the worker's.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.serve_idle import SETTLE_S, process_name
from scrimp.client import Client
from tests.e2e.conftest import Service, job_of
from tests.e2e.test_spine import finished, register
from tests.processes import until

LINEAR: dict[str, Any] = {"length": {"steps": 10}, "privacy": {"target_epsilon": 0.05}, "evaluation": None}
MLP = LINEAR | {"model": {"kind": "mlp", "hidden": [32]}}
LIMITS = {"SCRIMP_REQUESTS_PER_MINUTE": "1000000", "SCRIMP_MAX_QUEUED_JOBS": "1000"}
CAP: dict[str, Any] = {"cap": {"epsilon": 100.0, "delta": 1e-5}}


def used(service: Service) -> Counter[str]:
    """Seconds of processor time by process, attempts apart from the fork server that has reaped them."""
    seconds: Counter[str] = Counter()
    for process in service.descendants():
        times = process.cpu_times()
        name = process_name(process)
        seconds[name] += times.user + times.system
        seconds["attempts" if name == "fork server" else name] += times.children_user + times.children_system
    return seconds


def many(client: Client, service: Service, spec: dict[str, Any], jobs: int) -> Counter[str]:
    """Seconds a job, of jobs that wait in turn, after one that the worker has not seen before."""
    finished(service, client.submit(spec | {"name": "first"}).id)
    time.sleep(5.0)  # its certificate
    before = used(service)
    last = [client.submit(spec | {"name": f"job {number}"}).id for number in range(jobs)][-1]
    until(lambda: service.get(f"/v1/jobs/{last}")["status"] == "succeeded", 3600.0, every_s=5.0)
    time.sleep(5.0)  # certificates
    after = used(service)
    return Counter({name: (after[name] - before[name]) / jobs for name in after})


def main() -> None:
    """Prints a table: a row a process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--mlps", type=int, default=50)
    parser.add_argument("--idle", type=float, default=60.0)
    counts = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder) / "home", LIMITS).start()
        try:
            with service.client() as client:
                dataset = register(service, "tiny", Path(folder), **CAP)
                time.sleep(SETTLE_S)
                before = used(service)
                time.sleep(counts.idle)
                idle = Counter({name: (s - before[name]) / counts.idle for name, s in used(service).items()})
                linear = many(client, service, job_of(dataset, **LINEAR), counts.jobs)
                mlp = many(client, service, job_of(dataset, **MLP), counts.mlps)
        finally:
            service.stop()
    print("| process | linear, s a job | MLP, s a job | idle, % of a core |\n|---|---|---|---|")
    for name in sorted(linear | mlp | idle):
        print(f"| {name} | {linear[name]:.3f} | {mlp[name]:.3f} | {100 * idle[name]:.2f} |")
    print(f"| all | {linear.total():.3f} | {mlp.total():.3f} | {100 * idle.total():.2f} |")


if __name__ == "__main__":
    main()
