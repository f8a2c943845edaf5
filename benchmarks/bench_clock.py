"""Measures every row of the clock's aims in one short run: private against non-private steps, on all cores.

    python -m benchmarks.bench_clock [--seconds 15] [--only NAME] [--without-memory]

It takes under eight minutes on two cores, and needs a machine on which nothing else runs: the clock counts what others
do. Steps take turns in one process (private, plain, private, plain). A job's rows are steps as it was submitted: plan,
draw, gather, passes, noise, update. Plain torch's steps are float32, autograd and SGD, with torch's own layers.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from benchmarks.environment import as_in_an_attempt  # noqa: E402

if __name__ == "__main__":
    as_in_an_attempt()

import torch  # noqa: E402

import worker  # noqa: E402, F401 - before torch: its kernels
from benchmarks import bench_dpformer, bench_engine, bench_fixed, bench_language, bench_training, long_tail  # noqa: E402
from benchmarks.dpformer_step import PLAIN, PRIVATE, Sizes  # noqa: E402
from benchmarks.shipped import Job, Step, images, job_of, machine, plain, texts  # noqa: E402
from worker.models.linear import Linear  # noqa: E402
from worker.native.kernels import kernels  # noqa: E402

CORES = len(os.sched_getaffinity(0))
LEAST_ROUNDS, WARM = 5, 2
LORA = "SmolLM2-135M's shape, LoRA of rank 1"
MEMORY_AIM = 1.5


class Pair(NamedTuple):
    """A private and a non-private step."""

    private: Step
    plain: Step


class Row(NamedTuple):
    """What is compared. `make` gets an empty folder. `aim`: plain torch's time over ours, at least; or, `fixed`, the
    milliseconds that ours may take beyond it."""

    make: Callable[[Path], Pair]
    aim: float
    fixed: bool = False


def engine(name: str, _root: Path) -> Pair:
    """A step of the engine as a job's numerics have it, without the draw and the gather."""
    task = bench_engine.TASKS[name]()
    return Pair(bench_engine.Private(task), bench_engine.plain(task.standard))


def submitted(name: str, features: int, model: dict[str, Any], batch: int, _root: Path) -> Pair:
    """A job's step, and that of its row in bench_engine."""
    job = job_of(images(features, 60_000 if features < 1000 else 20_000), model, batch)
    return Pair(job, bench_engine.plain(bench_engine.TASKS[name]().standard))


def full_batch(records: Callable[[], Any], model: Linear, _root: Path) -> Pair:
    data = records()
    private, other = bench_training.Steps(data, model, private=True), bench_training.Plain(data, model)
    return Pair(partial(private.run, 1), partial(other.run, 1))


def language(root: Path) -> Pair:
    case = bench_language.CASES[LORA]
    data = texts(root, case.kind, case.config, case.tokens, 100 * case.records)
    job = job_of(data, {"kind": "hf", "path": case.kind, "max_length": case.tokens} | case.tuning, case.records)
    bench_language._fix_draw(job, case.records)
    return Pair(job, plain(job, case.records))


def dpformer(_root: Path) -> Pair:
    sizes, data = Sizes(16, 854, 25), long_tail.histories(items=854)
    return Pair(*(bench_dpformer.step_of(kind, sizes, data) for kind in (PRIVATE, PLAIN)))


def few(name: str, root: Path) -> Pair:
    """A job of four records a step."""
    data, model = bench_fixed.cases(root)[name]
    job = job_of(data(), model, bench_fixed.BATCH)
    return Pair(job, plain(job, bench_fixed.BATCH))


def rows() -> Iterator[tuple[str, Row]]:
    """All rows, by name."""
    for name, features, model, batch, aim in (
        ("MLP 784-512-256-10, B=512", 784, {"kind": "mlp", "hidden": [512, 256], "activation": "relu"}, 512, 0.65),
        ("CNN conv2 28×28, B=512", 784, {"kind": "cnn", "preset": "conv2"}, 512, 0.9),
        ("CNN conv5 32×32, B=128", 3072, {"kind": "cnn", "preset": "conv5"}, 128, 0.9),
    ):
        yield f"{name}, as submitted", Row(partial(submitted, name, features, model, batch), aim)
    for name in bench_engine.TASKS:
        if "transformer" in name:
            yield name, Row(partial(engine, name), 0.75 if name.endswith("last") else 1.5)
    sparse, probe = Linear(bench_training.BUCKETS, 2), Linear(768, 10)
    reviews = partial(bench_training.stand_in, "")
    yield "sparse, full batch", Row(partial(full_batch, lambda: reviews().split(0)[0], sparse), 1.0)
    yield "probe, full batch", Row(partial(full_batch, partial(bench_training.dense, 20_000, 768), probe), 0.95)
    yield LORA, Row(language, 0.98)
    yield "DPFormer, B=16, M=854, T=25", Row(dpformer, 0.8)
    for name in bench_fixed.cases(Path()):
        yield f"fixed: {name}", Row(partial(few, name), bench_fixed.AIM, fixed=True)


def measured(pair: Pair, seconds: float) -> tuple[list[float], list[float]]:
    """Milliseconds by the clock of both, which take turns. A job's step counts if it draws records."""
    for _ in range(WARM):
        pair.private()
        pair.plain()
    ours, theirs = list[float](), list[float]()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(ours) < LEAST_ROUNDS:
        took = []
        for step in pair:
            began = time.perf_counter()
            step()
            took.append(1000 * (time.perf_counter() - began))
        if not isinstance(pair.private, Job) or pair.private.passes:
            ours.append(took[0])
            theirs.append(took[1])
    return ours, theirs


def line(name: str, row: Row, seconds: float) -> str:
    with tempfile.TemporaryDirectory() as root:
        ours, theirs = measured(row.make(Path(root)), seconds)
    median, other = statistics.median(ours), statistics.median(theirs)
    if row.fixed:
        shown = statistics.median(a - b for a, b in zip(ours, theirs, strict=True))
        met, found, least = shown <= row.aim, f"{shown:.1f} ms more", f"{min(ours) - min(theirs):.1f} ms more"
        aim = f"≤ {row.aim:g} ms more"
    else:
        shown = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
        met, found, least = shown >= row.aim, f"{shown:.2f}", f"{min(theirs) / min(ours):.2f}"
        aim = f"≥ {row.aim:g}"
    cells = [name, str(len(ours)), f"{other:.1f}", f"{median:.1f}", found, least, aim, "yes" if met else "no"]
    return f"| {' | '.join(cells)} |"


def memory(name: str) -> str:
    """Peak memory of two steps, private over non-private, each in a process of its own."""
    private, other = (bench_engine.peak_mb(name, kind) for kind in ("private", "non-private"))
    share = private / other
    return f"| {name} | {other:.0f} | {private:.0f} | {share:.2f} | {'yes' if share <= MEMORY_AIM else 'no'} |"


HEAD = ("", "rounds", "plain ms", "private ms", "plain over private, of rounds", "of the least", "aim", "met")
MEMORY_HEAD = ("peak memory beyond the libraries' own", "plain MiB", "private MiB", "share", f"≤ {MEMORY_AIM}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each ratio's rounds; a fixed cost has half")
    parser.add_argument("--only", default="", help="rows whose name holds this")
    parser.add_argument("--without-memory", action="store_true")
    options = parser.parse_args()
    began = time.perf_counter()
    torch.set_num_threads(1)  # `machine` says so
    out = sys.stdout
    out.write(f"{machine().replace('one thread', f'{CORES} threads')}; compiled parts: {kernels()}\n\n")
    torch.set_num_threads(CORES)
    out.write(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}\n")
    for name, row in rows():
        if options.only in name:
            out.write(line(name, row, options.seconds / (2 if row.fixed else 1)) + "\n")
            out.flush()
    if not options.without_memory:
        out.write(f"\n| {' | '.join(MEMORY_HEAD)} |\n|{'---|' * len(MEMORY_HEAD)}\n")
        for name in bench_engine.TASKS:
            if options.only in name:
                out.write(memory(name) + "\n")
                out.flush()
    out.write(f"\n{time.perf_counter() - began:.0f} s; load average at the end {os.getloadavg()[0]:.2f}\n")


if __name__ == "__main__":
    main()
