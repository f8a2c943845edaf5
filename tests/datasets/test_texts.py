"""Columns of texts: read in each format, stored as fixed numbers, counted by statistics, and seen by no model."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.db.models import Dataset
from core.contracts.dataset_spec import ClassificationTask, DatasetSpec
from core.contracts.table import TableFeatures
from core.errors import InvalidRequest
from core.parts.inputs import checked
from core.parts.part_files import load_part
from tests.datasets.conftest import Api, spec
from tests.datasets.test_declarations import declare
from tests.datasets.test_retire import submit
from tests.datasets.test_tables import loaded

CODES = {"name": "code", "longest": 5, "characters": "ABCDE0123456789."}
NAMES = {"name": "name", "longest": 30, "characters": "abcdefghijklmnopqrstuvwxyzäöüß "}
COLUMNS = [{"name": "age", "kind": "number", "range": [0, 120]}]
FEATURES: dict[str, Any] = {"kind": "table", "columns": COLUMNS, "texts": [CODES, NAMES]}
ROWS: list[dict[str, Any]] = [
    {"age": number, "code": ("E11.9", "A00", "")[number % 3], "name": ("jörg groß", "al")[number % 2], "y": number % 2}
    for number in range(60)
]


def csv(rows: list[dict[str, Any]]) -> str:
    return "age,code,name,y\n" + "".join(f"{row['age']},{row['code']},{row['name']},{row['y']}\n" for row in rows)


def stored(api: Api, dataset: str) -> list[dict[str, Any]]:
    """The records of a part as they were read."""
    with api.db.read() as session:
        row = session.get_one(Dataset, dataset)
        part, features = row.parts.train, DatasetSpec.model_validate(row.spec).features
    assert part is not None
    assert isinstance(features, TableFeatures)
    path = str(api.settings.storage_root / part.path)
    cells = np.asarray(load_part(path, part.sha256).x)
    assert cells.shape[1] == features.stored_width == 1 + 1 + 8
    code, name = features.texts
    return [
        {"age": int(row[0]), "code": code.text_of(row[1:2].tolist()), "name": name.text_of(row[2:].tolist())}
        for row in cells
    ]


@pytest.mark.parametrize("format", ["csv", "parquet", "jsonl"])
def test_texts_are_stored_as_they_are(api: Api, format: str) -> None:
    content: Any = csv(ROWS)
    if format == "parquet":
        out = io.BytesIO()
        pq.write_table(pa.Table.from_pylist([row | {"code": row["code"] or None} for row in ROWS]), out)
        content = out.getvalue()
    elif format == "jsonl":
        content = "".join(
            f'{{"age": {r["age"]}, "code": "{r["code"]}", "name": "{r["name"]}", "y": {r["y"]}}}\n' for r in ROWS
        )
    made = api.upload(spec(features=FEATURES, format=format), content)
    assert made.status_code == 201, made.text
    assert made.json()["shape"]["features"] == 1
    rows = stored(api, made.json()["id"])
    assert sorted(rows, key=lambda row: row["age"]) == [
        {name: row[name] for name in ("age", "code", "name")} for row in ROWS if row["age"] in {r["age"] for r in rows}
    ]


def test_a_model_does_not_see_them(api: Api) -> None:
    dataset = api.upload(spec(features=FEATURES), csv(ROWS)).json()["id"]
    x = loaded(api, submit(api, dataset).json()["id"])
    assert x.shape[1] == 1
    assert set(x[:, 0]) == {np.float32(2 * row["age"] / 120 - 1) for row in stored(api, dataset)}


@pytest.mark.parametrize("wrong", ["A00000", "a", "Ä", "A\u20ac", "A 0"])
def test_a_text_outside_its_declaration_refuses_the_file(api: Api, wrong: str) -> None:
    refused = api.upload(spec(features=FEATURES), csv([*ROWS, ROWS[0] | {"code": wrong}]))
    assert refused.status_code == 422
    error = refused.json()["errors"][0]
    assert error["pointer"] == "/features/texts/0" and "not a text of declared characters and length" in error["detail"]
    dropped = api.upload(spec(features=FEATURES, wrong_rows="drop"), csv([*ROWS, ROWS[0] | {"code": wrong}]))
    assert dropped.status_code == 201 and any("1 rows" in each for each in dropped.json()["warnings"]), dropped.text
    assert len(stored(api, dropped.json()["id"])) <= len(ROWS)


def test_bytes_that_are_no_utf8_refuse_the_file(api: Api) -> None:
    content = csv(ROWS).encode() + b"5,\xff\xfe,al,1\n"
    assert api.upload(spec(features=FEATURES), content).status_code == 422


@pytest.mark.parametrize("cell", [r'"\ud800"', r'"\udcff"', r'"A\u0000"', '["A"]', "1e400", "true"])
def test_a_json_cell_that_is_no_declared_text_refuses_the_file_or_drops_its_row(api: Api, cell: str) -> None:
    right = "".join(f'{{"age": {n}, "code": "A00", "name": "al", "y": {n % 2}}}\n' for n in range(60))
    content = right + f'{{"age": 5, "code": {cell}, "name": "al", "y": 1}}\n'
    refused = api.upload(spec(features=FEATURES, format="jsonl"), content)
    assert refused.status_code == 422 and refused.json()["errors"][0]["pointer"] == "/features/texts/0", refused.text
    dropped = api.upload(spec(features=FEATURES, format="jsonl", wrong_rows="drop"), content)
    assert dropped.status_code == 201 and any("1 rows" in each for each in dropped.json()["warnings"]), dropped.text


@pytest.mark.parametrize(
    "texts",
    [
        [CODES, CODES],
        [CODES | {"name": "age"}],
        [CODES | {"name": "y"}],
        [CODES | {"characters": "AA"}],
        [CODES | {"characters": "A"}],
        [CODES | {"characters": "A\n"}],
        [CODES | {"longest": 0}],
        [CODES | {"longest": 41}],
    ],
)
def test_a_declaration_that_cannot_be(api: Api, texts: list[dict[str, Any]]) -> None:
    assert api.upload(spec(features=FEATURES | {"texts": texts}), csv(ROWS)).status_code == 422


def test_a_later_version_keeps_them(api: Api) -> None:
    dataset = api.upload(spec(features=FEATURES), csv(ROWS)).json()["id"]
    answer = declare(api, dataset, ranges={"age": [0, 60]})
    assert answer.status_code == 201, answer.text
    assert [each["name"] for each in api.get(f"/v1/datasets/{dataset}").json()["features"]["texts"]] == ["code", "name"]
    assert len(stored(api, dataset)) > 0


def test_an_order_of_characters_changes_no_content(api: Api) -> None:
    """Records are compared by their texts, not by the numbers that stand for them."""
    first = api.upload(spec(features=FEATURES), csv(ROWS)).json()
    turned = CODES | {"characters": CODES["characters"][::-1]}  # type: ignore[index]
    second = api.upload(spec("again", features=FEATURES | {"texts": [turned, NAMES]}), csv(ROWS))
    assert first["id"] in second.text


def test_synthetic_rows_are_of_the_other_columns(api: Api) -> None:
    dataset = api.upload(spec(features=FEATURES), csv(ROWS)).json()["id"]
    job = {"kind": "synthetic", "dataset": dataset, "privacy": {"target_epsilon": 1.0}}
    headers = api.headers("owner")
    quote = api.client.post("/v1/quotes", json=job, headers=headers)
    assert quote.status_code in (200, 201), quote.text
    named = api.client.post("/v1/quotes", json=job | {"columns": ["age", "code"]}, headers=headers)
    assert named.status_code == 422 and named.json()["errors"][0]["pointer"] == "/columns"


def test_a_prediction_needs_no_texts() -> None:
    features = TableFeatures.model_validate(FEATURES)
    task = ClassificationTask(label="y", classes=[0, 1])
    for record in ({"age": 60}, {"age": 60, "code": "E11.9"}, {"age": 60, "more": 1}):
        assert checked([record], task, features, features.width) == [[0.0]]
    with pytest.raises(InvalidRequest, match="age"):
        checked([{"ages": 60}], task, features, features.width)
