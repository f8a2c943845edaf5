"""A table, its declaration and queries on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from core.contracts.dataset_spec import ClassificationTask
from core.contracts.job_spec import JobSpec
from core.contracts.table import TableFeatures
from core.privacy.derive import PublicFacts, plan_request
from core.statistics.plans import Asked
from core.statistics.statistics_columns import AnyColumn, Cells, declared_columns
from tests.worker.support import Supervisor, keys_of, stored_part
from worker.messages import JobDescription

COLUMNS: list[dict[str, Any]] = [
    {"kind": "number", "name": "age", "range": [0, 100]},
    {"kind": "number", "name": "bmi", "range": [10, 60], "missing": "middle"},
    {"kind": "category", "name": "sex", "values": ["f", "m"]},
    {"kind": "date", "name": "day", "range": ["2020-01-01", "2020-12-31"]},
]
TASK = {"kind": "classification", "label": "y", "classes": ["no", "yes"]}
QUERIES: list[dict[str, Any]] = [
    {"kind": "count"},
    {"kind": "histogram", "column": "age", "edges": [18, 40, 65]},
    {"kind": "histogram", "column": "bmi", "bins": 4, "weight": 2.0},
    {"kind": "contingency", "columns": ["sex", "y"]},
    {"kind": "mean", "columns": ["age", "bmi"]},
    {"kind": "sum", "columns": ["age"]},
    {"kind": "variance", "columns": ["age", "bmi"]},
    {"kind": "covariance", "columns": ["age", "bmi"], "weight": 0.5},
    {"kind": "quantile", "column": "age", "q": [0.1, 0.5, 0.9]},
]


def columns() -> dict[str, AnyColumn]:
    return declared_columns(TableFeatures.model_validate({"columns": COLUMNS}), ClassificationTask.model_validate(TASK))


def cells(n: int, seed: int = 0) -> Cells:
    """Records with missing cells, and numbers beyond their ranges."""
    rng = np.random.default_rng(seed)
    bmi = np.where(rng.random(n) < 0.1, np.nan, rng.normal(27.0, 12.0, n))
    x = np.column_stack([rng.normal(50.0, 25.0, n), bmi, rng.integers(0, 2, n), rng.integers(18262, 18628, n)])
    return Cells(x.astype(np.float32), rng.integers(0, 2, n).astype(np.float64))


def spec(queries: list[dict[str, Any]] = QUERIES, **changes: Any) -> JobSpec:
    privacy = {"noise_multiplier": 2.0, "target_delta": 1e-5}
    base = {"kind": "statistics", "dataset": "ds_1", "queries": queries, "privacy": privacy}
    return JobSpec.model_validate(base | changes)


def asked(job: JobSpec) -> Asked:
    return Asked.of(job.queries or (), job.where, columns())


def start_of(folder: Path, job: JobSpec, records: Cells, *, per_unit: int = 1) -> dict[str, Any]:
    """A start message of an attempt on these records, with the mechanism that admission stores."""
    n = len(records)
    shape = {"records_train": n, "records_holdout": 0, "features": 4, "outputs": 2, "sparse": False}
    slots = {"train": {"units": n + 64, "rows": per_unit * (n + 64)}}
    start: dict[str, Any] = {
        "job_id": "job_1",
        "spec": job.model_dump(mode="json"),
        "mechanism": None,
        "task": TASK,
        "features": {"kind": "table", "columns": COLUMNS},
        "shape": shape | {"slots": slots},
        "parts": {"train": [stored_part(folder / "train.arrow", records.x, records.y.astype(np.int64))]},
        "data_public": job.privacy is None,
        "holdout_public": True,
        "steps": 1,
        "output_dir": str(folder),
    }
    if job.privacy is not None:
        start["mechanism"] = mechanism_of(start, job)
    return start


def mechanism_of(start: dict[str, Any], job: JobSpec) -> dict[str, Any]:
    """The mechanism at the named σ."""
    assert job.privacy is not None and job.privacy.noise_multiplier is not None
    names = ("spec", "mechanism", "task", "features", "shape", "data_public", "holdout_public", "steps")
    described = JobDescription.model_validate({name: start[name] for name in names})
    first = plan_request_of(job, described)
    return first.mechanism(job.privacy.noise_multiplier).model_dump(mode="json")


def plan_request_of(job: JobSpec, described: JobDescription) -> Any:
    shape = described.shape
    facts = PublicFacts(
        records_train=shape.records_train,
        records_holdout=0,
        records_per_unit=1,
        unit="example",
        classification=True,
        outputs=2,
        holdout_is_private=False,
        holdout_account="holdout",
        slots=shape.records_train + 64,
        delta=1e-5,
    )
    return plan_request(job, facts)


def supervisor_of(start: dict[str, Any], salt: str = "s0") -> Supervisor:
    return Supervisor(start, segments=[{"from_step": 1, **keys_of(salt), "recorded": []}])
