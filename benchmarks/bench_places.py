"""Measures what places for records cost, and what they hide. Writes reports/places.md.

    python benchmarks/bench_places.py

Four tables: the slack of a sum by the number of declared records; the rows of a Poisson step over its expected batch;
how long a job takes on few and on many true records of one declaration; and a job on 500 million declared records,
submitted to a service with two processes. `before` is of the release before places, by its own formulas.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks.environment import as_in_an_attempt  # noqa: E402

if __name__ == "__main__":
    as_in_an_attempt()

import numpy as np  # noqa: E402
import scipy.sparse  # noqa: E402
import torch  # noqa: E402

from app.admission.facts import DatasetFacts  # noqa: E402
from benchmarks.shipped import Job, job_of  # noqa: E402
from core.contracts.dataset_spec import Tensor as TensorFeatures  # noqa: E402
from core.contracts.job_spec import JobSpec  # noqa: E402
from core.contracts.slots import PartSlots  # noqa: E402
from core.privacy.numerics import Numerics, PublicSizes, most_rows, numerics_of  # noqa: E402
from core.privacy.slot_numbers import default_slots  # noqa: E402
from scrimp_server.inline import Data, slots_for  # noqa: E402
from worker.data.records import DenseRecords, SparseRecords  # noqa: E402
from worker.messages import Shape  # noqa: E402

REPORT = ROOT / "benchmarks" / "reports" / "places.md"
MLP = {"kind": "mlp", "hidden": [512, 256]}
FEATURES, CLASSES = 784, 10
NUMBERS = 784 * 512 + 512 + 512 * 256 + 256 + 256 * 10 + 10
DECLARED = (10_000, 10**6, 10**8, 5 * 10**8)
BATCHES = (64, 256, 1024, 4096, 16_384)
RECORDS = 5 * 10**6  # declared, of which batches are drawn
FEW, MANY = 1000, 9000  # true records of one declaration
STEPS = 30
# Printed by `numerics_of` of the release before (commit f467e93) for the same jobs: slack − 1 by declared records, and
# computed rows over L by L.
REFUSED = "several processes refused"
BEFORE_SLACK = {10_000: "0.0023", 10**6: "0.0023", 10**8: f"0.011, {REFUSED}", 5 * 10**8: f"0.21, {REFUSED}"}
BEFORE_ROWS = {64: 1.5, 256: 1.151, 1024: 1.085, 4096: 1.037, 16_384: 1.021}
TEXT = """# Places for records: what they cost, and what they hide

Made by `python benchmarks/bench_places.py`.

Machine: {machine}; load average at the start {load:.2f}.

## Slack by the number of declared records

An MLP 784-512-256-10 ({numbers:,} numbers), Poisson sampling with L = 4,096. Noise is larger by slack − 1. Before,
float64 totals replaced the grid where it was too coarse, and several processes were refused then.

| declared | slots | rows of a step | slack − 1 | before |
|---|---|---|---|---|
{slack}

## Rows of a Poisson step

Of {records:,} declared records, the same MLP. R rows hold every draw but with probability 2⁻⁶⁰; passes of P rows are
padded. Before, a step had as many passes as its draw asked for, each padded.

| L | R | computed rows / L | before | |
|---|---|---|---|---|
{rows}

## Durations of one declaration

{declared:,} declared records, {few:,} and {many:,} true ones, {steps} steps, medians of {rounds} rounds in turns;
ratios many / few within rounds. What still differs is content: sparse rows have entries or none, and records are
gathered.

| job | few: clock, processor s | many: clock, processor s | ratio by the clock | by processor time |
|---|---|---|---|---|
{durations}

## 500 million declared records

{service}
"""


@dataclass(frozen=True)
class Declared(Data):
    """Data of which another number of records is declared than there is."""

    declared: int = MANY

    def shape(self) -> Shape:
        return super().shape().model_copy(update={"records_train": self.declared, "slots": slots_for(self.declared)})

    def facts(self, id_: str = "ds_0", records: Any = None) -> DatasetFacts:
        known = super().facts(id_, records)
        return replace(known, records_train=self.declared, stated_slots=slots_for(self.declared))


def sizes(records: int) -> PublicSizes:
    places = default_slots(records)
    return PublicSizes(records, 1, FEATURES, CLASSES, False, PartSlots(units=places, rows=places))


def poisson(batch: int) -> JobSpec:
    return JobSpec.model_validate(
        {
            "dataset": "ds_1",
            "model": MLP,
            "optimizer": {"kind": "dp_sgd", "learning_rate": 0.1},
            "privacy": {"target_epsilon": 1.0},
            "sampling": {"kind": "poisson", "expected_batch_size": batch},
            "length": {"steps": 100},
        }
    )


def numerics(records: int, batch: int) -> Numerics:
    spec, known = poisson(batch), sizes(records)
    made = numerics_of(spec, known, TensorFeatures(kind="tensor", array="x"))
    return made.of_numbers(NUMBERS, most_rows(spec, known), 1)


def slack_rows() -> str:
    lines = []
    for records in DECLARED:
        made = numerics(records, 4096)
        rows, more = f"{default_slots(records):,} | {made.rows_per_step:,}", made.sensitivity_slack - 1
        lines.append(f"| {records:,} | {rows} | {more:.2g} | {BEFORE_SLACK[records]} |")
    return "\n".join(lines)


def row_rows() -> str:
    lines = []
    for batch in BATCHES:
        made = numerics(RECORDS, batch)
        rows, size = made.rows_per_step or 0, made.rows_per_pass
        passes = math.ceil(rows / size)
        before = BEFORE_ROWS[batch]
        lines.append(
            f"| {batch:,} | {rows:,} | {passes * size / batch:.2f} | {before:.2f} | {passes} passes of {size} |"
        )
    return "\n".join(lines)


def data(records: int, kind: str) -> Declared:
    generator = np.random.default_rng(0)
    labels = torch.from_numpy(generator.integers(0, CLASSES, records))
    features: dict[str, Any] = {"kind": "tensor", "array": "x"}
    if kind == "sparse":
        matrix = scipy.sparse.random(records, 32_768, 0.004, "csr", dtype=np.float32, rng=generator)
        held: Any = SparseRecords(matrix, labels)
        features = {"kind": "hashed_text", "column": "x", "buckets": 32_768, "binary": False}
    else:
        held = DenseRecords(torch.from_numpy(generator.normal(size=(records, FEATURES)).astype(np.float32)), labels)
    task = {"kind": "classification", "label": "y", "classes": list(range(CLASSES))}
    width = 32_768 if kind == "sparse" else FEATURES
    return Declared(task, features, held, held.select(np.arange(10)), width, CLASSES, sparse=kind == "sparse")


JOBS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "MLP, Poisson, L = 512": ("dense", MLP, {}),
    "MLP, full batch": ("dense", MLP, {"sampling": {"kind": "full_batch"}}),
    "sparse linear, full batch": ("sparse", {"kind": "linear"}, {"sampling": {"kind": "full_batch"}}),
    "sparse linear, Poisson, L = 512": ("sparse", {"kind": "linear"}, {}),
}


def timed(job: Job, steps: int) -> tuple[float, float]:
    clock, processor = time.perf_counter(), time.process_time()
    for _ in range(steps):
        job()
    return time.perf_counter() - clock, time.process_time() - processor


def duration_rows(rounds: int) -> str:
    lines = []
    for name, (kind, model, changes) in JOBS.items():
        jobs = [job_of(data(count, kind), model, 512, **changes) for count in (FEW, MANY)]
        for job in jobs:
            timed(job, 3)
        found = [[timed(job, STEPS) for job in jobs] for _ in range(rounds)]
        few, many = ([statistics.median(each[at][part] for each in found) for part in (0, 1)] for at in (0, 1))
        clock, processor = (statistics.median(each[1][part] / each[0][part] for each in found) for part in (0, 1))
        lines.append(
            f"| {name} | {few[0]:.2f}, {few[1]:.2f} | {many[0]:.2f}, {many[1]:.2f} | {clock:.3f} | {processor:.3f} |"
        )
    return "\n".join(lines)


def through_the_service(home: Path) -> str:
    """A job on a small data set that declares 500 million records, with two processes, by REST."""
    import scrimp

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"SCRIMP_HOME": str(home), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "scrimp.cli", "serve", "--port", str(port)]
    service = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        client = _client(scrimp, home, port)
        generator = np.random.default_rng(0)
        path = home / "small.npz"
        x, y = generator.normal(size=(1000, FEATURES)).astype(np.float32), generator.integers(0, CLASSES, 1000)
        np.savez(path, x=x, y=y.astype(np.int64))
        declared = {
            "name": "small",
            "format": "npz",
            "task": {"kind": "classification", "label": "y", "classes": list(range(CLASSES))},
            "features": {"kind": "tensor", "array": "x"},
            "privacy": {
                "sensitivity": "private",
                "records": 5 * 10**8,
                "cap": {"epsilon": 80.0, "delta": 1e-9},
                "filter": "rdp",
            },
        }
        client.create_dataset(declared, path)
        asked = json.loads(poisson(4096).model_dump_json(exclude_unset=True))
        asked |= {"dataset": "small", "runtime": {"processes": 2}, "length": {"steps": 20}}
        began = time.perf_counter()
        job = client.jobs.submit(asked)
        job.wait()
        taken = time.perf_counter() - began
        job.certificate()
        status = client.json("GET", f"/v1/jobs/{job.id}")["status"]
        said = job.certificate().model_dump()["certificate"]["numerics"]
        return (
            f"1,000 true records, `processes: 2`, 20 steps: `{status}` after {taken:.0f} s, slack "
            f"{said['sensitivity_slack']:.7f} on the certificate, {said['rows_per_step']:,} rows a step in passes of "
            f"{said['rows_per_pass']}, totals {said['totals']}."
        )
    finally:
        service.terminate()
        service.wait(30)


def _client(scrimp: Any, home: Path, port: int) -> Any:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        key = home / "admin.key"
        if key.exists():
            client = scrimp.Client(f"http://127.0.0.1:{port}", key.read_text().strip())
            try:
                list(client.signing_keys())
                return client
            except scrimp.errors.ScrimpError:
                pass
        time.sleep(0.3)
    raise TimeoutError("the service did not start")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    load, threads = os.getloadavg()[0], torch.get_num_threads()
    machine = f"{os.cpu_count()} × {platform.processor() or platform.machine()}, {threads} torch threads, "
    machine += f"Python {platform.python_version()}, torch {torch.__version__}"
    with tempfile.TemporaryDirectory() as folder:
        text = TEXT.format(
            machine=machine,
            load=load,
            numbers=NUMBERS,
            records=RECORDS,
            slack=slack_rows(),
            rows=row_rows(),
            declared=MANY,
            few=FEW,
            many=MANY,
            steps=STEPS,
            rounds=asked.rounds,
            durations=duration_rows(asked.rounds),
            service=through_the_service(Path(folder)),
        )
    REPORT.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
