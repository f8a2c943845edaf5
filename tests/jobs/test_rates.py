"""`learning_rate: auto` over HTTP: a number and a reason at admission, or a refusal that costs nothing."""

from __future__ import annotations

from typing import Any

import pytest

from app.db.engine import Database
from app.db.models import Job
from tests.conftest import Api
from tests.factories import add_dataset, job_spec
from tests.jobs.test_api import get, post

SQLITE = pytest.mark.parametrize("backing", ["sqlite"])
AUTO = {"kind": "dp_sgd", "momentum": 0.9, "free_step": True}


def test_auto_is_the_default_and_becomes_a_number(api: Api, db: Database) -> None:
    spec = job_spec(add_dataset(db), optimizer=AUTO)
    quote = post(api, "/v1/quotes", spec, key=None).json()
    job = post(api, "/v1/jobs", spec).json()
    assert job["quote"]["resolved"] == quote["resolved"]
    assert job["spec"]["optimizer"]["learning_rate"] == quote["resolved"]["learning_rate"] > 0.0
    assert "κ" in quote["resolved"]["because"] or "settle" in quote["resolved"]["because"]
    # Said twice it is one job, and asked for with the number it is the same plan.
    assert post(api, "/v1/jobs", spec).json()["id"] == job["id"]
    named = post(api, "/v1/quotes", job["spec"], key=None).json()
    assert named["resolved"] is None
    assert named["charge"] == quote["charge"]
    with db.read() as session:
        assert session.get_one(Job, job["id"]).spec["optimizer"]["learning_rate"] == quote["resolved"]["learning_rate"]


@SQLITE
def test_more_noise_means_a_smaller_rate(api: Api, db: Database) -> None:
    dataset = add_dataset(db)
    found = [
        post(api, "/v1/quotes", job_spec(dataset, optimizer=AUTO, privacy={"target_epsilon": each}), key=None).json()
        for each in (0.25, 0.5)
    ]
    small, large = (each["resolved"]["learning_rate"] for each in found)
    # A constant κ makes η fall with σ, and the noise nearly halves.
    assert large / small == pytest.approx(found[0]["noise_multiplier"] / found[1]["noise_multiplier"], rel=0.01)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"optimizer": {"kind": "dp_adambc"}}, "no rule"),
    ({"optimizer": {"kind": "scale_then_privatize"}}, "no rule"),
    (
        {
            "optimizer": {
                "kind": "dp2_rmsprop",
                "learning_rate_adaptive": 0.1,
                "max_grad_norm_adaptive": 1.0,
                "delay": 5,
            }
        },
        "no rule",
    ),
    ({"optimizer": AUTO | {"weight_decay": 1e6}}, "learning_rate · weight_decay is above 1"),
]


@SQLITE
@pytest.mark.parametrize(("changes", "why"), REFUSED)
def test_where_no_rule_is_known_a_number_is_asked_for(
    api: Api, db: Database, changes: dict[str, Any], why: str
) -> None:
    dataset = add_dataset(db)
    answer = post(api, "/v1/jobs", job_spec(dataset, **changes))
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["pointer"] == "/optimizer/learning_rate" and why in error["detail"]
    assert get(api, f"/v1/datasets/{dataset}/ledger").json()["accounts"]["train"]["held"] == 0


@SQLITE
def test_a_misspelt_auto_is_found(api: Api, db: Database) -> None:
    answer = post(api, "/v1/quotes", job_spec(add_dataset(db), optimizer={"kind": "dp_sgd", "learning_rate": "atuo"}))
    assert {each["pointer"] for each in answer.json()["errors"]} == {"/optimizer/learning_rate"}
