"""Measures what a private step of a few records costs beyond plain torch's. Writes reports/fixed.md.

    python benchmarks/bench_fixed.py [--only NAME] [--rounds N]

A job with expected batches of four records runs its own loop, with the shapes of passes that admission gives it
(benchmarks/shipped.py). Its steps take turns with plain torch's steps of four records of the same module: autograd and
SGD in float32. All times are processor time of one thread. The parts are measured in other steps; each leaves out the
parts that it calls.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks.environment import as_in_an_attempt  # noqa: E402

if __name__ == "__main__":
    as_in_an_attempt()

import torch  # noqa: E402

import worker  # noqa: E402, F401 - before torch: its kernels
from benchmarks import long_tail  # noqa: E402
from benchmarks.shipped import Parts, images, in_turns, job_of, machine, plain, texts  # noqa: E402
from scrimp_server.inline import Data  # noqa: E402
from worker.clipping import bookkeeping  # noqa: E402
from worker.clipping.accumulators import ParameterAccumulator  # noqa: E402
from worker.clipping.bookkeeping import Bookkeeping  # noqa: E402
from worker.clipping.totals import GridTotals  # noqa: E402
from worker.noise.gaussian import GaussianRelease  # noqa: E402
from worker.optimizers.dp_sgd import DpSgd  # noqa: E402
from worker.training.batches import Batches  # noqa: E402
from worker.training.loop import Training  # noqa: E402

REPORT = ROOT / "benchmarks" / "reports" / "fixed.md"
BATCH, AIM = 4, 5.0
GPT = {"vocab_size": 500, "n_positions": 32, "n_embd": 64, "n_layer": 2, "n_head": 2}
GPT |= {"bos_token_id": 0, "eos_token_id": 0}
PARTS: dict[str, list[tuple[Any, str]]] = {
    "passes": [(Bookkeeping, "_run")],
    "hooks and rules": [(Bookkeeping, "_tap"), (bookkeeping._Tap, "backward")],
    "accumulators made": [(Bookkeeping, "_accumulators")],
    "norms and factors": [(bookkeeping, "pass_factors")],
    "sums": [(ParameterAccumulator, each) for each in ("add_to", "add_products", "formed_parts")]
    + [(bookkeeping, "add_clipped")],
    "totals": [(GridTotals, each) for each in ("__init__", "add", "add_products", "add_formed", "finish")],
    "noise and release": [(GaussianRelease, "prepare"), (GaussianRelease, "release")],
    "update": [(DpSgd, "update"), (bookkeeping, "fill_in")],
    "digest and records": [(Training, "_close_block")],
    "draw": [(Batches, "sample")],
    "loop": [(Bookkeeping, "private_sum"), (Training, "_step")],
}


def sequences() -> Data:
    """Histories of 2,000 users and 1,000 items."""
    found = long_tail.histories(2000, 1000)
    features = {"kind": "interactions", "layout": "inter", "items": {"kind": "numbered", "count": 1000}}
    return Data({"kind": "next_item"}, features, found, found, 1000, 1, sparse=True)


def cases(root: Path) -> dict[str, tuple[Callable[[], Data], dict[str, Any]]]:
    gpt = {"kind": "hf", "path": "gpt2", "max_length": 32}
    return {
        "transformer, 2 blocks of 64, 20 of 1,000 items": (
            sequences,
            {"kind": "transformer_rec", "dim": 64, "max_length": 20},
        ),
        "CNN conv5 32×32": (lambda: images(3072), {"kind": "cnn", "preset": "conv5"}),
        "CNN conv2 28×28": (lambda: images(784), {"kind": "cnn", "preset": "conv2"}),
        "MLP 784-64-10": (lambda: images(784), {"kind": "mlp", "hidden": [64], "activation": "relu"}),
        "GPT-2, 2 blocks of 64, 32 of 500 tokens, in full": (
            lambda: texts(root, "gpt2", GPT, 32),
            gpt | {"tuning": "full"},
        ),
        "the same by LoRA": (lambda: texts(root, "gpt2", GPT, 32), gpt | {"tuning": "lora"}),
    }


def row(name: str, data: Data, model: dict[str, Any], rounds: int) -> tuple[str, str]:
    """The case's lines: times, and parts."""
    job = job_of(data, model, BATCH)
    times = in_turns({"plain": plain(job, BATCH), "private": job}, rounds)
    rows, numbers = job.plan.numerics.rows_per_pass, job.plan.model.numbers
    least = {kind: min(each) for kind, each in times.items()}
    median = {kind: statistics.median(each) for kind, each in times.items()}
    more, typical = (each["private"] - each["plain"] for each in (least, median))
    shown = f"| {name} | {rows} | {len(job.position.parameters)} | {numbers:,} | {least['plain']:.1f} |"
    shown += f" {least['private']:.1f} | {more:.1f} | {typical:.1f} | {'yes' if more <= AIM else 'no'} |"
    found: dict[str, list[float]] = {part: [] for part in PARTS}
    for _ in range(rounds):
        parts = Parts(PARTS)
        with parts.measured():
            job()
        for part, seconds in parts.seconds.items() if job.passes else ():
            found[part].append(1000 * seconds)
    return shown, f"| {name} | " + " | ".join(f"{min(each):.2f}" for each in found.values()) + " |"


TEXT = """\
# A private step of a few records: its cost beyond plain torch's

Made by `python benchmarks/bench_fixed.py`.

Machine: {machine}.

Jobs with Poisson batches of {batch} expected records, run by the service's own loop with P as admission chooses it.
Plain torch: autograd and SGD on {batch} records of the same module, in float32. Milliseconds of processor time of one
thread; steps take turns; the least of {rounds} rounds, and in one column the difference of medians. Steps without
records are left out. The aim is {aim:.0f} ms beyond plain torch.

| | P | tensors | numbers | plain | private | beyond it | of medians | met |
|---|---|---|---|---|---|---|---|---|
{rows}

The parts of a private step, each the least of {rounds} steps: "passes" is forward and backward, which plain torch has
as well. Noise that another thread makes meanwhile counts in whatever part runs then.

| | {parts} |
|---|{lines}
{found}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--only", default="", help="rows whose name holds this; writes nothing")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    of = machine()
    with tempfile.TemporaryDirectory() as root:
        made = {name: case for name, case in cases(Path(root)).items() if asked.only in name}
        lines = [row(name, data(), model, asked.rounds) for name, (data, model) in made.items()]
    text = TEXT.format(
        machine=of,
        batch=BATCH,
        rounds=asked.rounds,
        aim=AIM,
        rows="\n".join(each for each, _ in lines),
        parts=" | ".join(PARTS),
        lines="---|" * len(PARTS),
        found="\n".join(each for _, each in lines),
    )
    print(text)
    if not asked.only:
        REPORT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
