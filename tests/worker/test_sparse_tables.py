"""Tables of bins and categories as sparse rows: sums are those of autograd, and one record moves them by at most C."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from core.contracts.dataset_spec import TableFeatures
from core.contracts.job_spec import JobSpec
from core.parts.part_files import save_part
from core.parts.stored_records import Csr, StoredPart
from core.parts.table_cells import scaled
from core.privacy.numerics import has_sparse_rows
from tests.worker.support import keys_of, plan_of, prepared, spec, start_of
from worker.attempt.part_loading import loader
from worker.data.joined import AnyPart
from worker.data.loaded_parts import records_of
from worker.data.records import SparseRecords
from worker.messages import Part, Start
from worker.training.plan import Plan

N, BINS = 40, 6
COLUMNS: list[dict[str, Any]] = [
    {"kind": "number", "name": "age", "range": [0, 1], "bins": BINS, "missing": "own"},
    {"kind": "number", "name": "bmi", "range": [0, 1], "bins": BINS},
    {"kind": "category", "name": "ward", "values": list(range(BINS))},
]
TABLE = {"kind": "table", "columns": COLUMNS}
MIXED = {"kind": "table", "columns": [*COLUMNS, {"kind": "number", "name": "dose", "range": [0, 1]}]}
C = 0.3


def cells_of(features: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    cells = rng.random((N, len(features["columns"])), dtype=np.float32)
    cells[:, 2] = rng.integers(0, BINS, N)
    cells[::7, 0] = np.nan
    return cells, rng.integers(0, 2, N)


def start_for(features: dict[str, Any], **changes: Any) -> dict[str, Any]:
    width = TableFeatures.model_validate(features).width
    shape = {"records_train": N, "records_holdout": N, "features": width, "outputs": 2, "sparse": False}
    job = spec(evaluation=None, clipping={"kind": "flat", "max_grad_norm": C}, **changes)
    return start_of(job, shape) | {"features": features}


def loaded(tmp_path: Path, start: dict[str, Any], plan: Plan, cells: np.ndarray, y: np.ndarray) -> AnyPart:
    path = tmp_path / "part"
    part = Part(path=str(path), sha256=save_part(path, StoredPart(x=cells, y=y)), rows=2 * N + 64)
    message = start | {"segments": [{"from_step": 1, **keys_of("x")}], "allowed_steps": 0}
    return loader(Start.model_validate(message), lambda: None, plan)([part]).whole


def by_autograd(x: np.ndarray, y: np.ndarray, weight: torch.Tensor) -> torch.Tensor:
    """Σ clip_C(g_i), a record at a time."""
    total = torch.zeros_like(weight)
    for row, label in zip(torch.from_numpy(x).double(), torch.from_numpy(y), strict=True):
        w = weight.clone().requires_grad_()
        torch.nn.functional.cross_entropy((w @ row)[None], label[None]).backward()
        assert w.grad is not None
        total += w.grad / max(1.0, float(w.grad.norm()) / C)
    return total


@pytest.mark.parametrize("features", [TABLE, MIXED], ids=["one-hot", "mixed"])
def test_sums_of_sparse_rows_are_those_of_autograd(tmp_path: Path, features: dict[str, Any]) -> None:
    start = start_for(features)
    plan, (cells, y) = plan_of(start), cells_of(features)
    part = loaded(tmp_path, start, plan, cells, y)
    records = records_of(part)
    assert isinstance(records, SparseRecords)
    dense = scaled(StoredPart(x=cells, y=y), TableFeatures.model_validate(features)).x
    rows = plan.numerics.rows_per_pass
    weight = torch.randn(2, plan.model.features, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    kept = records.even() if plan.even_rows else records
    found = plan.engine.private_sum({"weight": weight}, prepared(kept, rows))["weight"]
    assert torch.allclose(found, by_autograd(np.asarray(dense), y, weight), atol=1e-9)
    # One record less moves the sum by at most C, as the noise assumes.
    fewer = records.select(np.arange(1, N))
    without = plan.engine.private_sum({"weight": weight}, prepared(fewer, rows))["weight"]
    assert float((found - without).norm()) <= C * plan.numerics.sensitivity_slack
    assert float((found - without).norm()) > 0.1 * C


def test_a_row_has_a_public_number_of_entries(tmp_path: Path) -> None:
    start = start_for(TABLE)
    part = loaded(tmp_path, start, plan_of(start), *cells_of(TABLE))
    assert isinstance(part, StoredPart) and isinstance(part.x, Csr)
    assert set(np.diff(part.x.indptr).tolist()) == {len(COLUMNS)} and (part.x.data == 1.0).all()


CENTRED = {"model": {"kind": "linear", "bias": False, "center": {}}}


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"kind": "mlp", "hidden": [3]}},
        CENTRED,
        {"runtime": {"dtype": "float32"}},
        {"clipping": {"engine": "opacus"}},
        {"audit": {"canaries": 100, "kind": "records"}},
    ],
)
def test_what_needs_dense_records_keeps_them(changes: dict[str, Any]) -> None:
    features = TableFeatures.model_validate(TABLE)
    assert has_sparse_rows(JobSpec.model_validate(spec()), features)
    assert not has_sparse_rows(JobSpec.model_validate(spec(**changes)), features)


def test_a_job_that_was_admitted_with_dense_rows_keeps_them() -> None:
    start = start_for(TABLE)
    admitted = plan_of(start).numerics.model_copy(update={"passes": "float32"})
    before = plan_of(start | {"numerics": admitted.model_dump(mode="json")})
    assert not before.sparse_table and not before.sparse and plan_of(start).sparse_table
