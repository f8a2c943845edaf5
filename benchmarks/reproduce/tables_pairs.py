"""What pairs of columns add to bins (`gam` with `pairs`), two classes of public tables, by `auto`.

    python -m benchmarks.reproduce.tables_pairs --run
    python -m benchmarks.reproduce.tables_pairs          # the table of benchmarks/reports/tables.md

Two pairs a table, named from what the columns mean before any run, as an owner would. A pair has (16 + 1)² places where
both columns have bins. Without privacy the same features are fitted by logistic regression (L2), to say what there was
to gain.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.reproduce.runs import REPORTS, Data, run
from benchmarks.reproduce.tables import auc
from benchmarks.reproduce.tables_data import FITTED, UNTOUCHED, Split, as_data, table
from benchmarks.reproduce.tables_report import Scores, job
from core.contracts.table import TableFeatures
from worker.data.records import DenseRecords
from worker.models.linear import Linear

EPSILONS, SEEDS = (1.0,), (0, 1)
KEPT = REPORTS / "tables_pairs.json.gz"
PAIRS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "crashes": (("seatbelt", "airbag"), ("ageOFocc", "dvcat")),
    "chains": (("age", "sex"), ("kappa", "lambda")),
    "loans": (("int_rate", "term"), ("annual_inc", "funded_amnt")),
    "churn": (("total_day_minutes", "voice_mail_plan"), ("international_plan", "total_intl_calls")),
    "cuts": (("depth", "table"), ("carat", "clarity")),
    "defaults": (("balance", "student"), ("balance", "income")),
    "part time": (("education", "experience"), ("wage", "education")),
    "mothers": (("kids", "age"), ("age", "agefstm")),
    "vietnam": (("age", "sex"), ("lnhhexp", "educ")),
    "wives": (("whrswk", "hhi"), ("education", "experience")),
    "doctors": (("age", "female"), ("kids", "female")),
    "pensions": (("inc", "age"), ("marr", "fsize")),
    "insured": (("selfemp", "married"), ("health", "age")),
    "flights": (("month", "hour"), ("carrier", "origin")),
}


def with_pairs(features: TableFeatures, part: Split, pairs: tuple[tuple[str, str], ...]) -> NDArray[np.float32]:
    """The features with those of the pairs behind them: products of the two blocks' places."""
    ends = np.cumsum([0, *(column.width for column in features.columns)])
    blocks = {
        column.name: part.x[:, low:high]
        for column, (low, high) in zip(features.columns, itertools.pairwise(ends), strict=True)
    }
    more = [(blocks[a][:, :, None] * blocks[b][:, None, :]).reshape(len(part.x), -1) for a, b in pairs]
    return np.concatenate([part.x, *more], axis=1)


def paired(name: str) -> tuple[Data, tuple[Split, Split]]:
    """A table with its pairs for scrimp_server.inline, and its training and test split."""
    features, (train, _, test) = table(name, "bins")
    parts = [Split(with_pairs(features, each, PAIRS[name]), each.y) for each in (train, test)]
    declared = TableFeatures.model_validate(features.model_dump() | {"pairs": PAIRS[name]})
    records, held = (DenseRecords(torch.from_numpy(each.x), torch.from_numpy(each.y)) for each in parts)
    plain = as_data(name, "bins")
    return Data(plain.task, declared.model_dump(mode="json"), records, held, declared.width, 2), (parts[0], parts[1])


def private(name: str, epsilon: float, seed: int) -> dict[str, float]:
    """AUC by `auto`."""
    data, (_, test) = paired(name)
    done = run(data, job("auto", name, "bins", epsilon), seed=seed)
    outputs = Linear(data.features_count, 2).forward(done.parameters, data.holdout).numpy()
    return {"auc": round(float(auc((outputs[1] - outputs[0])[:, None], test.y)[0]), 4)}


def public(name: str) -> dict[str, float]:
    """AUC of logistic regression without privacy."""
    from sklearn.linear_model import LogisticRegression

    _, (train, test) = paired(name)
    scores = LogisticRegression(max_iter=500).fit(train.x, train.y).predict_proba(test.x)[:, 1]
    return {"auc": round(float(auc(scores[:, None], test.y)[0]), 4)}


def report(scores: Scores) -> None:
    """Prints a row for each table: without privacy and private, without pairs and with them."""
    plain = Scores(REPORTS / "tables_scores.json.gz")
    print("| table | logistic, bins | with pairs | auto, bins, ε = 1 | with pairs |")
    print("|" + "---|" * 5)
    rows = []
    for name in PAIRS:
        row = [100.0 * plain.cells[f"logistic/{name}/bins"]["auc"], 100.0 * scores.cells[f"logistic/{name}"]["auc"]]
        for epsilon in EPSILONS:
            for prefix, of in ((f"auto/{name}/bins", plain), (f"auto/{name}", scores)):
                row.append(
                    statistics.fmean(100.0 * of.cells[f"{prefix}/ε={epsilon:g}/seed={seed}"]["auc"] for seed in SEEDS)
                )
        rows.append(row)
        print(f"| {name} |", " | ".join(f"{each:.1f}" for each in row), "|")
    print("| mean |", " | ".join(f"{each:.1f}" for each in np.mean(rows, axis=0)), "|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true")
    asked, scores = parser.parse_args(), Scores(KEPT)
    torch.set_num_threads(1)
    for name in (*FITTED, *UNTOUCHED) if asked.run else ():
        for epsilon, seed in itertools.product(EPSILONS, SEEDS):
            scores.fill(f"auto/{name}/ε={epsilon:g}/seed={seed}", lambda: private(name, epsilon, seed))  # noqa: B023
        scores.fill(f"logistic/{name}", lambda: public(name))  # noqa: B023 - called at once
        print(name, file=sys.stderr, flush=True)
    report(scores)


if __name__ == "__main__":
    main()
