"""How far private models of tables are below the same model without privacy, by μ n/d: the table of
app.hpo.accuracy_outlook.

    python -m benchmarks.reproduce.tables_outlook --run     # more ε than tables_report: two seeds, some minutes
    python -m benchmarks.reproduce.tables_outlook           # prints the table, and how well it tells tables it left out

The fourteen tables of benchmarks/reports/tables.md with 16 bins, jobs by `auto`; without privacy: logistic regression.
d is the number of features, n that of training records, and noise in a coordinate falls with μ n.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from typing import NamedTuple

import torch

from app.hpo.accuracy_outlook import RUNS, Kept, told
from benchmarks.reproduce.runs import REPORTS
from benchmarks.reproduce.tables import DELTA, EPSILONS
from benchmarks.reproduce.tables_data import FITTED, UNTOUCHED, table
from benchmarks.reproduce.tables_report import KEPT, SEEDS, Scores, private
from core.privacy.gdp import mu_from_epsilon

MORE, MORE_SEEDS = (0.125, 0.25, 2.0, 8.0), (0, 1)
MORE_KEPT = REPORTS / "tables_outlook.json.gz"
NAMES = (*FITTED, *UNTOUCHED)
EDGES = (0.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, math.inf)  # of μ n/d


class Shortfall(NamedTuple):
    """A table at an ε: μ n/d, and the points of AUC that its mean is below the model without privacy."""

    name: str
    signal: float
    points: float


def shortfalls() -> list[Shortfall]:
    """All kept runs."""
    kept, more = Scores(KEPT), Scores(MORE_KEPT)
    found = []
    for name, epsilon in itertools.product(NAMES, (*EPSILONS, *MORE)):
        features, (train, _, _) = table(name, "bins")
        scores, seeds = (kept, SEEDS) if epsilon in EPSILONS else (more, MORE_SEEDS)
        auc = statistics.mean(
            100.0 * scores.cells[f"auto/{name}/bins/ε={epsilon:g}/seed={seed}"]["auc"] for seed in seeds
        )
        best = 100.0 * kept.cells[f"logistic/{name}/bins"]["auc"]
        found.append(
            Shortfall(name, mu_from_epsilon(epsilon, DELTA) * len(train.y) / features.width, max(best - auc, 0.0))
        )
    return found


def tabled(of: list[Shortfall]) -> tuple[Kept, ...]:
    """A row for each part of the range of μ n/d: the quartiles of its runs, which never rise."""
    rows, last = list[Kept](), (math.inf, math.inf, math.inf)
    for low, high in itertools.pairwise(EDGES):
        inside = [each for each in of if low <= each.signal < high]
        quartiles = statistics.quantiles((each.points for each in inside), n=4)
        last = tuple(round(min(new, old), 1) for new, old in zip(quartiles, last, strict=True))
        middle = math.exp(statistics.mean(math.log(each.signal) for each in inside))
        rows.append(Kept(round(middle, 1), len(inside), last[1], last[0], last[2]))
    return tuple(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true")
    torch.set_num_threads(1)
    if parser.parse_args().run:
        scores = Scores(MORE_KEPT)
        for epsilon, name, seed in itertools.product(MORE, NAMES, MORE_SEEDS):
            scores.fill(
                f"auto/{name}/bins/ε={epsilon:g}/seed={seed}",
                lambda: private("auto", name, "bins", epsilon, seed),  # noqa: B023 - called at once
            )
    every = shortfalls()
    for row in tabled(every):
        print(f"    {row},")
    print("as committed:", tabled(every) == RUNS)
    inside, errors = 0, []
    for name in NAMES:
        rest = tabled([each for each in every if each.name != name])
        for each in every:
            if each.name == name:
                middle, low, high = told(each.signal, rest)
                inside += low <= each.points <= high
                errors.append(abs(each.points - middle))
    print(f"left out: {inside} of {len(errors)} within the quartiles; mean |error| {statistics.mean(errors):.2f}")


if __name__ == "__main__":
    main()
