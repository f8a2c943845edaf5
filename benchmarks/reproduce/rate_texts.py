"""C and T by `auto` on texts, whose features have length 1: four public sets of hashed words, accuracy on the hold-out.

    python -m benchmarks.reproduce.rate_texts --run
    python -m benchmarks.reproduce.rate_texts          # the table of benchmarks/reports/tables.md

"before": T = 50 and C = 1, the rate by `auto`. Then C by `auto` alone (0.4 of a fresh gradient), and T besides. Full
batches, momentum 0.9 with the free step. Of two classes also what answers say that undo the clipping, with ‖x‖ = 1.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from typing import Any

import numpy as np
import torch

from app.hpo.rates import norm_of
from benchmarks.reproduce.rate_data import data
from benchmarks.reproduce.runs import REPORTS, run
from benchmarks.reproduce.tables import DELTA
from benchmarks.reproduce.tables_answers import told
from benchmarks.reproduce.tables_report import OPTIMIZER, Scores
from core.privacy.score_histogram import CLASSES
from core.privacy.two_class_answers import answer_logits, clip_ratios
from worker.models.linear import Linear

SETS = ("spam", "imdb", "reuters", "newsgroups")
EPSILONS, SEEDS = (1.0,), (0, 1)
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
    outputs, labels = model.forward(done.parameters, of.holdout), of.holdout.labels
    found: dict[str, Any] = {
        "accuracy": round(float(model.correct(outputs, labels).double().mean()), 4),
        "steps": done.steps,
    }
    if of.outputs == CLASSES:
        scores, norm = (outputs[1] - outputs[0]).double().numpy(), 1.0 if how == "before" else norm_of(1.0, 2).value
        undone = answer_logits(scores, clip_ratios(1.0, norm))
        found |= {"plain": told(scores, labels.numpy()), "undone": told(undone, labels.numpy())}
    return found


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
    for cell, each in scores.cells.items():
        if "undone" in each:
            print(f"{cell}: log loss {each['plain']['loss']:.3f}, undone {each['undone']['loss']:.3f};", end=" ")
            print(f"calibration error {each['plain']['error']:.3f}, undone {each['undone']['error']:.3f}")


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
