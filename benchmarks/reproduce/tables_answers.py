"""Which public map of a clipped model's answers is the best calibrated, without changing their order.

    python -m benchmarks.reproduce.tables_answers --run fitted      # then untouched: once, after SLOPE is frozen
    python -m benchmarks.reproduce.tables_answers                   # the table of benchmarks/reports/tables.md

Training of two classes stands still where the clipped gradients of the records with such features cancel. With a_y the
length of a gradient at a residual of 1, in units of C, the share π of the second class is there

    π/(1 − π) = min(a_0 p, 1) / min(a_1 (1 − p), 1)

Between 1/a_0 and 1 − 1/a_1 this is flat, and records there would tie. So the map adds `slope` times the logit of p,
cut to that range: strictly increasing, AUC stays. The grid is over `slope`; lengths are the declaration's.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit, log_expit

from app.hpo.rates import FRESH
from benchmarks.reproduce.runs import REPORTS, run
from benchmarks.reproduce.tables import auc
from benchmarks.reproduce.tables_data import FITTED, MAPS, UNTOUCHED, as_data, table
from benchmarks.reproduce.tables_report import Scores, job
from worker.models.linear import Linear

EPSILONS, SEEDS = (0.5, 1.0, 4.0), (0, 1)
SLOPES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
LONGEST = 2.0 / FRESH  # a_y: C is FRESH √½ ‖x‖, and a gradient √2 ‖x‖ at a residual of 1
GROUPS = 10
KEPT = REPORTS / "tables_answers.json.gz"
Floats = NDArray[np.float64]


def mapped(logits: Floats, slope: float, lengths: tuple[float, float] = (LONGEST, LONGEST)) -> Floats:
    """The logits whose probabilities undo the clipping.

    >>> [round(float(expit(each)), 3) for each in mapped(np.log([1 / 99, 1 / 9, 1.0, 9.0]), 0.0)]
    [0.048, 0.333, 0.5, 0.667]
    """
    low, high = (float(np.log(max(each - 1.0, 1e-12))) for each in lengths)  # the range is (−low, high)
    second = np.minimum(np.log(lengths[0]) + log_expit(logits), 0.0)
    first = np.minimum(np.log(lengths[1]) + log_expit(-logits), 0.0)
    return np.asarray(second - first + slope * np.clip(logits, -low, high))


def error(p: Floats, y: NDArray[Any]) -> float:
    """The expected calibration error: over ten groups of as many records, by p, the mean |mean p − share|."""
    order = np.array_split(np.argsort(p, kind="stable"), GROUPS)
    return float(sum(len(each) * abs(p[each].mean() - y[each].mean()) for each in order) / len(p))


def told(logits: Floats, y: NDArray[Any]) -> dict[str, float]:
    """Log loss, calibration error, mean answer and AUC of probabilities by logits."""
    p = np.clip(expit(logits), 1e-6, 1.0 - 1e-6)
    loss = float(-np.mean(np.where(y == 1, np.log(p), np.log(1.0 - p))))
    numbers = {"loss": loss, "error": error(p, y), "mean": float(p.mean()), "auc": float(auc(logits[:, None], y)[0])}
    return {name: round(number, 5) for name, number in numbers.items()}


def cell(name: str, kind: str, epsilon: float, seed: int) -> dict[str, Any]:
    """What `told` says of the answers as they are, and of those of each slope."""
    data, y = as_data(name, kind), table(name, kind)[1][2].y
    done = run(data, job("auto", name, kind, epsilon), seed=seed)
    outputs = Linear(data.features_count, 2).forward(done.parameters, data.holdout).double().numpy()
    logits = outputs[1] - outputs[0]
    by_slope = {f"{slope:g}": told(mapped(logits, slope), y) for slope in SLOPES}
    return {"share": round(float(y.mean()), 5), "plain": told(logits, y), **by_slope}


def report(scores: Scores) -> None:
    """Means over tables and seeds of log loss and calibration error, by split, map and answers."""
    print("| tables | map | ε | answers | log loss | calibration error | mean answer over share, worst | AUC |")
    print("|" + "---|" * 8)
    for (said, names), kind, epsilon in itertools.product(
        (("fitted", FITTED), ("untouched", UNTOUCHED)), MAPS, EPSILONS
    ):
        keys = [f"{name}/{kind}/ε={epsilon:g}/seed={seed}" for name in names for seed in SEEDS]
        rows = [scores.cells[key] for key in keys if key in scores.cells]
        for answers in ("plain", *(f"{slope:g}" for slope in SLOPES)) if rows else ():
            means = [statistics.fmean(row[answers][what] for row in rows) for what in ("loss", "error", "auc")]
            worst = max((row[answers]["mean"] / row["share"] for row in rows), key=lambda ratio: abs(np.log(ratio)))
            print(
                f"| {said} | {kind} | {epsilon:g} | {answers} | {means[0]:.4f} | {means[1]:.4f} | {worst:.2f} "
                f"| {means[2]:.4f} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", choices=("fitted", "untouched"))
    asked, scores = parser.parse_args(), Scores(KEPT)
    torch.set_num_threads(1)
    if asked.run is None:
        report(scores)
        return
    names = FITTED if asked.run == "fitted" else UNTOUCHED
    for seed, epsilon, kind, name in itertools.product(SEEDS, EPSILONS, MAPS, names):
        scores.fill(f"{name}/{kind}/ε={epsilon:g}/seed={seed}", lambda: cell(name, kind, epsilon, seed))  # noqa: B023
        print(name, kind, epsilon, seed, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
