"""Sequences through the REST API: users are records, ε is a user's, and models fit or are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.datasets.conftest import PUBLIC, Api
from tests.datasets.conftest import spec as declared

ROOT = Path(__file__).resolve().parents[2]
TABLE = "user_id\titem_id\ttimestamp\n" + "".join(f"u{i % 50}\t{1 + i * i % 11}\t{i // 7}\n" for i in range(400))
PRIVACY = {"sensitivity": "private", "unit": "user", "records": 50, "cap": {"epsilon": 4.0, "delta": 1e-5}}


def spec(**changes: Any) -> dict[str, Any]:
    features = {"kind": "interactions", "layout": "tsv", "items": {"kind": "numbered", "count": 12}}
    return (
        declared("sequences", format="interactions", task={"kind": "next_item"}, features=features)
        | {"privacy": PRIVACY}
        | changes
    )


RECOMMENDER = {"kind": "transformer_rec", "dim": 4, "max_length": 5}


def post(api: Api, path: str, dataset: str, **changes: Any) -> Any:
    body = {
        "dataset": dataset,
        "model": RECOMMENDER,
        "optimizer": {"kind": "dp_sgd", "learning_rate": 1.0},
        "privacy": {"target_epsilon": 1.0},
        "length": {"steps": 10},
        "evaluation": {"noise_mu": 0.1},
    }
    return api.client.post(path, json=body | changes, headers=api.headers("owner") | {"Idempotency-Key": "k"})


def test_a_user_is_a_record(api: Api) -> None:
    response = api.upload(spec(), TABLE)
    assert response.status_code == 201, response.text
    made = response.json()
    assert made["read"]["records"] == 50 and made["privacy"]["unit"] == "user"
    slots = {"train": {"units": 123, "rows": 123}, "holdout": {"units": 92, "rows": 92}}
    sizes = {"records_train": 40, "records_holdout": 10, "features": 12, "outputs": 1, "sparse": True}
    assert made["shape"] == sizes | {"slots": slots}
    lines = TABLE.splitlines(keepends=True)
    mixed = lines[0] + "".join(reversed(lines[1:]))
    assert api.upload(spec(name="again"), mixed).json()["type"] == "/problems/duplicate-content"


def test_a_user_s_epsilon_is_said_to_be_one(api: Api) -> None:
    dataset = api.upload(spec(), TABLE).json()["id"]
    job = post(api, "/v1/jobs", dataset).json()
    quote = job["quote"]
    assert quote["epsilon"]["unit"] == "user" and {each["epsilon"]["unit"] for each in quote["lines"]} == {"user"}
    assert quote["model"]["parameters"] == (12 + 1 + 5) * 4 + 2 * (2 * 8 + 5 * 12 + 3 * 5 * 4) + 8
    guess = "loss_bound = 1 count as that; a guess among all items has 2.48"
    assert any(guess in each for each in quote["warnings"])
    ledger = api.get(f"/v1/datasets/{dataset}/ledger", "owner").json()
    assert ledger["epsilon_spent_and_held"]["unit"] == "user"
    other = api.upload(declared("other")).json()["id"]
    plain = post(api, "/v1/quotes", other, model={"kind": "linear"}).json()
    assert plain["epsilon"]["unit"] == "example", "the same price, remembered, in another unit"


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"model": {"kind": "linear"}}, "/model/kind"),
        ({"model": {"kind": "matrix_factorization"}}, "/model/kind"),
        ({"model": RECOMMENDER | {"heads": 3}}, "/model"),
        ({"model": RECOMMENDER | {"dropout": 0.95}}, "/model/dropout"),
        ({"clipping": {"engine": "opacus"}}, "/clipping/engine"),
    ],
)
def test_jobs_that_do_not_fit(api: Api, changes: dict[str, Any], pointer: str) -> None:
    api.upload(spec(), TABLE)
    answer = post(api, "/v1/quotes", "sequences", **changes)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"].startswith(pointer), answer.text


def test_scores_of_one_record_are_bounded(api: Api) -> None:
    features = {"kind": "interactions", "layout": "tsv", "items": {"kind": "hashed", "buckets": 2_000_000}}
    api.upload(spec(features=features), TABLE)
    wide = {"kind": "transformer_rec", "dim": 4, "max_length": 100}
    answer = post(api, "/v1/quotes", "sequences", model=wide)
    assert answer.json()["errors"][0]["pointer"] == "/model/max_length"
    assert post(api, "/v1/quotes", "sequences", model=wide | {"loss_positions": "last"}).status_code == 200


def test_the_example_fits_its_contract(api: Api) -> None:
    document = json.loads((ROOT / "examples" / "movielens-sequences-dataset.json").read_text())
    table = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n196\t242\t3\t881250949\n"
    assert document["privacy"]["unit"] == "user"
    made = api.upload(document | PUBLIC | {"holdout": None}, table).json()
    assert made["shape"]["features"] == 1682
    job = json.loads((ROOT / "examples" / "movielens-next-item.json").read_text())
    answer = api.client.post("/v1/quotes", json=job | {"evaluation": None}, headers=api.headers("owner"))
    assert answer.status_code == 200, answer.text


# --- Last items held out, and re-attention ---

LAST = {"holdout": {"kind": "last_item"}}
RANKED = {"evaluation": {"noise_mu": 0.1, "points": 2, "ranking": {"k": 3}}}


def test_scores_of_last_items_are_charged_to_training(api: Api) -> None:
    made = api.upload(spec(**LAST), TABLE).json()
    assert made["shape"]["records_train"] == made["shape"]["records_holdout"] == 50
    ledger = api.get(f"/v1/datasets/{made['id']}/ledger").json()
    assert ledger["accounts"]["holdout"] is None or ledger["accounts"]["holdout"]["budget"] == 0
    job = post(api, "/v1/jobs", "sequences", **RANKED).json()
    training, scores = job["quote"]["lines"]
    assert scores["account"] == "train" and scores["what"] == "evaluation"
    assert job["quote"]["charge"]["train"] == training["charge"] + scores["charge"] > training["charge"]
    assert job["quote"]["charge"]["holdout"] == 0 and job["quote"]["mechanism"]["holdout"] is None
    assert job["quote"]["epsilon"]["value"] <= 1.0, "both of it together"


def test_re_attention_s_histogram_is_on_the_bill(api: Api) -> None:
    api.upload(spec(), TABLE)
    noisy = {"mode": "logits", "frequencies": "noisy", "noise_mu": 0.05}
    plain = post(api, "/v1/quotes", "sequences").json()
    quote = post(api, "/v1/quotes", "sequences", model=RECOMMENDER | {"re_attention": noisy}).json()
    assert [each["what"] for each in quote["lines"]] == ["training", "frequencies", "evaluation"]
    histogram = quote["lines"][1]
    assert histogram["account"] == "train" and histogram["epsilon"]["unit"] == "user"
    assert quote["charge"]["train"] == sum(each["charge"] for each in quote["lines"][:2])
    assert quote["noise_multiplier"] > plain["noise_multiplier"], "less is left for the steps"
    assert quote["epsilon"]["value"] <= 1.0 and quote["largest_epsilon_that_fits"] <= plain["largest_epsilon_that_fits"]
    assert {"noise_multiplier": 20.0, "kind": "gaussian"} in [
        each["event"] for each in quote["mechanism"]["train"]["events"]
    ]


@pytest.mark.parametrize(
    ("dataset", "changes", "pointer"),
    [
        (LAST, {}, "/evaluation/ranking"),
        (LAST, {"evaluation": {"ranking": {"k": 13}}}, "/evaluation/ranking/k"),
        (LAST, {"evaluation": {"metrics": ["loss"], "ranking": {}}}, "/evaluation"),
        ({}, {"model": RECOMMENDER | {"re_attention": {"mode": "paper"}}}, "/model/re_attention/frequencies"),
        (
            {},
            {"model": RECOMMENDER | {"re_attention": {"mode": "paper", "frequencies": "noisy"}}},
            "/model/re_attention",
        ),
        ({}, {"model": RECOMMENDER | {"re_attention": {"noise_mu": 0.1}}}, "/model/re_attention"),
        (
            {"privacy": {"sensitivity": "public"}},
            {"model": RECOMMENDER | {"re_attention": {"mode": "paper"}}, "privacy": None},
            "/model/re_attention/mode",
        ),
    ],
)
def test_what_does_not_go_together(api: Api, dataset: dict[str, Any], changes: dict[str, Any], pointer: str) -> None:
    api.upload(spec(**dataset), TABLE)
    answer = post(api, "/v1/quotes", "sequences", **changes)
    assert answer.status_code == 422 and answer.json()["errors"][0]["pointer"].startswith(pointer), answer.text


def test_declared_frequencies_and_recurrent_models(api: Api) -> None:
    features = spec()["features"] | {"item_frequencies": [0.5] * 12}
    assert api.upload(spec(features=features | {"item_frequencies": [0.5] * 11}), TABLE).status_code == 422
    assert api.upload(spec(features=features), TABLE).status_code == 201
    quote = post(api, "/v1/quotes", "sequences", model=RECOMMENDER | {"re_attention": {"mode": "paper"}})
    assert quote.status_code == 200 and len(quote.json()["lines"]) == 2
    for kind, gates in (("gru_rec", 3), ("lstm_rec", 4)):
        quote = post(api, "/v1/quotes", "sequences", model={"kind": kind, "dim": 4, "max_length": 5})
        assert quote.json()["model"]["parameters"] == 13 * 4 + 2 * (4 + 1) * gates * 4
