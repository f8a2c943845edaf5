"""Which jobs have a secret order, and that a replay has the same one."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from app.contracts.dataset_spec import Features, Task
from app.contracts.job_spec import JobSpec
from app.privacy.numerics import Numerics, PublicSizes, numerics_of, paid_slack, sensitivity_slack
from tests.worker.support import Supervisor, spec, start_of
from tests.worker.test_loop import SHAPE, attempt, same, tamper
from worker.training.plan import build_plan


def test_a_job_that_began_anew_replays_bit_for_bit() -> None:
    """Its first keys are others then, so a full batch's order is another, too: masks follow places."""
    model = {"kind": "mlp", "hidden": [16], "dropout": 0.5}
    record = Supervisor(start_of(spec(evaluation=None, model=model, sampling={"kind": "full_batch"}), SHAPE))
    record.hold = 40
    attempt(record)
    tamper(record, 0)
    weights = attempt(record)
    assert record.resalts == 1 and record.started == 20
    assert same(attempt(record), weights)
    assert record.resalts == 1 and record.started == 20


@pytest.mark.parametrize(("items", "users"), [(100, 500_000), (20_000, 20_000)])
def test_full_batches_have_a_secret_order_exactly_where_they_are_in_memory(items: int, users: int) -> None:
    """Admission decides on the order, and the worker on the memory, by the same size."""
    known = {"kind": "interactions", "layout": "inter", "items": {"kind": "numbered", "count": items}}
    features: Any = TypeAdapter(Features).validate_python(known)
    model = {"kind": "transformer_rec", "dim": 4, "max_length": 6}
    job = spec(model=model, evaluation=None, sampling={"kind": "full_batch"})
    sizes = PublicSizes(users, 1, items, 1, sparse=features.is_sparse)
    numerics = numerics_of(JobSpec.model_validate(job), sizes, features)
    shape = {"records_train": users, "records_holdout": 20, "features": items, "outputs": 1, "sparse": True}
    asked = Supervisor(start_of(job, shape)).message()
    plan = build_plan(
        asked.spec,
        asked.mechanism,
        asked.shape,
        TypeAdapter(Task).validate_python({"kind": "next_item"}),
        features,
        steps=asked.steps,
        data_public=False,
        holdout_public=False,
        numerics=numerics,
    )
    assert (plan.numerics.sums == "float32") == plan.in_memory


@pytest.mark.parametrize(("rows", "group"), [(65_520, 48), (4080, 96)])
@pytest.mark.parametrize("records", [10**4, 10**6, 2 * 10**8])
def test_sums_that_fall_back_to_float64_are_paid_for(records: int, rows: int, group: int) -> None:
    """Those of divided gradients, and of a C beyond float32's range: a job in float32 has them, too."""
    assert paid_slack(records, rows, 1, "float32", group) >= sensitivity_slack(records, rows, 1)
    paid = {"records_bound": records, "rows_per_pass": rows, "positions": 1, "passes": "float32", "filling": 0.0}
    paid |= {"sums": "float32", "group": group, "arithmetic": 2}
    with pytest.raises(ValidationError, match="must cover"):
        Numerics.model_validate(paid | {"sensitivity_slack": paid_slack(records, rows, 1, "float32", group) - 1e-12})
