"""The error of statistics jobs on two public tables, beside OpenDP's at the same ρ; writes reports/statistics.md.

    python -m benchmarks.statistics_error PYTHON

PYTHON is an interpreter with `opendp` and `numpy`, such as that of a virtual environment: OpenDP is no dependency here.
Both sides get the same columns, declared ranges and ρ; each query has ρ by itself. Errors are against exact answers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.reproduce.rate_data import _table
from core.contracts.dataset_spec import RegressionTask
from core.contracts.job_spec import JobSpec
from core.contracts.table import TableFeatures
from core.privacy.derive import PublicFacts, plan_request
from core.statistics.plans import Asked
from core.statistics.statistics_columns import Cells, declared_columns
from worker.statistics.sums_release import release

REPORT = Path(__file__).parent / "reports" / "statistics.md"
RHOS, REPEATS = (0.03, 0.5), 100
MOST = 10_000  # records of a table: a sample of larger ones
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Column:
    """A declared number: its range, and bins of it."""

    name: str
    range: tuple[float, float]


@dataclass(frozen=True)
class Table:
    """Two numbers and a category of a public table."""

    path: str
    x: Column
    y: Column
    category: str
    edges: tuple[float, ...]


TABLES = {
    "chains: 7,874 people, age, kappa and sex": Table(
        "survival/flchain", Column("age", (50.0, 110.0)), Column("kappa", (0.0, 20.0)), "sex", (60.0, 70.0, 80.0, 90.0)
    ),
    "diamonds: 10,000, price, carat and cut": Table(
        "ggplot2/diamonds", Column("price", (0.0, 20_000.0)), Column("carat", (0.0, 6.0)), "cut", (1e3, 2e3, 5e3, 1e4)
    ),
}
BINS = 10


def queries(table: Table) -> dict[str, dict[str, Any]]:
    """One of each kind."""
    x, y = table.x.name, table.y.name
    return {
        "count": {"kind": "count"},
        "histogram": {"kind": "histogram", "column": x, "edges": list(table.edges)},
        "contingency": {"kind": "contingency", "columns": [table.category, x], "bins": BINS},
        "sum": {"kind": "sum", "columns": [x]},
        "mean": {"kind": "mean", "columns": [x]},
        "variance": {"kind": "variance", "columns": [x]},
        "covariance": {"kind": "covariance", "columns": [x, y]},
        "quantile": {"kind": "quantile", "column": x, "q": [0.5, 0.9]},
    }


def read(table: Table) -> tuple[Cells, list[str]]:
    """Its records, and the values of its category."""
    frame = _table(table.path)[[table.x.name, table.y.name, table.category]].dropna()
    frame = frame.sample(MOST, random_state=0) if len(frame) > MOST else frame
    values = sorted(map(str, frame[table.category].unique()))
    places = frame[table.category].map(lambda each: values.index(str(each)))
    x = np.column_stack([frame[table.x.name], frame[table.y.name], places]).astype(np.float32)
    return Cells(x, np.zeros(len(x))), values


def answered(query: dict[str, Any], table: Table, records: Cells, values: list[str], rho: float) -> Any:
    """Our answers: the exact ones (ρ = 0), or REPEATS times those of a release at ρ."""
    numbers = [{"kind": "number", "name": each.name, "range": list(each.range)} for each in (table.x, table.y)]
    declared = [*numbers, {"kind": "category", "name": table.category, "values": values}]
    columns = declared_columns(
        TableFeatures.model_validate({"columns": declared}), RegressionTask(label="none", range=(0.0, 1.0))
    )
    sigma = 1.0 / np.sqrt(2.0 * rho) if rho else 1.0
    privacy = {"noise_multiplier": float(sigma), "target_delta": 1e-6}
    spec = JobSpec.model_validate({"kind": "statistics", "dataset": "d", "queries": [query], "privacy": privacy})
    asked = Asked.of(spec.queries or (), (), columns)
    (plan,), sums = asked.plans, asked.sums(records)
    if not rho:
        return [each.value for each in plan.answers(sums[0] / plan.unit, 0.0)]
    request = plan_request(spec, FACTS)
    assert request is not None
    mechanism = request.mechanism(float(sigma))
    found = []
    for number in range(REPEATS):
        key = sha256(f"{query['kind']} {rho} {number}".encode()).digest()
        released = release(asked, sums, mechanism, key)
        found.append(plan.answers(released.noisy[0].numpy() / plan.unit, released.stds[0]))
    return found


FACTS = PublicFacts(
    records_train=50_000,
    records_holdout=0,
    records_per_unit=1,
    unit="example",
    classification=False,
    holdout_is_private=False,
    holdout_account="holdout",
    slots=60_000,
    delta=1e-6,
)


def rmse(found: Floats, exact: Floats) -> float:
    """Over repeats and cells."""
    return float(np.sqrt(np.mean((found - exact) ** 2)))


def opendp(python: str, table: Table, records: Cells, categories: int, rho: float) -> dict[str, Floats]:
    """OpenDP's answers, from its own process."""
    x, y = (records.x[:, k].astype(np.float64).clip(*each.range) for k, each in enumerate((table.x, table.y)))
    bins = np.searchsorted(np.linspace(*table.x.range, BINS + 1)[1:-1], x, side="right")
    with tempfile.NamedTemporaryFile(suffix=".npz") as file:
        np.savez(
            file,
            x=x,
            y=y,
            cells=np.searchsorted(table.edges, x, side="right"),
            pairs=records.x[:, 2].astype(np.int64) * BINS + bins,
            range_x=table.x.range,
            range_y=table.y.range,
            sizes=[len(table.edges) + 1, categories * BINS],
        )
        file.flush()
        script = str(Path(__file__).parent / "statistics_opendp.py")
        done = subprocess.run(
            [python, script, file.name, str(rho), str(REPEATS)], capture_output=True, text=True, check=True
        )
    return {name: np.array(each, dtype=np.float64) for name, each in json.loads(done.stdout).items()}


def shown(kind: str, found: list[Any], categories: int) -> list[Any]:
    """The answers that are compared: of a table its cells without margins, of a matrix what is off its diagonal."""
    return found[: categories * BINS] if kind == "contingency" else found[2:] if kind == "covariance" else found


def rows(python: str, name: str, table: Table) -> list[str]:
    """The lines of a table's report."""
    records, values = read(table)
    head = "| query | ρ | exact | error | of `raw` | OpenDP's | error / OpenDP's |"
    lines = [f"## {name}", "", head, "|---|---|---|---|---|---|---|"]
    x = records.x[:, 0].astype(np.float64).clip(*table.x.range)
    for rho in RHOS:
        theirs = opendp(python, table, records, len(values), rho)
        for kind, query in queries(table).items():
            answers = shown(kind, answered(query, table, records, values, 0.0), len(values))
            exact = np.quantile(x, query["q"]) if kind == "quantile" else np.array(answers, dtype=np.float64)
            found = [shown(kind, each, len(values)) for each in answered(query, table, records, values, rho)]
            value, raw = (
                rmse(np.array([[getattr(one, of) for one in each] for each in found], dtype=np.float64), exact)
                for of in ("value", "raw")
            )
            other, what = rmse(theirs[kind], exact), f"{exact[0]:.5g}" if len(exact) == 1 else f"{len(exact)} numbers"
            lines.append(f"| {kind} | {rho:g} | {what} | {value:.4g} | {raw:.4g} | {other:.4g} | {value / other:.2f} |")
        for kind, true in (("mean", x.mean()), ("variance", x.var())):
            error = rmse(theirs[f"{kind}, n known"], np.array([true]))
            lines.append(f"| {kind}, n told | {rho:g} | {true:.5g} | | | {error:.4g} | |")
    return [*lines, ""]


def main(python: str) -> None:
    """Measures, and writes the report."""
    version = subprocess.run(
        [python, "-c", "import importlib.metadata as m; print(m.version('opendp'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    head = HEAD.format(version=version, repeats=REPEATS)
    REPORT.write_text(
        "\n".join([head, *(line for name, table in TABLES.items() for line in rows(python, name, table))])
    )
    print(REPORT)


HEAD = """# The error of statistics, beside OpenDP

`python -m benchmarks.statistics_error PYTHON` wrote this; PYTHON has OpenDP {version}. Root mean squared errors over
{repeats} releases and all numbers of a query, against the exact answer on these records, cut to their declared ranges.
Each query has ρ by itself; the unit is one record, added or removed. `error` is of `value`; `raw` is before
post-processing. The noise is drawn by a job's own code.

OpenDP's side is built of its own constructors, each with the smallest scale that its map allows at ρ-zCDP: a count;
counts by category; a checked sum of floats; for the mean, the variance and the covariance sums and a count with equal
parts of ρ, because n is private; for quantiles `make_private_quantile` over 1,025 candidates, with half of ρ each.
"n told" is its own mean and variance of a known size: it is given the exact n, which a declaration need not be.

What it shows. Of counts, histograms, tables and sums both add Gaussian noise of the same scale, Δ/√(2ρ): their ratios
differ from 1 by chance, as 100 releases know an error of one number to 7 %. Means, variances and covariances have 0.06
to 0.6 of OpenDP's error where n is private, because numbers are centred and one release holds all of a query's sums;
where OpenDP is told n, one of its eight errors is smaller than ours, by 4 %. Quantiles differ: of
whole ages the tree has 0.06 to 0.16 of the error, of prices, which are dense at low values, 1.4 to 1.6 times it. There
the exponential mechanism follows the density and the tree does not; it is no Gaussian release.
"""

if __name__ == "__main__":
    main(sys.argv[1])
