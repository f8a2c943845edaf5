"""Measures the memory of a rank with and without sharded optimizer state. Writes reports/shards.md.

    python benchmarks/bench_shards.py

A step is what a rank does: its passes, the int64 sum over all ranks (shared memory), the noise, the update by DP-Adam.
Ranks are processes of their own. "Above" is the peak resident memory (VmHWM) less what the process had before it made
the model's parameters: libraries and records. The state's bytes are counted. The last column compares a hash of the
parameters after the last step with that of one process.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import numpy as np  # noqa: E402
import torch  # noqa: E402

from app.sandbox.processes import ATTEMPT_ENVIRONMENT  # noqa: E402
from core.contracts.job_spec import MlpModel  # noqa: E402
from worker.attempt.rank_processes import fork_ranks  # noqa: E402
from worker.clipping.bookkeeping import Bookkeeping  # noqa: E402
from worker.clipping.totals import Grid  # noqa: E402
from worker.data.ranks import Ranks  # noqa: E402
from worker.data.records import DenseRecords  # noqa: E402
from worker.data.secret_slots import Slotted  # noqa: E402
from worker.data.shards import Shards  # noqa: E402
from worker.models.networks import Network  # noqa: E402
from worker.noise.gaussian import GaussianRelease  # noqa: E402
from worker.optimizers.base import Optimizer, StepInfo  # noqa: E402
from worker.optimizers.descent import Descent  # noqa: E402
from worker.optimizers.dp_adam import DpAdam  # noqa: E402
from worker.optimizers.pieces import flattened  # noqa: E402
from worker.optimizers.sharded import Sharded  # noqa: E402

REPORT = ROOT / "benchmarks" / "reports" / "shards.md"
KEY = bytes(range(32))
FEATURES, HIDDEN, CLASSES = 784, (3072, 2048), 10
RECORDS, ROWS, STEPS = 192, 48, 4
LAYOUTS = ((1, False), (2, False), (2, True), (4, False), (4, True))
MIB = 2**20
TEXT = """# Sharded optimizer state

Made by `python benchmarks/bench_shards.py`.

Machine: {machine}; load average at the start {load:.2f}.

MLP {sizes} with {numbers:,} parameters, DP-Adam, {records} records in passes of {rows}, {steps} steps, one thread a
process. Memory is of the rank that needs most. *Peak* is VmHWM; *above* is the peak less what the process had before it
made the parameters (libraries and records). *State* counts the bytes of Adam's moments. Processor time is of all
processes together, in milliseconds a step.

{table}

What no shard divides: the parameters (8 bytes a number), the totals that a rank adds its passes to (8), the module's
own weights in float32 (4), and what a pass holds.
"""


def records(ranks: Ranks) -> Slotted[DenseRecords]:
    """This rank's share of random records, which are the same in every rank."""
    generator = torch.Generator().manual_seed(1)
    x, y = (
        torch.randn(RECORDS, FEATURES, generator=generator),
        torch.randint(0, CLASSES, (RECORDS,), generator=generator),
    )
    return Slotted(DenseRecords(x, y), np.arange(RECORDS)).own(ROWS, ranks)


def one_rank(ranks: Ranks, *, shard: bool) -> dict[str, object]:
    """Runs the steps as one rank. Returns its memory in bytes, processor seconds a step, and a hash."""
    torch.set_num_threads(1)
    batch = records(ranks)
    before = peak()
    network = Network(FEATURES, CLASSES, MlpModel(hidden=list(HIDDEN)), rows_per_pass=ROWS)
    parameters = flattened(network.init(KEY))
    shards = Shards.of(parameters, ranks) if shard else None
    inner = DpAdam(Descent(1e-3))
    optimizer: Optimizer = inner if shards is None else Sharded(inner, shards)
    grid = Grid(RECORDS, ROWS, ranks, shard)
    engine = Bookkeeping[DenseRecords](
        network.module(),
        network.record_losses,
        rows=ROWS,
        kind="flat",
        max_grad_norm=1.0,
        dtype=torch.float32,
        grid=grid,
    )
    release = GaussianRelease(KEY, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=RECORDS)
    state = optimizer.init(parameters)
    used = time.process_time()
    for step in range(1, STEPS + 1):
        release.prepare(parameters, step, shards=shards)
        noised = release.release(engine.private_sum(parameters, batch), step, shards=shards)
        parameters, state = optimizer.update(noised, state, parameters, StepInfo(step, release.noise_variance(1.0)))
        del noised
    used = time.process_time() - used
    return {
        "numbers": network.numbers,
        "peak": peak(),
        "above": peak() - before,
        "state": sum(each.numel() * each.element_size() for each in state.values()),
        "processor": used / STEPS,
        "digest": hashlib.sha256(b"".join(each.numpy().tobytes() for each in parameters.values())).hexdigest(),
    }


def peak() -> int:
    """This process's largest resident memory so far, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def run(size: int, shard: bool) -> list[dict[str, object]]:
    """What each rank of a layout says."""
    line = [sys.executable, __file__, "--size", str(size), "--shard", str(int(shard))]
    done = subprocess.run(line, stdout=subprocess.PIPE, env=os.environ | ATTEMPT_ENVIRONMENT, check=True)
    return [json.loads(each) for each in done.stdout.splitlines()]


def main() -> None:
    """Measures all layouts and writes the report."""
    load = os.getloadavg()[0]
    rows, wanted, numbers = [], None, 0
    for size, shard in LAYOUTS:
        said = run(size, shard)
        (digest,) = {str(each["digest"]) for each in said}
        wanted = wanted or digest
        numbers = int(str(said[0]["numbers"]))
        peaked, above, state = (max(int(str(each[of])) for each in said) / MIB for of in ("peak", "above", "state"))
        busy = 1e3 * sum(float(str(each["processor"])) for each in said)
        how = "sharded" if shard else "whole"
        same = "yes" if digest == wanted else "no"
        rows.append(f"| {size} | {how} | {peaked:.0f} | {above:.0f} | {state:.1f} | {busy:.0f} | {same} |")
    heading = "| processes | state | peak MiB | above MiB | state MiB | processor ms, of all | same bits as one |"
    machine = f"{os.cpu_count()} × {processor_name()}, Python {platform.python_version()}, torch {torch.__version__}"
    table = "\n".join([heading, "|---" * 7 + "|", *rows])
    sizes = "-".join(str(each) for each in (FEATURES, *HIDDEN, CLASSES))
    known = {"sizes": sizes, "numbers": numbers, "records": RECORDS, "rows": ROWS, "steps": STEPS, "table": table}
    REPORT.write_text(TEXT.format(machine=machine, load=load, **known))
    sys.stdout.write(REPORT.read_text())


def processor_name() -> str:
    """The processor's name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for option, kind in (("size", int), ("shard", int)):
        parser.add_argument(f"--{option}", type=kind)
    asked = parser.parse_args()
    if asked.size is None:
        main()
    else:
        forked = fork_ranks(asked.size)
        os.write(1, json.dumps(one_rank(forked.ranks, shard=bool(asked.shard))).encode() + b"\n")
        for pid in forked.pids[1:] if forked.rank == 0 else ():
            os.waitpid(pid, 0)
