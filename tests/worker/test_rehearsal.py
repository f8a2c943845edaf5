"""The rehearsal of a GPU's attempt: one whole public step of any job, whatever its sums and optimizer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worker.support import plan_of, spec, start_of
from tests.worker.test_preconditioned import dp2
from worker.training.rehearsal import rehearse

SHAPE = {"records_train": 80, "records_holdout": 20, "features": 5, "outputs": 3, "sparse": False}
JOBS: dict[str, dict[str, Any]] = {
    "float32 sums": {},
    "float64 sums": {"runtime": {"dtype": "float64"}},
    "network": {"model": {"kind": "mlp", "hidden": [8]}},
    "divided": {"optimizer": dp2("dp2_rmsprop")},
}


@pytest.mark.parametrize("name", JOBS)
def test_a_step_is_rehearsed(name: str) -> None:
    plan = plan_of(start_of(spec(**JOBS[name]), SHAPE))
    assert (plan.numerics.sums == "float32") == (name != "float64 sums")
    rehearse(plan)
