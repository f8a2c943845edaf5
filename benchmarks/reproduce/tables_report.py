"""What `steps`, `max_grad_norm` and `learning_rate` by "auto" reach on public tables, by the service's own code.

    python -m benchmarks.reproduce.tables_report --run fitted     # or untouched: once, after the constants are frozen
    python -m benchmarks.reproduce.tables_report --run numbers    # or untouched-numbers: R² of regression
    python -m benchmarks.reproduce.tables_report                  # prints the tables of benchmarks/reports/tables.md

AUC on the test split, three seeds. "50 steps" is what was usual before: T = 50, C = 1 and the rate of nine public sets.
"auto" names nothing but the data set and ε. Linear: numbers on their declared ranges. Bins: 16 of the range, wide
ranges in logs.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from app.hpo.rates import PublicNumbers, rate_of
from benchmarks.reproduce.runs import REPORTS, read_archive, run, write_archive
from benchmarks.reproduce.tables import DELTA, EPSILONS, auc
from benchmarks.reproduce.tables_data import (
    FITTED,
    MAPS,
    NUMBERS,
    SOURCES,
    UNTOUCHED,
    UNTOUCHED_NUMBERS,
    as_data,
    table,
)
from benchmarks.reproduce.tables_numbers import r_squared
from core.contracts.optimizers import DpSgd
from core.privacy.gdp import mu_from_epsilon
from worker.models.linear import Linear

SEEDS = (0, 1, 2)
KEPT = REPORTS / "tables_scores.json.gz"
OPTIMIZER = {"kind": "dp_sgd", "momentum": 0.9, "free_step": True}
JOBS = (("50 steps", "linear"), ("50 steps", "bins"), ("auto", "linear"), ("auto", "bins"))
RUNS = ("fitted", "untouched", "numbers", "untouched-numbers")
PUBLIC = ("logistic", "boosting")


def job(how: str, name: str, kind: str, epsilon: float) -> dict[str, Any]:
    """A JobSpec."""
    common = {
        "model": {"kind": "linear", "bias": False},
        "privacy": {"target_epsilon": epsilon, "target_delta": DELTA},
    }
    if how == "auto":
        return common | {"optimizer": OPTIMIZER}
    features, (train, _, _) = table(name, kind)
    steps = 50
    numbers = PublicNumbers(
        steps=steps,
        expected_batch_size=len(train.y),
        noise_multiplier=math.sqrt(steps) / mu_from_epsilon(epsilon, DELTA),
        max_grad_norm=1.0,
        length=features.length(features.width),
        outputs=2,
    )
    rate = rate_of(DpSgd.model_validate(OPTIMIZER), numbers).value
    return common | {
        "optimizer": OPTIMIZER | {"learning_rate": rate},
        "clipping": {"max_grad_norm": 1.0},
        "length": {"steps": steps},
    }


def private(how: str, name: str, kind: str, epsilon: float, seed: int) -> dict[str, float]:
    """AUC of one job, its T and its seconds."""
    data = as_data(name, kind)
    done = run(data, job(how, name, kind, epsilon), seed=seed)
    outputs = Linear(data.features_count, 2).forward(done.parameters, data.holdout).numpy()
    score = float(auc((outputs[1] - outputs[0])[:, None], table(name, kind)[1][2].y)[0])
    return {"auc": round(score, 4), "steps": done.steps, "seconds": round(done.seconds, 2)}


def public(how: str, name: str, kind: str) -> dict[str, float]:
    """AUC without privacy: logistic regression on these features, or boosted trees."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    _, (train, _, test) = table(name, kind)
    model = LogisticRegression(max_iter=2000) if how == "logistic" else HistGradientBoostingClassifier(random_state=0)
    scores = model.fit(train.x, train.y).predict_proba(test.x)[:, 1]
    return {"auc": round(float(auc(scores[:, None], test.y)[0]), 4)}


def numbers(name: str, kind: str, epsilon: float, seed: int) -> dict[str, float]:
    """R² of one regression by "auto" whose target has a declared range."""
    data = as_data(name, kind)
    job = {
        "model": {"kind": "linear", "bias": False},
        "privacy": {"target_epsilon": epsilon, "target_delta": DELTA},
        "optimizer": OPTIMIZER,
    }
    done = run(data, job, seed=seed)
    outputs = Linear(data.features_count, 1).forward(done.parameters, data.holdout).numpy()
    score = float(r_squared(outputs.T, table(name, kind)[1][2], SOURCES[name].range)[0])
    return {"r_squared": round(score, 4), "steps": done.steps, "seconds": round(done.seconds, 2)}


def public_numbers(how: str, name: str, kind: str) -> dict[str, float]:
    """R² without privacy: least squares, or boosted trees."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import Ridge

    _, (train, _, test) = table(name, kind)
    model = Ridge(alpha=1.0) if how == "squares" else HistGradientBoostingRegressor(random_state=0)
    errors = model.fit(train.x, train.y).predict(test.x) - test.y
    return {"r_squared": round(float(1.0 - np.mean(errors**2) / test.y.var()), 4)}


class Scores:
    """Scores by question in a compressed JSON file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cells = read_archive(path)

    def fill(self, name: str, score: Callable[[], dict[str, Any]]) -> None:
        """Scores a cell unless it is kept."""
        if name not in self.cells:
            self.cells[name] = score()
            write_archive(self.path, self.cells)

    def of(self, how: str, name: str, kind: str, epsilon: float) -> list[float]:
        """AUC of each seed, in points."""
        return [100.0 * self.cells[f"{how}/{name}/{kind}/ε={epsilon:g}/seed={seed}"]["auc"] for seed in SEEDS]


def fill(scores: Scores, names: Iterable[str]) -> None:
    """All runs on these tables."""
    began = time.perf_counter()
    for name in names:
        for kind, how in itertools.product(MAPS, PUBLIC):
            scores.fill(f"{how}/{name}/{kind}", lambda: public(how, name, kind))  # noqa: B023 - called at once
        for (how, kind), epsilon, seed in itertools.product(JOBS, EPSILONS, SEEDS):
            cell = f"{how}/{name}/{kind}/ε={epsilon:g}/seed={seed}"
            scores.fill(cell, lambda: private(how, name, kind, epsilon, seed))  # noqa: B023 - called at once
        print(f"{time.perf_counter() - began:6.0f} s  {name}", file=sys.stderr, flush=True)


def fill_numbers(scores: Scores, names: Iterable[str]) -> None:
    """All regressions on these tables."""
    for name, kind in itertools.product(names, MAPS):
        for how in ("squares", "boosting"):
            scores.fill(f"{how}/{name}/{kind}", lambda: public_numbers(how, name, kind))  # noqa: B023 - called at once
        for epsilon, seed in itertools.product(EPSILONS, SEEDS):
            cell = f"auto/{name}/{kind}/ε={epsilon:g}/seed={seed}"
            scores.fill(cell, lambda: numbers(name, kind, epsilon, seed))  # noqa: B023 - called at once


def report_numbers(scores: Scores, names: Iterable[str]) -> None:
    """Prints a table of R²: a row for each data set."""
    titles = [f"auto, {kind}, ε = {epsilon:g}" for kind in MAPS for epsilon in EPSILONS]
    print("| table | least squares, linear | bins | boosting |", " | ".join(titles), "|")
    print("|" + "---|" * (len(titles) + 4))
    for name in names:
        row = [scores.cells[f"squares/{name}/{kind}"]["r_squared"] for kind in MAPS]
        row.append(max(scores.cells[f"boosting/{name}/{kind}"]["r_squared"] for kind in MAPS))
        for kind, epsilon in itertools.product(MAPS, EPSILONS):
            cells = [scores.cells[f"auto/{name}/{kind}/ε={epsilon:g}/seed={seed}"] for seed in SEEDS]
            row.append(statistics.mean(cell["r_squared"] for cell in cells))
        print(f"| {name} |", " | ".join(f"{each:.3f}" for each in row), "|")


def report(scores: Scores, names: Iterable[str]) -> None:
    """Prints a table: a row for each data set."""
    titles = [f"{how}, {kind}, ε = {epsilon:g}" for how, kind in JOBS for epsilon in EPSILONS]
    print("| table | logistic | boosting |", " | ".join(titles), "|")
    print("|" + "---|" * (len(titles) + 3))
    rows = []
    for name in names:
        best = [100.0 * max(scores.cells[f"{how}/{name}/{kind}"]["auc"] for kind in MAPS) for how in PUBLIC]
        row = [*best, *(statistics.mean(scores.of(how, name, kind, eps)) for how, kind in JOBS for eps in EPSILONS)]
        rows.append(row)
        print(f"| {name} |", " | ".join(f"{each:.1f}" for each in row), "|")
    if rows:
        print("| mean |", " | ".join(f"{each:.1f}" for each in np.mean(rows, axis=0)), "|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", choices=RUNS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    scores = Scores(KEPT)
    if asked.run in ("fitted", "untouched"):
        fill(scores, FITTED if asked.run == "fitted" else UNTOUCHED)
    if asked.run in ("numbers", "untouched-numbers"):
        fill_numbers(scores, NUMBERS if asked.run == "numbers" else UNTOUCHED_NUMBERS)
    for names in (FITTED, UNTOUCHED):
        report(scores, [each for each in names if f"auto/{each}/bins/ε=4/seed=2" in scores.cells])
        print()
    both = (*NUMBERS, *UNTOUCHED_NUMBERS)
    report_numbers(scores, [each for each in both if f"auto/{each}/bins/ε=4/seed=2" in scores.cells])


if __name__ == "__main__":
    main()
