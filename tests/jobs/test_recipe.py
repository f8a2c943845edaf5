"""A data set and ε are a whole job."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from app.db.database import Database
from core.contracts.dataset_spec import ClassificationTask
from tests.conftest import Api
from tests.factories import add_dataset, dataset_spec
from tests.jobs.test_api import get, post

SQLITE = pytest.mark.parametrize("backing", ["sqlite"])
GDP = dataset_spec()["privacy"]
USERS = GDP | {"unit": "user"}
ITEMS = {"kind": "interactions", "layout": "csv", "items": {"kind": "numbered", "count": 30}}
SEQUENCES = {"task": {"kind": "next_item"}, "features": ITEMS, "format": "interactions", "privacy": USERS}
RATINGS = {
    "task": {"kind": "rating", "scale": [1, 5]},
    "features": ITEMS | {"users": {"kind": "numbered", "count": 40}},
    "format": "interactions",
}
EPSILON = {"privacy": {"target_epsilon": 1.0}}
TABLE = {"kind": "table", "columns": [{"kind": "category", "name": "a", "values": ["x", "y"]}]}


@SQLITE
@pytest.mark.parametrize(
    ("declared", "model", "optimizer", "scored"),
    [
        ({}, "linear", "dp_sgd", {"on": "holdout", "metrics": ["auc"]}),
        ({"holdout": None}, "linear", "dp_sgd", {"on": "train", "metrics": ["auc"]}),
        ({"features": TABLE}, "linear", "dp_sgd", {"on": "holdout", "metrics": ["auc"]}),
        ({"features": {"kind": "text", "column": "t"}}, "linear", "dp_sgd", {"on": "holdout"}),
        (
            {"task": {"kind": "regression", "label": "y", "range": [0, 9]}},
            "linear",
            "dp_sgd",
            {"metrics": ["r_squared"]},
        ),
        (RATINGS, "matrix_factorization", "dp_sgd", {"loss_bound": 16.0}),
        (SEQUENCES, "gru_rec", "dp_adam", {"ranking": {"k": 10, "leave_out_seen": False}}),
        (SEQUENCES | {"holdout": {"kind": "last_item"}}, "gru_rec", "dp_adam", {"on": "holdout"}),
    ],
)
def test_a_data_set_and_epsilon_are_a_whole_job(
    api: Api, db: Database, declared: dict[str, Any], model: str, optimizer: str, scored: dict[str, Any]
) -> None:
    asked = {"dataset": add_dataset(db, **declared), "privacy": {"target_epsilon": 1.0}}
    answer = post(api, "/v1/jobs", asked)
    assert answer.status_code == 201, answer.text
    job = answer.json()
    assert (job["spec"]["model"]["kind"], job["spec"]["optimizer"]["kind"]) == (model, optimizer)
    assert scored.items() <= job["spec"]["evaluation"].items()
    resolved = job["quote"]["resolved"]
    assert [each["name"] for each in resolved["parts"]] == ["model", "optimizer", "scores", "device"]
    assert all(each["because"] for each in resolved["parts"])
    # What was admitted is a whole specification: submitted by itself it is the same job.
    again = post(api, "/v1/quotes", job["spec"], key=None).json()
    assert again["charge"] == job["quote"]["charge"] and again["resolved"] is None


@SQLITE
def test_what_a_job_names_stays(api: Api, db: Database) -> None:
    asked = {"dataset": add_dataset(db), "privacy": {"target_epsilon": 1.0}}
    named = {"model": {"kind": "mlp", "hidden": [4]}, "length": {"steps": 7}, "evaluation": None}
    job = post(api, "/v1/jobs", asked | named).json()
    assert (job["spec"]["model"]["hidden"], job["spec"]["length"]["steps"]) == ([4], 7)
    assert job["spec"]["evaluation"] is None
    assert [each["name"] for each in job["quote"]["resolved"]["parts"]] == ["optimizer", "device"]


@SQLITE
def test_an_optimizer_alone_leaves_defaults_as_they_were(api: Api, db: Database) -> None:
    asked = {"dataset": add_dataset(db), "privacy": {"target_epsilon": 1.0}, "optimizer": {"kind": "dp_sgd"}}
    job = post(api, "/v1/jobs", asked).json()
    assert job["spec"]["evaluation"] is None
    assert [each["name"] for each in job["quote"]["resolved"]["parts"]] == ["device"]


@SQLITE
def test_a_request_without_an_optimizer_is_not_the_one_with_its_default(api: Api, db: Database) -> None:
    asked = {"dataset": add_dataset(db), "privacy": {"target_epsilon": 1.0}}
    first = post(api, "/v1/jobs", asked, key="once")
    assert post(api, "/v1/jobs", asked, key="once").json()["id"] == first.json()["id"]
    for other in ({"optimizer": {"kind": "dp_sgd"}}, {"evaluation": None}):
        answer = post(api, "/v1/jobs", asked | other, key="once")
        assert answer.status_code == 409, answer.text


@SQLITE
def test_the_noise_of_scores_follows_the_number_of_records(api: Api, db: Database) -> None:
    """A split of fewer records needs more noise_mu for the same digits."""
    small, large = (
        {"dataset": add_dataset(db, name=f"n{n}", privacy=GDP | {"records": n}), "privacy": {"target_epsilon": 1.0}}
        for n in (20_000, 100_000)
    )
    jobs = [post(api, "/v1/jobs", each, key=each["dataset"]).json() for each in (small, large)]
    noise = [each["spec"]["evaluation"]["noise_mu"] for each in jobs]
    assert noise[0] > noise[1] >= 0.01
    for each in (small, large):
        quote = post(api, "/v1/quotes", each, key=None).json()
        assert quote["scores"][0]["std"] < 0.02 and not any("too much to tell" in said for said in quote["warnings"])


@SQLITE
def test_a_language_model_is_named(api: Api, db: Database) -> None:
    texts = {"task": {"kind": "language_model"}, "features": {"kind": "text", "column": "t"}}
    asked = {"dataset": add_dataset(db, **texts), "privacy": {"target_epsilon": 1.0}}
    answer = post(api, "/v1/jobs", asked)
    assert answer.status_code == 422 and answer.json()["errors"][0]["pointer"] == "/model"
    assert get(api, f"/v1/datasets/{asked['dataset']}/ledger").json()["accounts"]["train"]["held"] == 0


@SQLITE
def test_a_public_data_set_needs_no_epsilon(api: Api, db: Database) -> None:
    public = {"privacy": {"sensitivity": "public"}, "holdout": None}
    quote = post(api, "/v1/quotes", {"dataset": add_dataset(db, **public), "privacy": None}, key=None).json()
    assert quote["resolved"]["learning_rate"] > 0.0


AGE: dict[str, Any] = {"kind": "number", "name": "age", "range": [0, 110], "missing": "flag"}


@SQLITE
@pytest.mark.parametrize(
    ("columns", "records", "model"),
    [
        ([AGE], 20_000, {"kind": "gam", "bins": 16}),
        ([AGE], 200, {"kind": "gam", "bins": 8}),
        ([AGE, {"kind": "category", "name": "sex", "values": ["f", "m"]}], 20_000, {"kind": "gam", "bins": 16}),
        ([AGE | {"bins": 5, "missing": "own"}], 20_000, {"kind": "linear"}),
        ([AGE, {"kind": "number", "name": "score"}], 20_000, {"kind": "linear"}),
    ],
)
def test_numbers_of_a_table_are_in_bins_by_default(
    api: Api, db: Database, columns: list[dict[str, Any]], records: int, model: dict[str, Any]
) -> None:
    """On linear scales a model follows no curve; fewer bins where noise is large, none where the owner declared all."""
    table = {"kind": "table", "columns": columns}
    asked = {"dataset": add_dataset(db, features=table, privacy=GDP | {"records": records})} | EPSILON
    job = post(api, "/v1/jobs", asked).json()
    assert model.items() <= job["spec"]["model"].items()
    part = next(each for each in job["quote"]["resolved"]["parts"] if each["name"] == "model")
    assert part["value"] == model["kind"] and ("bins" in part["because"]) == (model["kind"] == "gam")
    if model["kind"] == "gam" and records > 200:
        assert "calibrated on eleven public tables" in job["quote"]["resolved"]["because"]


@SQLITE
def test_an_additive_model_is_a_linear_one_with_bins(api: Api, db: Database) -> None:
    columns = [{"kind": "number", "name": "a", "range": [0, 1]}, {"kind": "number", "name": "b", "range": [0, 1]}]
    asked = {"dataset": add_dataset(db, features={"kind": "table", "columns": columns})} | EPSILON
    gam = {"kind": "gam", "bins": 4, "pairs": [["a", "b"]]}
    job = post(api, "/v1/jobs", asked | {"model": gam}).json()
    assert job["quote"]["model"]["parameters"] == 2 * (4 + 4 + 16)
    assert "calibrated on eleven public tables" in job["quote"]["resolved"]["because"]
    assert "‖x‖ ≈ 1.73" in job["quote"]["resolved"]["because"], "two columns and a pair"
    assert job["spec"]["model"]["pairs"] == [["a", "b"]]
    refused = post(api, "/v1/quotes", asked | {"model": gam | {"pairs": [["a", "c"]]}}, key=None)
    assert refused.status_code == 422 and refused.json()["errors"][0]["pointer"] == "/model/pairs"
    plain = {"dataset": add_dataset(db, name="plain"), "model": gam} | EPSILON
    assert post(api, "/v1/quotes", plain, key=None).json()["errors"][0]["pointer"] == "/model/kind"


@SQLITE
def test_several_classes_are_scored_by_macro_f1_up_to_a_declared_number(api: Api, db: Database) -> None:
    def quoted(classes: int, **more: Any) -> Any:
        task = {"kind": "classification", "label": "y", "classes": list(range(classes))}
        dataset = add_dataset(db, name=f"k{classes}{len(more)}", task=task)
        return post(api, "/v1/quotes", {"dataset": dataset} | EPSILON | more, key=None).json()

    few = quoted(3)
    assert [each["name"] for each in few["scores"]] == ["macro_f1", "accuracy"]
    assert [each["name"] for each in quoted(11)["scores"]] == ["accuracy"]
    named = {"evaluation": {"metrics": ["macro_f1"], "noise_mu": 0.1}}
    assert quoted(50, **named)["scores"][0]["name"] == "macro_f1"
    refused = quoted(51, **named)["errors"][0]
    assert refused["pointer"] == "/evaluation/metrics" and "at most 50 classes" in refused["detail"]


@SQLITE
def test_balanced_classes_follow_declared_shares(api: Api, db: Database) -> None:
    task = {"kind": "classification", "label": "y", "classes": ["no", "yes"]}
    declared = add_dataset(db, name="declared", task=task | {"shares": [0.8, 0.2]})
    job = post(api, "/v1/jobs", {"dataset": declared, "class_weights": "balanced"} | EPSILON).json()
    assert job["spec"]["class_weights"] == [0.625, 2.5]
    weights = next(each for each in job["quote"]["resolved"]["parts"] if each["name"] == "class weights")
    assert weights["value"] == "0.625, 2.5" and "declared shares" in weights["because"]
    plain = post(api, "/v1/quotes", {"dataset": declared} | EPSILON, key=None).json()["resolved"]
    resolved = job["quote"]["resolved"]
    assert resolved["max_grad_norm"]["value"] == pytest.approx(2.5 * plain["max_grad_norm"]["value"], rel=0.01)
    assert any("`class_weights`" in each for each in job["quote"]["warnings"])
    ward = {"kind": "table", "columns": [{"kind": "category", "name": "ward", "values": ["a", "b"]}]}
    table = add_dataset(db, name="table", task=task | {"shares": [0.8, 0.2]}, features=ward)
    measured = post(api, "/v1/quotes", {"dataset": table, "class_weights": "balanced"} | EPSILON, key=None).json()
    assert not any("`class_weights`" in each for each in measured["warnings"])
    told = next(each for each in measured["resolved"]["parts"] if each["name"] == "class weights")
    assert "a threshold on the probabilities" in told["because"]
    undeclared = add_dataset(db, name="undeclared", task=task)
    for dataset, weights in ((undeclared, "balanced"), (declared, [1.0, 2.0, 3.0])):
        refused = post(api, "/v1/quotes", {"dataset": dataset, "class_weights": weights} | EPSILON, key=None)
        assert refused.json()["errors"][0]["pointer"] == "/class_weights", refused.text
    number = add_dataset(db, name="number", task={"kind": "regression", "label": "y", "range": [0, 1]})
    refused = post(api, "/v1/quotes", {"dataset": number, "class_weights": [1.0, 2.0]} | EPSILON, key=None)
    assert refused.json()["errors"][0]["pointer"] == "/class_weights"


def test_shares_are_of_all_classes() -> None:
    task = {"kind": "classification", "label": "y", "classes": [0, 1]}
    assert ClassificationTask.model_validate(task | {"shares": [0.333, 0.667]}).shares == (0.333, 0.667)
    for wrong in ([1.0], [0.5, 0.4], [0.5, 0.5, 0.0]):
        with pytest.raises(ValidationError):
            ClassificationTask.model_validate(task | {"shares": wrong})


@SQLITE
def test_a_study_leaves_its_training_to_the_service_too(api: Api, db: Database) -> None:
    asked = {"dataset": add_dataset(db), "hpo": {"strategy": "linear_scaling"}} | EPSILON
    quote = post(api, "/v1/quotes", asked, key=None).json()
    assert quote["hpo"]["runs"] == 7 and quote["fits"], quote
    assert [each["name"] for each in quote["resolved"]["parts"]] == ["model", "optimizer", "scores", "device"]
