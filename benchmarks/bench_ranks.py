"""Measures one step of a job on one and on two processes, with as many threads in all. Writes reports/ranks.md.

    python benchmarks/bench_ranks.py

A step is what a rank does: its passes, the int64 sum over all ranks (shared memory), the noise, the update. Ranks are
processes of their own. Layouts take turns, round by round; the table has medians over rounds. Processor times are of
all ranks together. The last column compares a hash of the parameters after the last step with that of one process.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import numpy as np  # noqa: E402
import torch  # noqa: E402

from app.sandbox.processes import ATTEMPT_ENVIRONMENT  # noqa: E402
from core.contracts.job_spec import MlpModel  # noqa: E402
from worker.attempt.rank_processes import fork_ranks  # noqa: E402
from worker.clipping.bookkeeping import Bookkeeping  # noqa: E402
from worker.clipping.engine import GradientEngine  # noqa: E402
from worker.clipping.linear_clipping import LinearClipping  # noqa: E402
from worker.clipping.totals import Grid  # noqa: E402
from worker.data.passes import Prepared  # noqa: E402
from worker.data.ranks import Ranks  # noqa: E402
from worker.data.records import DenseRecords  # noqa: E402
from worker.data.secret_slots import Slotted  # noqa: E402
from worker.models.base import Model  # noqa: E402
from worker.models.linear import Linear  # noqa: E402
from worker.models.networks import Network  # noqa: E402
from worker.noise.gaussian import GaussianRelease  # noqa: E402

REPORT = ROOT / "benchmarks" / "reports" / "ranks.md"
KEY = bytes(range(32))
ROUNDS, STEPS, WARM = 3, 6, 2
LAYOUTS = ((1, 1), (1, 2), (2, 1))  # ranks, threads of each
CPU = torch.device("cpu")
TEXT = """# One job on many processes

Made by `python benchmarks/bench_ranks.py`.

Machine: {machine}; load average at the start {load:.2f}.

Medians over {rounds} rounds in which the layouts take turns, of {steps} steps each. A step: the passes of each rank,
the sum of int64 over shared memory, the whole noise in every rank, the update. Processor time is of all ranks together;
what it grows by from one process to two is the noise that both make, and the exchange. Times by the clock mean nothing
unless the load was below 0.5.

{table}
"""
Made = tuple[GradientEngine, Model, Prepared[DenseRecords], int]


def records(n: int, features: int, classes: int, rows: int, ranks: Ranks) -> Prepared[DenseRecords]:
    """This rank's passes of random records, which are the same in every rank."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, features, generator=generator)
    y = torch.randint(0, classes, (n,), generator=generator)
    return Slotted(DenseRecords(x, y), np.arange(n)).own(rows, ranks).prepared(rows, torch.float32, CPU)


def linear(ranks: Ranks) -> Made:
    """A linear probe: 60,000 records of 784 features, full batch."""
    n, rows = 60_000, 5_328
    model = Linear(784, 10, rows_per_pass=rows, dtype=torch.float32)
    engine = LinearClipping(model, "flat", 1.0, 1, "float32", Grid(n, rows, ranks))
    return engine, model, records(n, 784, 10, rows, ranks), n


def mlp(ranks: Ranks) -> Made:
    """MLP 784-512-256-10 with 535,818 parameters: 2,400 records in ten passes."""
    n, rows = 2_400, 240
    model = Network(784, 10, MlpModel(hidden=[512, 256]), rows_per_pass=rows)
    engine = Bookkeeping[DenseRecords](
        model.module(),
        model.record_losses,
        rows=rows,
        kind="flat",
        max_grad_norm=1.0,
        dtype=torch.float32,
        grid=Grid(n, rows, ranks),
    )
    return engine, model, records(n, 784, 10, rows, ranks), n


CASES: dict[str, tuple[str, Callable[[Ranks], Made]]] = {
    "linear": ("linear, 60,000 × 784, 12 passes", linear),
    "mlp": ("MLP 784-512-256-10, 10 passes of 240", mlp),
}


def one_rank(case: str, ranks: Ranks, threads: int) -> dict[str, object]:
    """Runs the steps as one rank. Returns seconds a step, by the clock and of processor time, and a hash."""
    torch.set_num_threads(threads)
    engine, model, batch, n = CASES[case][1](ranks)
    release = GaussianRelease(KEY, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=n)
    parameters = model.init(KEY)
    clock, processor = [], []
    for step in range(1, WARM + STEPS + 1):
        ranks.from_first()
        began, used = time.perf_counter(), time.process_time()
        release.prepare(parameters, step)
        noised = release.release(engine.private_sum(parameters, batch), step)
        parameters = {name: value - 0.5 * noised[name] for name, value in parameters.items()}
        clock.append(time.perf_counter() - began)
        processor.append(time.process_time() - used)
    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in parameters.values())).hexdigest()
    return {
        "clock": statistics.median(clock[WARM:]),
        "processor": statistics.median(processor[WARM:]),
        "digest": digest,
    }


def run(case: str, size: int, threads: int) -> tuple[float, float, str]:
    """One round of a layout: milliseconds a step by the clock, of processor time of all ranks, and the hash."""
    line = [sys.executable, __file__, "--case", case, "--size", str(size), "--threads", str(threads)]
    done = subprocess.run(line, stdout=subprocess.PIPE, env=os.environ | ATTEMPT_ENVIRONMENT, check=True)
    said = [json.loads(each) for each in done.stdout.splitlines()]
    digests = {each["digest"] for each in said}
    assert len(digests) == 1, "ranks end with the same parameters"
    clock, processor = max(each["clock"] for each in said), sum(each["processor"] for each in said)
    return 1e3 * clock, 1e3 * processor, digests.pop()


def main() -> None:
    """Measures all layouts and writes the report."""
    load = os.getloadavg()[0]
    rows = []
    for case, (name, _) in CASES.items():
        found: dict[tuple[int, int], list[tuple[float, float, str]]] = {layout: [] for layout in LAYOUTS}
        for _ in range(ROUNDS):
            for layout in LAYOUTS:
                found[layout].append(run(case, *layout))
        base = found[LAYOUTS[0]]
        for (size, threads), each in found.items():
            clock, processor = (float(np.median([one[at] for one in each])) for at in (0, 1))
            same = "yes" if {one[2] for one in each} == {base[0][2]} else "no"
            rows.append(f"| {name} | {size} | {threads} | {processor:.0f} | {clock:.0f} | {same} |")
    heading = "| step | processes | threads of each | processor ms, of all | ms by the clock | same bits as one |"
    machine = f"{os.cpu_count()} × {processor_name()}, Python {platform.python_version()}, torch {torch.__version__}"
    table = "\n".join([heading, "|---" * 6 + "|", *rows])
    REPORT.write_text(TEXT.format(machine=machine, load=load, rounds=ROUNDS, steps=STEPS, table=table))
    sys.stdout.write(REPORT.read_text())


def processor_name() -> str:
    """The processor's name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for option, kind in (("case", str), ("size", int), ("threads", int)):
        parser.add_argument(f"--{option}", type=kind)
    asked = parser.parse_args()
    if asked.case is None:
        main()
    else:
        forked = fork_ranks(asked.size)
        os.write(1, json.dumps(one_rank(asked.case, forked.ranks, asked.threads)).encode() + b"\n")
        for pid in forked.pids[1:] if forked.rank == 0 else ():
            os.waitpid(pid, 0)
