"""SmolLM2-135M-Instruct by LoRA on prompts and answers: its own chat template, the loss on the answer alone.

A prompt asks of a film review's beginning if the review is good or bad; the answer is that word. A few steps: it shows
that the way through works with real weights and a real template, and not how well it can learn.

    python -m benchmarks.reproduce.prompts [--models FOLDER] [--steps 10]
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reproduce.runs import REPORTS, ROOT, Data, machine, run
from core.contracts.hf import HfModel
from core.parts import model_folder
from core.parts.stored_records import StoredPart, Texts
from worker.data.loaded_parts import records_of
from worker.models.hf.hf_model import HfTuning
from worker.models.hf.tokens import Tokens

sys.path.insert(0, str(ROOT / "scripts"))
import add_model
import fetch_data

SMOL = "SmolLM2-135M-Instruct"
LENGTH, SHOWN = 64, 60  # tokens that are read, and characters of a review
TRAINED, SCORED, BATCH, EPSILON = 600, 48, 12, 8.0


def pairs() -> Iterator[tuple[str, str]]:
    """Prompts and answers, good and bad ones in turn."""
    with fetch_data.fetch_reviews().open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    kinds = [[row["text"] for row in rows if row["label"] == label] for label in ("1", "0")]
    for good, bad in zip(*kinds, strict=False):
        for text, answer in ((good, "good"), (bad, "bad")):
            yield f"Is this film review good or bad? {text[:SHOWN]}", answer


def job(steps: int) -> dict[str, Any]:
    """The JobSpec, less its data set."""
    return {
        "model": {
            "kind": "hf",
            "path": SMOL,
            "tuning": "lora",
            "lora": {"rank": 8},
            "max_length": LENGTH,
            "chat": True,
        },
        "optimizer": {"kind": "dp_adam", "learning_rate": 1e-3},
        "privacy": {"target_epsilon": EPSILON, "target_delta": 1e-4},
        "clipping": {"kind": "automatic", "max_grad_norm": 1.0},
        "sampling": {"kind": "poisson", "expected_batch_size": BATCH},
        "length": {"steps": steps},
        "evaluation": {"points": 1},
    }


def part(tokens: Tokens, first: int, size: int) -> Any:
    """So many records as the model reads them."""
    chosen = list(islice(pairs(), first, first + size))
    sizes = np.array([len(prompt.encode()) for prompt, _ in chosen], dtype=np.float64)
    stored = StoredPart(Texts.of([prompt + answer for prompt, answer in chosen]), sizes)
    return records_of(tokens.of_part(stored, lambda: None))


def main(arguments: list[str] | None = None) -> None:
    """Runs the job and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=fetch_data.cache_folder() / "models", help="a models root")
    parser.add_argument("--steps", type=int, default=10)
    asked = parser.parse_args(arguments)
    add_model.fetch_smollm2(asked.models / SMOL)
    folder = model_folder.read(asked.models, SMOL)
    tokens = Tokens(folder, LENGTH, prompts=True, chat=True)
    train, holdout = part(tokens, SCORED, TRAINED), part(tokens, 0, SCORED)
    task = {"kind": "language_model", "prompt": "question"}
    data = Data(task, {"kind": "text", "column": "answer"}, train, holdout, 1, 1, models_root=asked.models)
    wanted = job(asked.steps)
    model = HfTuning(folder, HfModel.model_validate(wanted["model"]), (), rows_per_pass=1, prompts=True)
    before = float(model.token_scores(model.init(bytes(range(32))), holdout)[0].mean())
    answers = int(model.predicted(holdout)[1].sum())
    began = time.process_time()
    done = run(data, wanted)
    cpu = (time.process_time() - began) / done.steps
    report = f"""# Prompts and answers on SmolLM2-135M-Instruct

`python -m benchmarks.reproduce.prompts --steps {asked.steps}`, {machine()}

LoRA of rank 8 on `q_proj` and `v_proj`, the model's own chat template, {LENGTH} tokens, {TRAINED} records, expected
batch {BATCH}, {done.steps} steps, ε = {EPSILON:g} at δ = 1e-4, σ = {done.noise_multiplier:.3f}, one seed. The answers
of {SCORED} held-out records have {answers} tokens with their ends of turn.

| | loss of the answers' tokens |
|---|---|
| before | {before:.3f} |
| after | {done.last("loss"):.3f} |

{cpu:.1f} s of processor time a step, scores included. The machine was shared: no time by the clock is given.
"""
    (REPORTS / "prompts.md").write_text(report)
    print(report)


if __name__ == "__main__":
    main()
