"""How many bins a number takes by `auto`: a rule from μ, n and the number of columns, all public.

    python -m benchmarks.reproduce.tables_bins --fit          # the eleven fitted tables
    python -m benchmarks.reproduce.tables_bins --untouched    # six others, once, after the rule is frozen
    python -m benchmarks.reproduce.tables_bins                # the tables of benchmarks/reports/tables.md

Numbers on their ranges, or in 4, 8, 16 or 32 equal bins; T, C and the rate are those of app.hpo.rates for each map. All
training records, or their first 1,000, as a small hospital has them. The update is that of benchmarks.reproduce.tables.
The rule is chosen by the validation split; what is told is of the test split.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
import time
from collections.abc import Iterable

import numpy as np
import torch

from app.hpo.rates import TABLES, PublicNumbers, norm_of, rate_of, steps_of
from benchmarks.reproduce.runs import REPORTS
from benchmarks.reproduce.tables import DELTA, EPSILONS, MOMENTUM, auc, trained
from benchmarks.reproduce.tables_data import FITTED, FRESH, UNTOUCHED, Split, table
from benchmarks.reproduce.tables_report import Scores
from core.contracts.optimizers import DpSgd
from core.privacy.gdp import mu_from_epsilon

KINDS = ("linear", "4 bins", "8 bins", "16 bins", "32 bins")
SIZES = (1_000, None)  # training records; None: all
REPEATS = 4
OPTIMIZER = DpSgd(momentum=MOMENTUM)
KEPT = REPORTS / "tables_bins.json.gz"
# Frozen before --untouched: of thresholds on μ n/columns and on μ n, between 8 and 16 bins and between 16 and 32, the
# best by the validation split of the fitted tables was 8 bins below 96 and 32 from 350 (only `cuts` gains from 32: it
# stays at 16).
FEW, USUAL, SIGNAL = "8 bins", "16 bins", 100.0


def ruled(cell: dict[str, float]) -> str:
    """The map of the rule, from the public numbers of a cell."""
    return FEW if cell["mu n"] < SIGNAL * cell["columns"] else USUAL


def scores_of(name: str, kind: str, size: int | None, epsilon: float) -> dict[str, float]:
    """AUC on the validation and test splits, means over repeats, and the numbers that a rule may see."""
    features, (whole, *parts) = table(name, kind)
    train = Split(whole.x[:size], whole.y[:size])
    mu, records = mu_from_epsilon(epsilon, DELTA), len(train.y)
    length, spread = features.length(features.width), features.spread(features.width)
    norm = norm_of(length, 2, TABLES).value

    def public(steps: int, sigma: float) -> PublicNumbers:
        return PublicNumbers(steps, records, sigma, norm, length, 2, False, spread)

    steps = int(steps_of(OPTIMIZER, public(1, 1.0), mu, TABLES).value)
    sigma = math.sqrt(steps) / mu
    rate = rate_of(OPTIMIZER, public(steps, sigma), TABLES).value
    settings = [torch.full((REPEATS,), each) for each in (norm, sigma, rate)]
    weights = trained(train, steps, settings[0], settings[1], settings[2], seed=0).numpy()
    valid, test = (100.0 * auc(part.x @ weights, part.y) for part in parts)
    numbers = sum(column.kind == "number" for column in features.columns)
    return {
        "valid": round(float(valid.mean()), 3),
        "test": round(float(test.mean()), 3),
        "spread": round(float(test.std(ddof=1)), 3),
        "steps": steps,
        "records": records,
        "columns": len(features.columns),
        "numbers": numbers,
        "width": features.width,
        "mu n": round(mu * records, 1),
    }


def fill(scores: Scores, names: Iterable[str]) -> None:
    """All cells of these tables."""
    began = time.perf_counter()
    for name in names:
        for size, kind, epsilon in itertools.product(SIZES, KINDS, EPSILONS):
            cell = f"{name}/{size or 'all'}/{kind}/ε={epsilon:g}"
            scores.fill(cell, lambda: scores_of(name, kind, size, epsilon))  # noqa: B023 - called at once
        print(f"{time.perf_counter() - began:6.0f} s  {name}", file=sys.stderr, flush=True)


def report(scores: Scores, names: Iterable[str]) -> None:
    """Prints mean AUC on the test split by size, ε and map."""
    names = [name for name in names if f"{name}/all/32 bins/ε=4" in scores.cells]
    if not names:
        return
    print("| records | ε |", " | ".join(KINDS), "| rule |")
    print("|---|---|" + "---|" * (len(KINDS) + 1))
    for size, epsilon in itertools.product(SIZES, EPSILONS):
        row = [
            statistics.fmean(scores.cells[f"{name}/{size or 'all'}/{kind}/ε={epsilon:g}"]["test"] for name in names)
            for kind in KINDS
        ]
        cells = [f"{name}/{size or 'all'}/{{}}/ε={epsilon:g}" for name in names]
        row.append(
            statistics.fmean(
                scores.cells[cell.format(ruled(scores.cells[cell.format(USUAL)]))]["test"] for cell in cells
            )
        )
        print(f"| {size or 'all'} | {epsilon:g} |", " | ".join(f"{mean:.1f}" for mean in row), "|")
    print(f"{len(names)} tables, mean spread of repeats", end=" ")
    print(f"{np.mean([cell['spread'] for cell in scores.cells.values()]):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("fit", "untouched"):
        parser.add_argument(f"--{option}", action="store_true")
    arguments, scores = parser.parse_args(), Scores(KEPT)
    torch.set_num_threads(1)
    if arguments.fit:
        fill(scores, FITTED)
    if arguments.untouched:
        fill(scores, (*UNTOUCHED, *FRESH))
    for names in (FITTED, UNTOUCHED, FRESH):
        report(scores, names)


if __name__ == "__main__":
    main()
