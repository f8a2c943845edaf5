"""Measures language models as a job runs them, against plain torch and Opacus. Writes reports/language.md.

    python benchmarks/bench_language.py [--only NAME] [--rounds N]

Models are made of a configuration: their weights are random, which changes no time. A job's own loop makes whole steps
(benchmarks/shipped.py): draw, passes of P rows, exact clipping, noise, update. They take turns with plain torch's steps
of as many records in one pass: autograd and SGD in float32. All times are processor time of one thread.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks.environment import as_in_an_attempt  # noqa: E402

if __name__ == "__main__":
    as_in_an_attempt()

import numpy as np  # noqa: E402
import torch  # noqa: E402

import worker  # noqa: E402, F401 - before torch: its kernels
from benchmarks.shipped import Job, Step, in_turns, job_of, machine, plain, texts  # noqa: E402

REPORT = ROOT / "benchmarks" / "reports" / "language.md"
ENDS = {"bos_token_id": 0, "eos_token_id": 0}
GPT: dict[str, Any] = {"n_positions": 128, "n_embd": 256, "n_layer": 4, "n_head": 4} | ENDS
SMOL: dict[str, Any] = {"vocab_size": 49_152, "hidden_size": 576, "num_hidden_layers": 30, "intermediate_size": 1536}
SMOL |= {"num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 128}
SMOL |= {"tie_word_embeddings": True} | ENDS


class Case(NamedTuple):
    """A model, how it is tuned, and a step's records and tokens."""

    kind: str
    config: dict[str, Any]
    tuning: dict[str, Any]
    records: int
    tokens: int
    aim: float


CASES = {
    "GPT-2 of 5.2 million, in full": Case("gpt2", GPT | {"vocab_size": 8000}, {"tuning": "full"}, 64, 64, 0.8),
    "the same, 128 tokens": Case("gpt2", GPT | {"vocab_size": 8000}, {"tuning": "full"}, 32, 128, 0.8),
    "SmolLM2-135M's shape, LoRA of rank 1": Case(
        "llama", SMOL, {"tuning": "lora", "lora": {"rank": 1, "targets": ["v_proj"]}}, 16, 32, 0.98
    ),
    "SmolLM2-135M's shape, LoRA of rank 8": Case(
        "llama", SMOL, {"tuning": "lora", "lora": {"rank": 8, "targets": ["q_proj", "v_proj"]}}, 16, 32, 0.98
    ),
}


def opacus(job: Job, records: int) -> Step:
    """The step of Opacus' hooks on the same module. Its layers must be ones that Opacus knows."""
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    warnings.filterwarnings("ignore")
    model: Any = job.plan.model
    wrapped = GradSampleModule(model.module(), loss_reduction="mean")
    trained = [each for each in wrapped.parameters() if each.requires_grad]
    sgd = torch.optim.SGD(trained, lr=0.01)
    optimizer = DPOptimizer(sgd, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=records)
    drawn: Any = job._batches.train
    batch = drawn.piece(np.arange(records), model.dtype)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model.record_losses(wrapped, batch).mean().backward()
        optimizer.step()

    return step


def row(name: str, case: Case, rounds: int, root: Path) -> str:
    data = texts(root, case.kind, case.config, case.tokens, 100 * case.records)
    asked = {"kind": "hf", "path": case.kind, "max_length": case.tokens} | case.tuning
    job = job_of(data, asked, case.records)
    _fix_draw(job, case.records)
    steps: dict[str, Callable[[], None]] = {"plain": plain(job, case.records), "private": job}
    try:
        steps["hooks"] = opacus(job, case.records)
        steps["hooks"]()
    except Exception as error:
        refused = f"refuses ({type(error).__name__})"
        steps.pop("hooks", None)
    times = in_turns(steps, rounds, warm=1)
    ratio = statistics.median(a / b for a, b in zip(times["plain"], times["private"], strict=True))
    best = min(times["plain"]) / min(times["private"])
    theirs = f"{min(times['hooks']):.0f}" if "hooks" in times else refused
    cells = [name, str(case.records), str(case.tokens), str(job.plan.numerics.rows_per_pass)]
    cells += [f"{job.plan.model.numbers:,}", f"{min(times['plain']):.0f}", f"{min(times['private']):.0f}", theirs]
    cells += [f"{best:.2f}", f"{ratio:.2f}", f"{case.aim}", "yes" if best >= case.aim else "no"]
    return f"| {' | '.join(cells)} |"


def _fix_draw(job: Job, records: int) -> None:
    """Makes every draw the first so many records: plain torch has as many."""

    class First:
        def draw(self, step: int) -> np.ndarray:
            return np.arange(records)

    job._randomness = replace(job._randomness, sampler=First())


TEXT = """\
# Language models: a step as a job runs it

Made by `python benchmarks/bench_language.py`.

Machine: {machine}.

Milliseconds of processor time of one thread; steps take turns, {rounds} rounds; the least. Ratios are plain torch's
time over the private step's: of the least times, and the median within rounds. Every step has the stated records:
drawn, cut into passes of P rows as admission chooses P, clipped, noised and used. Plain torch has them in one pass.

| | records | tokens | P | trained | plain | private | Opacus, hooks | of plain, least | in rounds | aim | met |
|---|---|---|---|---|---|---|---|---|---|---|---|
{rows}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="rows whose name holds this; writes nothing")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    of, lines = machine(), list[str]()
    for name, case in CASES.items():
        if asked.only in name:
            with tempfile.TemporaryDirectory() as root:
                lines.append(row(name, case, asked.rounds, Path(root)))
            print(lines[-1], flush=True)
    if not asked.only:
        REPORT.write_text(TEXT.format(machine=of, rounds=asked.rounds, rows="\n".join(lines)), encoding="utf-8")


if __name__ == "__main__":
    main()
