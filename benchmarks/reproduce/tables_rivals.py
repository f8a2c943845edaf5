"""DP-EBM (interpret 0.7.8) and DP logistic regression (diffprivlib 0.6.6), defaults, on the tables of tables_data.

    pip install --target /tmp/rivals --no-deps interpret-core==0.7.8 diffprivlib==0.6.6 scikit-learn==1.5.2
    PYTHONPATH=.:/tmp/rivals python -m benchmarks.reproduce.tables_rivals

The libraries are no part of Scrimp's environment. DP-EBM sees the cells as they are declared: numbers within their
ranges, missing ones as the middle, categories by their places. DP logistic regression, of pure ε by objective
perturbation, sees the scaled features of both maps, with the largest ‖x‖ that their declaration allows; the better map
is told. Kept in benchmarks/reports/reproduce/tables_rivals.json.gz.
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
import warnings
from collections.abc import Sequence

import numpy as np

from benchmarks.reproduce.runs import REPORTS
from benchmarks.reproduce.tables import DELTA, EPSILONS, auc
from benchmarks.reproduce.tables_data import FITTED, MAPS, UNTOUCHED, Split, table
from benchmarks.reproduce.tables_report import KEPT as OURS
from benchmarks.reproduce.tables_report import PUBLIC, SEEDS, Scores
from core.contracts.table import CategoryColumn, TableFeatures

KEPT = REPORTS / "tables_rivals.json.gz"
ONE_SEED = SEEDS[:1]  # of DP logistic regression
LEAST = 5_000  # training records of a table that the aims count


def cells(features: TableFeatures, part: Split) -> np.ndarray:
    """The declared cells of scaled features: numbers in [−1, 1], places of categories, (n, columns)."""
    found, at = [], 0
    for column in features.columns:
        block = part.x[:, at : at + column.width]
        found.append(block.argmax(axis=1) if isinstance(column, CategoryColumn) else block[:, 0])
        at += column.width
    return np.stack(found, axis=1)


def fitted(name: str, epsilon: float, seed: int) -> dict[str, float]:
    """AUC of one DP-EBM."""
    from interpret.privacy import DPExplainableBoostingClassifier

    features, (train, _, test) = table(name, "linear")
    kinds = ["nominal" if isinstance(each, CategoryColumn) else "continuous" for each in features.columns]
    bounds = np.array(
        [[0.0, each.width - 1.0] if isinstance(each, CategoryColumn) else [-1.0, 1.0] for each in features.columns]
    )
    model = DPExplainableBoostingClassifier(
        feature_types=kinds, privacy_bounds=bounds, epsilon=epsilon, delta=DELTA, random_state=seed, n_jobs=1
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(cells(features, train), train.y)
        scores = model.predict_proba(cells(features, test))[:, 1]
    return {"auc": round(float(auc(scores[:, None], test.y)[0]), 4)}


def most_length(features: TableFeatures) -> float:
    """The largest ‖x‖: a number, or a block, has at most 1; a flag stands beside a number that is 0 then."""
    return math.sqrt(len(features.columns) + len(features.pairs))


def objective(name: str, kind: str, epsilon: float, seed: int) -> dict[str, float]:
    """AUC of one DP logistic regression."""
    from diffprivlib.models import LogisticRegression

    features, (train, _, test) = table(name, kind)
    model = LogisticRegression(
        epsilon=epsilon, data_norm=most_length(features), max_iter=1000, random_state=seed, n_jobs=1
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(train.x.astype(np.float64), train.y)
        scores = model.decision_function(test.x.astype(np.float64))
    return {"auc": round(float(auc(scores[:, None], test.y)[0]), 4)}


def report(scores: Scores) -> None:
    """Prints a row for each table of at least LEAST training records, and what the aims of tables come to."""
    ours, names = Scores(OURS), [name for name in (*FITTED, *UNTOUCHED) if len(table(name, "bins")[1][0].y) >= LEAST]
    print("| table | logistic | boosting | auto, bins | DP-EBM | DP logistic regression |")
    print("|" + "---|" * 6)
    below, boosted, leads, others, falls = [], [], [], [], []
    for name in names:
        best = {how: max(100.0 * ours.cells[f"{how}/{name}/{kind}"]["auc"] for kind in MAPS) for how in PUBLIC}
        auto = [ours.of("auto", name, "bins", epsilon) for epsilon in EPSILONS]
        means = [statistics.mean(each) for each in auto]
        ebm = [statistics.mean(_aucs(scores, name, epsilon, SEEDS)) for epsilon in EPSILONS]
        both = [
            [statistics.mean(_aucs(scores, f"objective/{name}/{kind}", e, ONE_SEED)) for e in EPSILONS] for kind in MAPS
        ]
        objective = max(both, key=statistics.mean)
        below.append(best["logistic"] - means[1])
        boosted.append(best["boosting"] - means[1])
        leads += [mine - theirs for mine, theirs in zip(means, ebm, strict=True)]
        others += [mine - theirs for mine, theirs in zip(means, objective, strict=True)]
        falls += [
            statistics.mean(low) - statistics.mean(high) - statistics.stdev(low) - statistics.stdev(high)
            for low, high in itertools.pairwise(auto)
        ]
        shown = (" / ".join(f"{each:.1f}" for each in row) for row in (means, ebm, objective))
        print(f"| {name} | {best['logistic']:.1f} | {best['boosting']:.1f} |", " | ".join(shown), "|")
    print(f"within 2.0 of logistic regression at ε = 1: {sum(each <= 2.0 for each in below)} of {len(names)}")
    print(f"below boosting at ε = 1: {statistics.mean(boosted):.2f} in the mean")
    for rival, of in (("DP-EBM", leads), ("DP logistic regression", others)):
        print(f"at least {rival}: {sum(each >= 0.0 for each in of)} of {len(of)}, mean lead {statistics.mean(of):.2f}")
    print(f"more ε gives less beyond both spreads: {sum(each > 0.0 for each in falls)} of {len(falls)}")


def _aucs(scores: Scores, prefix: str, epsilon: float, seeds: Sequence[int]) -> list[float]:
    return [100.0 * scores.cells[f"{prefix}/ε={epsilon:g}/seed={seed}"]["auc"] for seed in seeds]


def main() -> None:
    scores = Scores(KEPT)
    for seed, epsilon, kind, name in itertools.product(ONE_SEED, EPSILONS, MAPS, (*UNTOUCHED, *FITTED)):
        cell = f"objective/{name}/{kind}/ε={epsilon:g}/seed={seed}"
        scores.fill(cell, lambda: objective(name, kind, epsilon, seed))  # noqa: B023 - called at once
    for seed, epsilon, name in itertools.product(SEEDS, EPSILONS, (*UNTOUCHED, *FITTED)):
        scores.fill(f"{name}/ε={epsilon:g}/seed={seed}", lambda: fitted(name, epsilon, seed))  # noqa: B023 - at once
        print(name, epsilon, seed, file=sys.stderr, flush=True)
    report(scores)


if __name__ == "__main__":
    main()
