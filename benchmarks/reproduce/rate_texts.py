"""C and T by `auto` on texts, whose features have length 1: five public sets, accuracy on the hold-out.

    python -m benchmarks.reproduce.rate_texts --run
    python -m benchmarks.reproduce.rate_texts          # the table of benchmarks/reports/tables.md

Four sets of hashed words, and a probe on the frozen encoder all-MiniLM-L6-v2. "before": T = 50 and C = 1, the rate by
`auto`. Then C by `auto` alone (0.4 of a fresh gradient), and T besides. Full batches, momentum 0.9 with the free step.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from typing import Any

import numpy as np
import torch

from benchmarks.reproduce.rate_data import data
from benchmarks.reproduce.runs import REPORTS, run
from benchmarks.reproduce.tables import DELTA
from benchmarks.reproduce.tables_report import OPTIMIZER, Scores
from worker.models.linear import Linear

SETS = ("spam", "rotten tomatoes", "imdb", "reuters", "newsgroups")
EPSILONS, SEEDS = (1.0, 3.0), (0, 1)
HOW: dict[str, dict[str, Any]] = {
    "before": {"clipping": {"max_grad_norm": 1.0}, "length": {"steps": 50}},
    "C": {"clipping": {"max_grad_norm": "auto"}, "length": {"steps": 50}},
    "C and T": {},
}
KEPT = REPORTS / "rate_texts.json.gz"


def score(name: str, how: str, epsilon: float, seed: int) -> dict[str, float]:
    """Accuracy, and T."""
    of = data(name)
    job = {
        "model": {"kind": "linear", "bias": False},
        "privacy": {"target_epsilon": epsilon, "target_delta": DELTA},
        "optimizer": OPTIMIZER,
    }
    done = run(of, job | HOW[how], seed=seed)
    model = Linear(of.features_count, of.outputs)
    right = model.correct(model.forward(done.parameters, of.holdout), of.holdout.labels)
    return {"accuracy": round(float(right.double().mean()), 4), "steps": done.steps}


def report(scores: Scores) -> None:
    """Prints a row for each set that is complete."""
    print("| set | ε |", " | ".join(HOW), "| T |")
    print("|" + "---|" * (len(HOW) + 3))
    rows = []
    for name, epsilon in itertools.product(SETS, EPSILONS):
        cells = {how: [scores.cells.get(f"{name}/{how}/ε={epsilon:g}/seed={seed}") for seed in SEEDS] for how in HOW}
        if any(each is None for found in cells.values() for each in found):
            continue
        row = [statistics.fmean(100.0 * each["accuracy"] for each in found if each) for found in cells.values()]
        rows.append(row)
        steps = cells["C and T"][0]["steps"]
        print(f"| {name} | {epsilon:g} |", " | ".join(f"{each:.1f}" for each in row), f"| {steps} |")
    if rows:
        print("| mean | |", " | ".join(f"{each:.2f}" for each in np.mean(rows, axis=0)), "| |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true")
    asked, scores = parser.parse_args(), Scores(KEPT)
    torch.set_num_threads(1)
    for name, seed, epsilon, how in itertools.product(SETS, SEEDS, EPSILONS, HOW) if asked.run else ():
        cell = f"{name}/{how}/ε={epsilon:g}/seed={seed}"
        scores.fill(cell, lambda: score(name, how, epsilon, seed))  # noqa: B023 - called at once
        print(cell, file=sys.stderr, flush=True)
    report(scores)


if __name__ == "__main__":
    main()
