"""GET /v1/models: every kind that a job may ask for, with a schema that holds what it says."""

from __future__ import annotations

from typing import Any, get_args

from app.catalogue.model_kinds import CATALOGUE
from app.db.database import Database
from core.contracts.dataset_spec import Task
from core.contracts.job_spec import JobSpec, Model
from tests.conftest import Api
from tests.factories import add_dataset, job_spec


def test_the_catalogue_holds_every_kind_of_model(api: Api) -> None:
    answer = api.client.get("/v1/models", headers=api.headers("analyst"))
    assert answer.status_code == 200 and answer.json()["next"] is None
    items = {each["kind"]: each for each in answer.json()["items"]}
    assert {kind.model_fields["kind"].default for kind in get_args(Model)} == set(items) == set(CATALOGUE)
    for each in items.values():
        assert each["summary"] and each["when_to_use"] and each["source"] and each["takes"]
        assert each["schema"]["properties"]["kind"]["const"] == each["kind"]
        assert each["schema"]["additionalProperties"] is False
    assert api.client.get("/v1/models").status_code == 401


def test_every_task_has_a_model() -> None:
    tasks = {task.model_fields["kind"].default for task in get_args(get_args(Task)[0])}
    assert {kind for entry in CATALOGUE.values() for kind in entry.tasks} == tasks


def quoted(api: Api, body: dict[str, Any]) -> Any:
    return api.client.post("/v1/quotes", json=body, headers=api.headers("analyst"))


def test_a_quote_says_what_the_model_is_made_of(api: Api, db: Database) -> None:
    dataset = add_dataset(db)
    answer = quoted(api, job_spec(dataset, model={"kind": "mlp", "hidden": [7]}))
    assert answer.status_code == 200, answer.text
    model = answer.json()["model"]
    assert model["parameters"] == 2 * 7 + 7 + 7 * 2 + 2
    assert [layer["shapes"]["weight"] for layer in model["layers"]] == [[7, 2], [2, 7]]


def test_a_kind_of_clip_changes_no_price(api: Api, db: Database) -> None:
    dataset = add_dataset(db)
    answers = [
        quoted(api, job_spec(dataset, clipping={"kind": kind})).json() for kind in ("flat", "per_layer", "automatic")
    ]
    assert len({(each["charge"]["train"], each["epsilon"]["value"], each["noise_multiplier"]) for each in answers}) == 1


def test_what_is_no_model_is_refused(api: Api, db: Database) -> None:
    dataset = add_dataset(db)
    wrong: list[dict[str, Any]] = [
        {"model": {"kind": "mlp", "hidden": []}},
        {"model": {"kind": "mlp", "hidden": [True]}},
        {"model": {"kind": "cnn", "preset": "conv2"}},
        {"model": {"kind": "resnet"}},
    ]
    for change in wrong:
        answer = quoted(api, job_spec(dataset, **change))
        assert answer.status_code == 422 and answer.json()["errors"], (change, answer.text)
    assert JobSpec.model_validate(job_spec(dataset, runtime={"dtype": "float64"}))
