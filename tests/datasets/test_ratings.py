"""Interaction tables through the REST API: what is answered to whom, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.datasets.conftest import PUBLIC, Api
from tests.datasets.conftest import spec as declared

ROOT = Path(__file__).resolve().parents[2]
TABLE = "user_id\titem_id\trating\n" + "".join(f"{1 + i % 7}\t{1 + i * i % 11}\t{1 + i % 5}\n" for i in range(60))


def spec(**changes: Any) -> dict[str, Any]:
    ids = {"kind": "numbered", "count": 12}
    features = {"kind": "interactions", "layout": "tsv", "users": ids, "items": ids} | changes.pop("features", {})
    task = {"kind": "rating", "scale": [1, 5]}
    return declared("ratings", format="interactions", task=task, features=features) | changes


def test_ratings_are_registered(api: Api) -> None:
    response = api.upload(spec(), TABLE)
    assert response.status_code == 201, response.text
    made = response.json()
    slots = {"train": {"units": 134, "rows": 134}, "holdout": {"units": 96, "rows": 96}}
    sizes = {"records_train": 48, "records_holdout": 12, "features": 24, "outputs": 1, "sparse": True}
    assert made["shape"] == sizes | {"slots": slots}
    assert made["features"]["unknown"] == "refuse" and made["task"]["user"] == "user_id"
    assert made["read"]["records"] == 60 and made["read"]["dropped"] == 0
    again = api.upload(spec(name="again"), TABLE.replace("\t", ",").encode())
    assert again.status_code == 422, "another layout than declared"
    layout = spec(name="again", features={"layout": "csv"})
    assert api.upload(layout, TABLE.replace("\t", ",")).json()["type"] == "/problems/duplicate-content"


def test_how_many_rows_were_dropped_is_told_to_the_owner_once(api: Api) -> None:
    table = TABLE + "99\t1\t3\n" * 17
    refused = api.upload(spec(), table)
    assert refused.status_code == 422
    error, *rows = refused.json()["errors"]
    assert [each["row"] for each in rows] == list(range(61, 71))
    assert (error["pointer"], error["count"]) == ("/task/user", 17)
    made = api.upload(spec(features={"unknown": "drop"}), table).json()
    assert made["read"]["dropped"] == 17 and made["read"]["records"] == 60
    for who in ("admin", "owner"):
        assert "read" not in api.get(f"/v1/datasets/{made['id']}", who).json()
    kept = {key: value for key, value in made.items() if key not in ("read", "content_hmac", "content_sha256")}
    assert '"dropped"' not in json.dumps(kept)


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"task": {"kind": "rating"}}, "/task/scale"),
        ({"features": {"users": {"kind": "numbered"}}}, "/features/users/count"),
        ({"features": {"users": {"kind": "fitted"}}}, "/features/users"),
        ({"features": {"layout": "xml"}}, "/features/layout"),
        ({"task": {"kind": "next_item", "scale": [1, 5]}}, "/task/scale"),
    ],
)
def test_bad_declarations(refusing_api: Api, changes: dict[str, Any], pointer: str) -> None:
    answer = refusing_api.upload(spec(**changes), TABLE)
    assert answer.status_code == 422
    assert [each["pointer"] for each in answer.json()["errors"]] == [pointer]


JOB: dict[str, Any] = {
    "optimizer": {"kind": "dp_sgd", "learning_rate": 1.0},
    "privacy": {"target_epsilon": 1.0},
    "length": {"steps": 10},
    "evaluation": {"noise_mu": 0.1},
}
FACTORS = {"kind": "matrix_factorization", "dim": 3}


def quote(api: Api, dataset: str, **changes: Any) -> Any:
    body = {"dataset": dataset, "model": FACTORS} | JOB | changes
    return api.client.post("/v1/quotes", json=body, headers=api.headers("owner"))


def test_quotes_and_refusals(api: Api) -> None:
    ratings, other = api.upload(spec(), TABLE).json()["id"], api.upload(declared("other")).json()["id"]
    answer = quote(api, ratings).json()
    assert answer["model"]["parameters"] == 24 * 4
    assert any("loss_bound = 1 count as that; they reach 16" in each for each in answer["warnings"])
    wide = quote(api, ratings, evaluation={"noise_mu": 0.1, "loss_bound": 16.0}).json()
    assert not any("loss_bound" in each for each in wide["warnings"]) and wide["charge"] == answer["charge"]
    for dataset, model in ((ratings, {"kind": "linear"}), (other, FACTORS), (ratings, {"kind": "mlp", "hidden": [2]})):
        refused = quote(api, dataset, model=model)
        assert refused.status_code == 422 and refused.json()["errors"][0]["pointer"] == "/model/kind"
    refused = quote(api, ratings, clipping={"engine": "opacus"})
    assert refused.json()["errors"][0]["pointer"] == "/clipping/engine"


def test_the_example_fits_its_contract(api: Api) -> None:
    document = json.loads((ROOT / "examples" / "movielens-dataset.json").read_text())
    table = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n196\t242\t3\t881250949\n"
    document |= PUBLIC | {"holdout": None}
    made = api.upload(document, table).json()
    assert made["shape"]["features"] == 943 + 1682
    job = json.loads((ROOT / "examples" / "movielens-epsilon-3.json").read_text())
    answer = api.client.post("/v1/quotes", json=job | {"evaluation": None}, headers=api.headers("owner"))
    assert answer.status_code == 200, answer.text
