"""Measures the cost of a private DPFormer step, as in the paper's Figure 3: speed, memory, the largest batch.

    python benchmarks/bench_dpformer.py [--full]

Compares the tied transformer, with Re-Attention off and on, with three others: the non-private step of the same module,
Opacus' hooks on the same module, and Opacus' ghost clipping on an untied transformer of half the width. The sizes are
records B, items M and positions T of a synthetic long-tailed set (long_tail.py). Without --full it measures a few sizes
and writes nothing; with --full it writes reports/dpformer_step.md.

Every measurement runs in a separate process, forked from this one, which has loaded torch and computed nothing. For
speed, all kinds of step take turns in one process: medians of processor time. For memory, a process runs one kind of
step: the largest resident memory in two steps, less the memory held before them.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks.environment import as_in_an_attempt  # noqa: E402

if __name__ == "__main__":
    as_in_an_attempt()

import argparse  # noqa: E402
import json  # noqa: E402
import multiprocessing  # noqa: E402
import statistics  # noqa: E402
from collections.abc import Callable  # noqa: E402
from functools import partial  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402

from benchmarks import bench_engine, dpformer_step, long_tail  # noqa: E402
from benchmarks.bench_engine import Private, Standard, Step, Task, opacus_ghost, opacus_hooks, plain  # noqa: E402
from benchmarks.dpformer_step import HALF, HOOKS, KINDS, LOSS, PLAIN, Sizes  # noqa: E402
from benchmarks.memory import peak_mib, resident_mib  # noqa: E402
from core.contracts.job_spec import ReAttention  # noqa: E402
from core.privacy.numerics import PublicSizes  # noqa: E402
from scrimp_server.inline import slots_for  # noqa: E402
from worker.data.sequence_records import SequenceRecords  # noqa: E402
from worker.models.re_attention import Errors  # noqa: E402
from worker.models.recommenders import TransformerRec  # noqa: E402

DIM, HEADS, BLOCKS = 64, 1, 2
BASE = Sizes(64, long_tail.ITEMS, 50)
SWEEPS = {
    "records": [BASE._replace(records=n) for n in (16, 64, 256)],
    "items": [BASE._replace(items=n) for n in (854, 1708, 3416, 6832)],
    "positions": [BASE._replace(positions=n) for n in (12, 25, 50, 100)],
}
FEW = [Sizes(16, 854, 25), Sizes(32, 854, 25)]
LARGEST = 4.0  # GiB for the whole process
STARTS = (64, 256)  # batches that the search for the largest begins with
REPORT = ROOT / "benchmarks" / "reports" / "dpformer_step.md"


def task(kind: str, sizes: Sizes, data: SequenceRecords) -> Task:
    """Returns a batch of users, and the module for a kind of step."""
    rng = np.random.default_rng(1)
    users = rng.integers(0, len(data), sizes.records)
    batch = data.select(users).windows(sizes.positions)
    half = kind == HALF
    shape = (sizes.items + 1, DIM // 2 if half else DIM, HEADS, BLOCKS, sizes.positions)
    errors = _errors(dpformer_step.MODES.get(kind, "off"), sizes, data)
    ours = partial(TransformerRec, *shape, tied=not half, positions="all", errors=errors)
    spec = {"kind": "transformer_rec", "dim": shape[1], "max_length": sizes.positions, "tied": not half}
    public = PublicSizes(len(data), 1, sizes.items, 1, sparse=False, slots=slots_for(len(data)).train)
    usual = partial(Standard, *shape, tied=not half, positions="all")
    return Task(ours, TransformerRec.record_losses, batch, spec, public, Standard.record_losses, usual)


def _errors(mode: str, sizes: Sizes, data: SequenceRecords) -> Errors | None:
    """Returns Re-Attention's errors as in a job: from the data's frequencies, which are public here, at σ = 1."""
    if mode == "off":
        return None
    errors = Errors(ReAttention.model_validate({"mode": mode}))
    frequencies = data.item_counts(sizes.items, sizes.positions) / len(data)
    errors.instantiate(1.0, sizes.records, frequencies, 1.0 / len(data))
    return errors


STEPS: dict[str, Callable[[Task], Step]] = {
    PLAIN: lambda task: plain(task.standard),
    LOSS: plain,
    HOOKS: lambda task: opacus_hooks(task.standard),
    HALF: lambda task: opacus_ghost(task.standard),
}


def step_of(kind: str, sizes: Sizes, data: SequenceRecords) -> Step:
    return STEPS.get(kind, Private)(task(kind, sizes, data))


def seconds(sizes: Sizes, data: SequenceRecords, rounds: int) -> dict[str, list[float]]:
    """Measures processor seconds of each kind's steps, which take turns."""
    steps = {kind: step_of(kind, sizes, data) for kind in KINDS}
    return bench_engine.in_turns(steps, rounds)


def peak(kind: str, sizes: Sizes, data: SequenceRecords, steps: int = 2) -> tuple[float, float]:
    """Measures the largest resident memory in some steps, in MiB: above the memory held before, and in all."""
    made = step_of(kind, sizes, data)
    return peak_mib(made, steps), resident_mib("VmHWM")


def apart(measure: Callable[..., Any], *arguments: Any) -> Any:
    """Runs a function in a separate process and returns its result."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=lambda: sender.send(measure(*arguments)))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    finally:
        process.join()


def largest(kind: str, data: SequenceRecords) -> int:
    """Measures the largest B in a process of 4 GiB, by steps along the line through the last two sizes."""

    def whole(records: int) -> float:
        found: float = apart(peak, kind, BASE._replace(records=records), data, 1)[1] / 1024
        return found

    low, high = ((n, whole(n)) for n in STARTS)
    while True:
        slope = (high[1] - low[1]) / (high[0] - low[0])
        wanted = int(high[0] + (LARGEST - high[1]) / slope)
        low, high = high, (wanted, whole(wanted))
        if abs(high[1] - LARGEST) < 0.02 * LARGEST or high[0] == low[0]:
            return wanted


class Measured:
    """Measurements, stored one by one in a file, so that a long series can be interrupted and continued."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.found: dict[str, Any] = json.loads(path.read_text()) if path and path.exists() else {}

    def get(self, name: str, measure: Callable[[], Any]) -> Any:
        if name not in self.found:
            self.found[name] = measure()
            print(name, self.found[name], flush=True)
            if self._path:
                self._path.write_text(json.dumps(self.found, indent=0))
        return self.found[name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="all sizes, and the report")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kept", type=Path, help="a file where measurements are kept")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    measured = Measured(asked.kept)
    at = list(dict.fromkeys(each for sweep in SWEEPS.values() for each in sweep)) if asked.full else FEW
    points = {sizes: point(measured, sizes, asked.rounds) for sizes in at}
    if not asked.full:
        print("\n".join(dpformer_step.table(points)))
        return
    data = long_tail.histories()
    largest_ = {kind: measured.get(f"largest {kind}", partial(largest, kind, data)) for kind in KINDS}
    dpformer_step.write(REPORT, points, SWEEPS, largest_, BASE, bench_engine.machine(), asked.rounds)


def point(measured: Measured, sizes: Sizes, rounds: int) -> dict[str, dict[str, float]]:
    """Measures each kind of step at these sizes: milliseconds, throughput relative to the non-private step, and MiB."""
    data = long_tail.histories(items=sizes.items)
    times = measured.get(f"seconds {sizes}", lambda: apart(seconds, sizes, data, rounds))
    memory = {
        kind: measured.get(f"memory {sizes} {kind}", lambda kind=kind: apart(peak, kind, sizes, data))[0]
        for kind in KINDS
    }
    return {
        kind: {
            "ms": 1000 * statistics.median(times[kind]),
            "speed": statistics.median(a / b for a, b in zip(times[PLAIN], times[kind], strict=True)),
            "mib": memory[kind],
        }
        for kind in KINDS
    }


if __name__ == "__main__":
    main()
