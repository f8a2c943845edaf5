"""A table is registered, trained on and declared anew; jobs scale its cells by the version of their price."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from app.db.declared_version import declared
from app.db.models import Dataset, Job
from core.contracts.dataset_spec import DatasetSpec
from core.parts.damage import DataDamagedError
from core.parts.table_cells import scaled
from tests.datasets.conftest import Api, spec
from tests.datasets.test_declarations import declare
from tests.datasets.test_retire import submit
from worker.data.loaded_parts import load_stored
from worker.messages import Part, Shape

FEATURES: dict[str, Any] = {
    "kind": "table",
    "columns": [
        {"name": "age", "kind": "number", "range": [0, 120], "missing": "flag"},
        {"name": "sex", "kind": "category", "values": ["f", "m"], "unknown": "other"},
    ],
}
CSV = "age,sex,y\n" + "".join(f"{i if i % 7 else ''},{'fmx'[i % 3]},{i % 2}\n" for i in range(60))


def loaded(api: Api, job_id: str) -> np.ndarray:
    """What the worker of a job would load."""
    with api.db.read() as session:
        job = session.get_one(Job, job_id)
        said, part = declared(session, job), session.get_one(Dataset, job.dataset_id).parts.train
    path = str(api.settings.storage_root / part.path)
    features = DatasetSpec.model_validate(said.spec).features
    stored = load_stored(Part(path=path, sha256=part.sha256), Shape.of(said.shape), lambda read: scaled(read, features))
    return np.asarray(stored.x)


@pytest.mark.parametrize("cell", [r'"\ud800"', r'"\udcff"', r'"a\udcff\ud800"'])
def test_half_of_a_surrogate_pair_is_another_category(api: Api, cell: str) -> None:
    columns = [{"name": "sex", "kind": "category", "values": ["f", "m"], "unknown": "other"}]
    lines = [f'{{"sex": {each}, "y": {n % 2}}}\n' for n, each in enumerate(['"f"', '"m"', cell] * 20)]
    sent = spec(features={"kind": "table", "columns": columns}, format="jsonl")
    made = api.upload(sent, "".join(lines))
    assert made.status_code == 201, made.text


def test_jobs_scale_cells_by_the_version_of_their_price(api: Api) -> None:
    made = api.upload(spec(features=FEATURES), CSV)
    assert made.status_code == 201, made.text
    assert made.json()["shape"]["features"] == 5 and not made.json()["shape"]["sparse"]
    dataset = made.json()["id"]
    before = submit(api, dataset).json()["id"]
    x = loaded(api, before)
    assert x.shape[1] == 5 and set(x[:, 2:].sum(axis=1)) == {1.0} and (np.abs(x) <= 1.0).all()
    answer = declare(api, dataset, ranges={"age": [0, 60]})
    assert answer.status_code == 201, answer.text
    after = submit(api, dataset, "later").json()["id"]
    assert loaded(api, before).tobytes() == x.tobytes()
    # 2 x/120 − 1 and 2 x/60 − 1; a missing age is 0 in both.
    np.testing.assert_allclose(loaded(api, after)[:, 0], np.where(x[:, 1] == 1, 0.0, 2 * x[:, 0] + 1), atol=1e-6)


@pytest.mark.parametrize(
    "ranges",
    [{"sex": [0, 1]}, {"none": [0, 1]}, {"age": [5, 5]}, {"age": ["2020-01-01", "2020-02-01"]}, {"age": [0, 120]}],
)
def test_ranges_that_fit_no_column(api: Api, ranges: dict[str, Any]) -> None:
    dataset = api.upload(spec(features=FEATURES), CSV).json()["id"]
    assert declare(api, dataset, ranges=ranges).status_code == 422
    plain = api.upload(spec("plain")).json()["id"]
    assert declare(api, plain, ranges={"a": [0, 1]}).json()["errors"][0]["pointer"] == "/ranges"


def test_a_part_without_the_declared_columns_is_damaged(api: Api) -> None:
    made = api.upload(spec()).json()
    with api.db.read() as session:
        part = session.get_one(Dataset, made["id"]).parts.train
    path, shape = str(api.settings.storage_root / part.path), Shape.model_validate(made["shape"])
    features = DatasetSpec.model_validate(spec(features=FEATURES | {"columns": FEATURES["columns"][:1]})).features
    with pytest.raises(DataDamagedError):
        load_stored(Part(path=path, sha256=part.sha256), shape, lambda read: scaled(read, features))


def test_a_table_takes_models_of_dense_features(api: Api) -> None:
    dataset = api.upload(spec(features=FEATURES), CSV).json()["id"]
    for model in ({"kind": "linear"}, {"kind": "mlp", "hidden": [8]}):
        asked = api.client.post("/v1/quotes", json=quoted(dataset, model), headers=api.headers("owner"))
        assert asked.status_code == 200, asked.text
    assert asked.json()["model"]["layers"][0]["shapes"]["weight"] == [8, 5]


def quoted(dataset: str, model: dict[str, Any]) -> dict[str, Any]:
    from tests.factories import job_spec

    return job_spec(dataset, model=model)
