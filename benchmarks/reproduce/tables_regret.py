"""How far `auto` is under an oracle over rate, C and T, on the twelve tables of at least 5,000 training records.

    python -m benchmarks.reproduce.tables_regret --run
    python -m benchmarks.reproduce.tables_regret          # the table of benchmarks/reports/tables.md

The oracle's choices are the second grid of benchmarks.reproduce.tables: four T, three C and eleven κ. The largest of
132 noisy scores is too good by chance, so what picks never scores: the seeds are halved, one half picks a cell by its
mean AUC, the other half scores it, and once more the other way round. "by validation" picks and scores on different
records too, as somebody with a validation split could. "by test" picks on the test split itself, by the other half's
noise: nobody can, so it bounds the regret from above. `auto` is the service's own code on the same seeds.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.reproduce.runs import REPORTS
from benchmarks.reproduce.tables import (
    DECLARED_CLIPS,
    DECLARED_KAPPAS,
    DECLARED_STEPS,
    EPSILONS,
    KEPT_DECLARED,
    Runs,
    grid,
)
from benchmarks.reproduce.tables_data import FITTED, UNTOUCHED
from benchmarks.reproduce.tables_report import KEPT as KEPT_SCORES
from benchmarks.reproduce.tables_report import Scores, private

KEPT = REPORTS / "tables_regret.json.gz"
SMALL = ("loans", "defaults", "pensions", "insured")  # below 7,000 training records: twice the seeds
NAMES = tuple(name for name in (*FITTED, *UNTOUCHED) if name not in ("chains", "churn"))  # below 5,000
VALIDATION, TEST = 0, 1


def seeds(name: str) -> range:
    """The seeds of a table's grid and of its `auto` runs."""
    return range(8 if name in SMALL else 4)


def fill(runs: Scores, grids: Runs, scores: Scores) -> None:
    """Runs what neither this file nor the earlier grid and report keep."""
    for name in sorted(NAMES, key=lambda name: name not in SMALL):
        for seed, steps in itertools.product(seeds(name), DECLARED_STEPS):
            cell = f"{name}/bins/T={steps}/seed={seed}"
            if cell not in grids.cells:
                runs.fill(cell, lambda: grid(name, "bins", steps, seed, declared=True))  # noqa: B023 - called at once
        for seed, epsilon in itertools.product(seeds(name), EPSILONS):
            cell = f"auto/{name}/bins/ε={epsilon:g}/seed={seed}"
            if cell not in scores.cells:
                runs.fill(cell, lambda: private("auto", name, "bins", epsilon, seed))  # noqa: B023 - called at once
        print(name, file=sys.stderr, flush=True)


def picked(by: NDArray[np.float64], score: NDArray[np.float64]) -> float:
    """The mean score of the cell that the other half of the seeds picks; both (seeds, cells)."""
    halves = np.arange(len(by)) % 2
    return statistics.fmean(
        float(score[halves != half, by[halves == half].mean(axis=0).argmax()].mean()) for half in (0, 1)
    )


def report(runs: Scores, grids: Runs, scores: Scores) -> None:
    """Prints regret in points of AUC by table and ε, and its mean and largest."""
    cells = scores.cells | grids.cells | runs.cells
    shape = (len(EPSILONS), len(DECLARED_CLIPS), len(DECLARED_KAPPAS), 2)
    regrets: dict[str, list[float]] = {"validation": [], "test": [], "one seed set": []}
    print("| table |", " | ".join(f"ε = {epsilon:g}: by validation | by test" for epsilon in EPSILONS), "|")
    print("|" + "---|" * (1 + 2 * len(EPSILONS)))
    for name in NAMES:
        whole = np.array(
            [
                [np.reshape(cells[f"{name}/bins/T={steps}/seed={seed}"], shape) for steps in DECLARED_STEPS]
                for seed in seeds(name)
            ]
        )
        row = []
        for place, epsilon in enumerate(EPSILONS):
            auto = statistics.fmean(cells[f"auto/{name}/bins/ε={epsilon:g}/seed={seed}"]["auc"] for seed in seeds(name))
            by_cell = whole[:, :, place].reshape(len(whole), -1, 2)
            validation, test = by_cell[..., VALIDATION], by_cell[..., TEST]
            pair = [100.0 * (picked(by, test) - auto) for by in (validation, test)]
            row.extend(pair)
            regrets["validation"].append(pair[0])
            regrets["test"].append(pair[1])
            regrets["one seed set"].append(100.0 * float(test.mean(axis=0).max() - auto))
        print(f"| {name} |", " | ".join(f"{regret:.1f}" for regret in row), "|")
    for picks, numbers in regrets.items():
        print(f"{picks}: mean {statistics.fmean(numbers):.2f}, largest {max(numbers):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    runs, grids, scores = Scores(KEPT), Runs(KEPT_DECLARED), Scores(KEPT_SCORES)
    if arguments.run:
        fill(runs, grids, scores)
    report(runs, grids, scores)


if __name__ == "__main__":
    main()
