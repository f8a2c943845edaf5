"""Measures the wall time of a study of 7 trials (3 + 3 pilots, then the final trial), on one and on three workers.

It compares this with one trial's time. The services are real processes over SQLite and a folder of messages, as in
`scrimp serve`, except for the number of workers. All trials have the same steps, so they take equally long. Writes
reports/study.md.

    python benchmarks/bench_study.py [--rows 20000] [--steps 300]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.reproduce.runs import machine  # noqa: E402
from tests.e2e.cluster import Cluster  # noqa: E402
from tests.e2e.conftest import csv_spec, until, write_csv  # noqa: E402

REPORT = ROOT / "benchmarks" / "reports" / "study.md"
FEATURES = 50

HEAD = """\
# A study on several workers

Made by `python benchmarks/bench_study.py`: a linear layer on {rows:,} records with {features} features, {steps}
full-batch steps a trial. A study is 6 pilots, which do not wait for each other, then the final run. Times are from
admission to the end by the service's own clocks; the quicker one of {rounds}. In the paper (Table 11) 7 trials take
the time of 3: it runs a level's pilots side by side, one level after the other. Here both levels' pilots run at once,
so six workers would take the time of 2.

Machine: {machine}; load average at the start {load}. Every worker trains with one thread.

| | wall time, s | of one run | with a free core for each worker |
|---|---|---|---|
"""
TAIL = """

The machine has {cores} cores, shared by everything that ran on it. With that load the figures show that workers share a
study, and little about the speed-up.

**For a practitioner.** A study costs the processor time of its trials. It waits twice: for all pilots, then for the
final run. Workers beyond the number of pilots or of cores do not shorten it. One worker alone finishes it too.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    load = Path("/proc/loadavg").read_text().split()[0]
    times: dict[str, float] = {}
    for workers in (1, 3):
        with tempfile.TemporaryDirectory() as folder:
            times |= measured(Path(folder), workers, given.rows, given.steps, given.rounds)
    one = times["one run"]
    ideal = {"one run": "1", "a study, one worker": "7", "a study, three workers": "3, on three free cores"}
    rows = [f"| {name} | {taken:.2f} | {taken / one:.2f} | {ideal[name]} |" for name, taken in times.items()]
    facts = {"rows": given.rows, "steps": given.steps, "rounds": given.rounds, "features": FEATURES}
    head = HEAD.format(**facts, machine=machine(), load=load)
    REPORT.write_text(head + "\n".join(rows) + TAIL.format(cores=os.cpu_count()))
    print("\n".join(rows))


def measured(folder: Path, workers: int, rows: int, steps: int, rounds: int) -> dict[str, float]:
    """Measures seconds of a study with this many workers; with one worker also of a single trial."""
    cluster = Cluster(folder / "home", {}).start(apis=1, relays=1, workers=workers)
    try:
        name = registered(cluster, folder, rows)
        ended(cluster, job(name, steps))  # the first run of a worker loads its libraries
        found = {}
        if workers == 1:
            found["one run"] = min(ended(cluster, job(name, steps)) for _ in range(rounds))
        study = job(name, steps) | {"hpo": {"levels": [0.1, 0.2], "space": {"learning_rate": [0.1, 10.0]}}}
        number = {1: "one worker", 3: "three workers"}[workers]
        found[f"a study, {number}"] = min(ended(cluster, study) for _ in range(rounds))
        return found
    finally:
        cluster.stop()


def registered(cluster: Cluster, folder: Path, rows: int) -> str:
    spec = csv_spec("bench", records=rows, cap={"epsilon": 50.0, "delta": 1e-5})
    spec["features"]["columns"] = [f"x{i}" for i in range(FEATURES)]
    with cluster.client() as client:
        return client.create_dataset(spec, write_csv(folder / "bench.csv", rows, FEATURES)).id


def job(dataset: str, steps: int) -> dict[str, Any]:
    return {
        "dataset": dataset,
        "optimizer": {"kind": "dp_sgd", "learning_rate": 1.0, "momentum": 0.9, "free_step": True},
        "privacy": {"target_epsilon": 1.0},
        "length": {"steps": steps},
    }


def ended(cluster: Cluster, spec: dict[str, Any]) -> float:
    """Waits for the end; returns the seconds since admission."""
    with cluster.client() as client:
        job_id = client.submit(spec).id

    def look() -> dict[str, Any] | None:
        found: dict[str, Any] = cluster.get(f"/v1/jobs/{job_id}")
        return found if found["status"] in ("succeeded", "failed", "cancelled") else None

    found = until(look, 600.0)
    if found is None or found["status"] != "succeeded":
        raise RuntimeError(f"the job did not succeed: {found}")
    began, over = (datetime.fromisoformat(found[name]) for name in ("created_at", "finished_at"))
    return (over - began).total_seconds()


if __name__ == "__main__":
    main()
