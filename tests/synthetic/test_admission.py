"""A synthetic job from quote to hold: what is left out is closed by the declaration, and priced as statistics are."""

from __future__ import annotations

from typing import Any

import pytest

from app.db.database import Database
from core.contracts.job_spec import JobSpec
from tests.conftest import Api
from tests.factories import add_dataset
from tests.statistics.data import COLUMNS, TASK

COMMON: dict[str, Any] = {"features": {"kind": "table", "columns": COLUMNS}, "task": TASK}


def job(dataset: str, **changes: Any) -> dict[str, Any]:
    return {"kind": "synthetic", "dataset": dataset, "privacy": {"target_epsilon": 1.0}} | changes


def test_a_job_is_closed_priced_and_held(api: Api, db: Database) -> None:
    dataset = add_dataset(db, **COMMON)
    quote = post(api, "/v1/quotes", job(dataset)).json()
    assert quote["fits"] and quote["steps"] == 1 and quote["model"] is None
    assert [each["what"] for each in quote["lines"]] == ["synthetic rows"] and len(quote["scores"]) == 10
    statistics = job(dataset) | {"kind": "statistics", "queries": [{"kind": "count"}]}
    assert quote["charge"] == post(api, "/v1/quotes", statistics).json()["charge"]
    held = post(api, "/v1/jobs", job(dataset))
    assert held.status_code == 201, held.text
    spec = held.json()["spec"]
    assert spec["columns"] == ["age", "bmi", "sex", "day", "y"] and spec["target"] == "y"
    assert (spec["method"], spec["bins"]) == ("mixture", 16) and isinstance(spec["rows"], int)
    assert JobSpec.model_validate(spec).tables[0].columns == ("age", "bmi")


def post(api: Api, path: str, document: dict[str, Any]) -> Any:
    return api.client.post(path, json=document, headers=api.headers("analyst", **{"Idempotency-Key": "k"}))


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"columns": ["age", "weight"]}, "/columns"),
        ({"columns": ["age", "age"]}, "/columns"),
        ({"target": "weight"}, "/target"),
        ({"columns": ["age", "bmi"], "bins": 1_000}, "/columns"),  # a million cells
        ({"rows": 1_000_001}, "/rows"),
        ({"method": "aim"}, "/method"),
        ({"method": "tree"}, "/method"),
        ({"queries": [{"kind": "count"}]}, ""),
        ({"runtime": {"device": "cuda"}}, "/runtime"),
    ],
)
def test_what_does_not_fit_is_refused_where_it_stands(
    api: Api, db: Database, change: dict[str, Any], pointer: str
) -> None:
    answer = post(api, "/v1/quotes", job(add_dataset(db, **COMMON), **change))
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"].startswith(pointer)


def test_a_table_without_its_label_has_no_target(api: Api, db: Database) -> None:
    dataset = add_dataset(db, **COMMON)
    held = post(api, "/v1/jobs", job(dataset, columns=["age", "sex"])).json()
    assert held["spec"].get("target") is None and len(JobSpec.model_validate(held["spec"]).tables) == 1
