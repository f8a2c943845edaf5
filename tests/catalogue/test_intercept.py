"""A linear model's intercept: by default a regression has one, a classification none; stored jobs keep theirs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.catalogue import model_kinds
from core.contracts.job_spec import JobSpec, LinearModel
from tests.datasets.conftest import Api, new_api
from tests.datasets.conftest import spec as declared
from tests.worker.support import Supervisor, dense, records, run_direct, start_of
from tests.worker.support import spec as trained

NUMBERS = "a,b,y\n" + "".join(f"{i},{i * i % 7},{100 + i % 5}\n" for i in range(60))
REGRESSION = {"kind": "regression", "label": "y"}
HPO = {"strategy": "random", "space": {"learning_rate": [0.1, 10.0]}}
BODY: dict[str, Any] = {
    "optimizer": {"kind": "dp_sgd", "learning_rate": 1.0},
    "privacy": {"target_epsilon": 1.0},
    "length": {"steps": 10},
}
CASES = [
    ("numbers", {}, True),
    ("numbers", {"model": {"kind": "linear", "bias": None}}, True),
    ("numbers", {"model": {"kind": "linear", "bias": False}}, False),
    ("numbers", {"hpo": HPO}, True),
    ("classes", {}, False),
    ("classes", {"model": {"kind": "linear", "bias": True}}, True),
]


@pytest.fixture(scope="module")
def priced(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Iterator[Api]:
    api = new_api(tmp_path_factory.mktemp("intercept") / "home", migrated_database)
    assert api.upload(declared("classes")).status_code == 201
    assert api.upload(declared("numbers", task=REGRESSION), NUMBERS).status_code == 201
    yield api
    api.close()


@pytest.mark.parametrize(("dataset", "changes", "expected"), CASES)
def test_price_plan_and_job_agree_on_the_intercept(
    priced: Api, dataset: str, changes: dict[str, Any], expected: bool, request: pytest.FixtureRequest
) -> None:
    body = BODY | {"dataset": dataset} | changes
    quote = priced.client.post("/v1/quotes", json=body, headers=priced.headers("owner"))
    assert quote.status_code == 200, quote.text
    outputs = 1 if dataset == "numbers" else 2
    assert quote.json()["model"]["parameters"] == 2 * outputs + expected * outputs
    once = {"Idempotency-Key": request.node.name}
    job = priced.client.post("/v1/jobs", json=body, headers=priced.headers("owner") | once)
    assert job.status_code == 201, job.text
    assert job.json()["spec"]["model"]["bias"] is expected
    trials = priced.get(f"/v1/jobs/{job.json()['id']}/trials").json().get("trials", [])
    for each in trials:
        assert priced.get(f"/v1/jobs/{each['job']}").json()["spec"]["model"]["bias"] is expected


def test_a_stored_job_keeps_its_choice() -> None:
    """A job admitted before the default stored `false`; resolving it again, as a study's trials do, changes nothing."""
    stored = JobSpec.model_validate(BODY | {"dataset": "d", "model": {"kind": "linear", "bias": False}})
    assert model_kinds.resolved(stored.model, "regression") is stored.model
    assert not LinearModel().has_bias


@pytest.mark.parametrize(("bias", "least", "most"), [(True, 0.0, 0.2), (False, 3.0, 6.0)])
def test_targets_away_from_zero_need_an_intercept(bias: bool, least: float, most: float) -> None:
    """Full batch, private: the mean squared error on the training part, of targets around 2."""
    x, y = dense(200, 3, 1)
    y = y + 2.0
    shape = {"records_train": 200, "records_holdout": 0, "features": 3, "outputs": 1, "sparse": False}
    asked = trained(model={"kind": "linear", "bias": bias}, length={"steps": 60}, evaluation=None)
    asked["privacy"] = {"noise_multiplier": 0.5, "target_delta": 1e-5}
    asked["clipping"] = {"kind": "flat", "max_grad_norm": 4.0}
    asked["optimizer"] = {"kind": "dp_sgd", "learning_rate": 0.2}
    outcome, _ = run_direct(Supervisor(start_of(asked, shape)), records(x, y), None)
    found = outcome.parameters
    said = x @ found["weight"].numpy()[0] + (found["bias"].numpy()[0] if bias else 0.0)
    assert least <= float(((said - y) ** 2).mean()) <= most
