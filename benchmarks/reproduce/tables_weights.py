"""Whether weights of classes buy what a threshold does not: two classes of public tables, by `auto` with bins.

    python -m benchmarks.reproduce.tables_weights --run
    python -m benchmarks.reproduce.tables_weights          # the table of benchmarks/reports/tables.md

"balanced" has 1/(2 share) of the true shares: the best that a declaration or a paid count says. Beside it is the job
without weights, whose answers undo the clipping, at two thresholds: a half, and the share of positives, where balanced
accuracy is largest if answers are right. All fourteen tables; nothing is chosen by these runs but a default.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.reproduce.runs import REPORTS, run
from benchmarks.reproduce.tables import auc
from benchmarks.reproduce.tables_data import FITTED, UNTOUCHED, as_data, table
from benchmarks.reproduce.tables_report import Scores, job
from core.privacy.two_class_answers import answer_logits, clip_ratios
from worker.models.linear import Linear

EPSILONS, SEEDS = (1.0, 4.0), (0, 1)
FRESH = 0.4 / np.sqrt(2.0)  # C by `auto` over ‖x‖
KEPT = REPORTS / "tables_weights.json.gz"
SAID = ("auc", "plain", "threshold", "weighted auc", "weighted", "weighted answers")


def balanced(flags: NDArray[np.bool_], y: NDArray[np.int64]) -> float:
    """The mean recall of the two classes."""
    return float((flags[y == 1].mean() + (~flags[y == 0]).mean()) / 2.0)


def cell(name: str, epsilon: float, seed: int) -> dict[str, float]:
    """AUC and balanced accuracy, in the order of SAID: without weights, and with them."""
    data, splits = as_data(name, "bins"), table(name, "bins")[1]
    share, y, found = float(splits[0].y.mean()), splits[2].y, list[float]()
    weights = (0.5 / (1.0 - share), 0.5 / share)
    for each in ((1.0, 1.0), weights):
        asked = job("auto", name, "bins", epsilon)
        if each != (1.0, 1.0):
            asked = asked | {"class_weights": list(each)}
        done = run(data, asked, seed=seed)
        outputs = Linear(data.features_count, 2).forward(done.parameters, data.holdout).double().numpy()
        scores = outputs[1] - outputs[0]
        answers = answer_logits(scores, clip_ratios(1.0, FRESH * max(each), each))
        by_share = answers > np.log(share / (1.0 - share))
        found += [float(auc(scores[:, None], y)[0]), balanced(scores > 0.0, y), balanced(by_share, y)]
    return {what: round(number, 4) for what, number in zip(SAID, found, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true")
    asked, scores = parser.parse_args(), Scores(KEPT)
    torch.set_num_threads(1)
    names = (*FITTED, *UNTOUCHED)
    if asked.run:
        for seed, epsilon, name in itertools.product(SEEDS, EPSILONS, names):
            scores.fill(f"{name}/ε={epsilon:g}/seed={seed}", lambda: cell(name, epsilon, seed))  # noqa: B023
            print(name, epsilon, seed, file=sys.stderr, flush=True)
    print("| table | ε |", " | ".join(SAID), "|")
    print("|" + "---|" * (len(SAID) + 2))
    rows = []
    for epsilon, name in itertools.product(EPSILONS, names):
        cells = [scores.cells.get(f"{name}/ε={epsilon:g}/seed={seed}") for seed in SEEDS]
        means = [statistics.fmean(100.0 * each[what] for each in cells if each is not None) for what in SAID]
        rows.append(means)
        print(f"| {name} | {epsilon:g} |", " | ".join(f"{each:.1f}" for each in means), "|")
    print("| mean | |", " | ".join(f"{each:.1f}" for each in np.mean(rows, axis=0)), "|")


if __name__ == "__main__":
    main()
