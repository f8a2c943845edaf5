"""DP-EBM (interpret 0.7.8, defaults) on the tables of benchmarks.reproduce.tables_data, with the declared ranges.

    pip install --target /tmp/rivals --no-deps interpret-core==0.7.8
    PYTHONPATH=.:/tmp/rivals python -m benchmarks.reproduce.tables_rivals

The library is no part of Scrimp's environment. It sees the cells as they are declared: numbers within their ranges,
missing ones as the middle, categories by their places. Kept in benchmarks/reports/reproduce/tables_rivals.json.gz.
"""

from __future__ import annotations

import itertools
import sys
import warnings

import numpy as np

from app.contracts.table import CategoryColumn, TableFeatures
from benchmarks.reproduce.runs import REPORTS
from benchmarks.reproduce.tables import DELTA, EPSILONS, auc
from benchmarks.reproduce.tables_data import FITTED, UNTOUCHED, Split, table
from benchmarks.reproduce.tables_report import SEEDS, Scores

KEPT = REPORTS / "tables_rivals.json.gz"


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


def main() -> None:
    scores = Scores(KEPT)
    for seed, epsilon, name in itertools.product(SEEDS, EPSILONS, (*UNTOUCHED, *FITTED)):
        scores.fill(f"{name}/ε={epsilon:g}/seed={seed}", lambda: fitted(name, epsilon, seed))  # noqa: B023 - at once
        print(name, epsilon, seed, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
