"""A job whose model no attempt can hold is refused at admission, with the numbers."""

from __future__ import annotations

from typing import Any

import pytest

from app.db.engine import Database
from app.errors import InvalidRequest
from app.jobs.memory import check, least_bytes
from app.settings import Settings
from tests.conftest import Api
from tests.factories import add_dataset, job_spec
from tests.jobs.test_planning import facts, spec_of
from tests.worker.support import keys_of, plan_of, spec, start_of
from worker.clipping.engine import Clip
from worker.clipping.totals import Grid, GridTotals
from worker.messages import Keys

MLP = {"kind": "mlp", "hidden": [7]}
NUMBERS = 2 * 7 + 7 + 7 * 2 + 2
SHAPE = {"records_train": 400, "records_holdout": 100, "features": 2, "outputs": 2, "sparse": False}


@pytest.mark.parametrize(("device", "each"), [("auto", 8), ("cuda", 8), ("cpu", 16)])
def test_the_limit_is_met_or_not(device: str, each: int) -> None:
    asked = spec_of(model=MLP, runtime={"device": device})
    check(asked, facts(), None)
    check(asked, facts(), each * NUMBERS)
    with pytest.raises(InvalidRequest) as refused:
        check(asked, facts(), each * NUMBERS - 1)
    assert f"{NUMBERS} trained numbers" in str(refused.value)


@pytest.mark.parametrize("model", [{"kind": "linear"}, MLP], ids=["linear", "mlp"])
def test_an_attempt_holds_at_least_that(model: dict[str, Any]) -> None:
    """The parameters and the totals of a step, as an attempt makes them."""
    plan = plan_of(start_of(spec(model=model, runtime={"device": "cpu"}), SHAPE))
    parameters = plan.initial(Keys.model_validate(keys_of("x")))
    totals = GridTotals(parameters, Clip(1.0), Grid(1000, 48))
    held = sum(value.nbytes for value in parameters.values()) + totals._flat.nbytes
    assert held - 64 <= least_bytes(plan.spec, plan.model.numbers) <= held


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"attempt_memory_bytes": 2**28})


def test_a_model_beyond_the_operators_limit_costs_nothing(api: Api, db: Database) -> None:
    dataset, large = add_dataset(db), {"kind": "mlp", "hidden": [5900, 5900]}
    for path in ("/v1/quotes", "/v1/jobs"):
        headers = api.headers("analyst", **{"Idempotency-Key": "one"})
        answer = api.client.post(path, json=job_spec(dataset, model=large), headers=headers)
        assert answer.status_code == 422, answer.text
        (error,) = answer.json()["errors"]
        assert error["pointer"] == "/model" and "266 MiB" in error["detail"] and "256 MiB" in error["detail"]
    ledger = api.client.get(f"/v1/datasets/{dataset}/ledger", headers=api.headers("owner")).json()
    assert ledger["accounts"]["train"]["held"] == 0
    fits = job_spec(dataset, model={"kind": "mlp", "hidden": [5700, 5700]})
    assert api.client.post("/v1/quotes", json=fits, headers=api.headers("analyst")).status_code == 200
