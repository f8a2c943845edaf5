"""Registrations that are refused: with a clear problem document, and nothing left behind."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from app.datasets import service
from app.db.models import Account, Dataset
from app.storage import folder, parts
from tests.datasets.conftest import CSV, GRAPH, MIB, PUBLIC, Api, MakeApi, private, spec

CAP = {"epsilon": 4.0, "delta": 1e-5}

DECLARATIONS: list[tuple[str, dict[str, Any], str, str]] = [
    ("no cap", {"privacy": {"sensitivity": "private", "records": 60}}, "/privacy", "cap"),
    ("no count", {"privacy": {"sensitivity": "private", "cap": CAP}}, "/privacy", "records"),
    ("count of 0", private(records=0), "/privacy/records", "greater"),
    ("a user without a bound", private(unit="user", user_column="u"), "/privacy", "max_records_per_user"),
    ("a bound without users", private(max_records_per_user=3), "/privacy", "max_records_per_user"),
    (
        "a cap on public data",
        {"privacy": {"sensitivity": "public", "cap": CAP}},
        "/privacy",
        "public data set has no cap",
    ),
    ("epsilon 0", private(cap={"epsilon": 0.0}), "/privacy/cap/epsilon", "greater"),
    ("epsilon -1", private(cap={"epsilon": -1.0}), "/privacy/cap/epsilon", "greater"),
    ("epsilon 1000", private(cap={"epsilon": 1000.0}), "/privacy/cap/epsilon", "less"),
    ("delta 0", private(cap={"epsilon": 1.0, "delta": 0.0}), "/privacy/cap/delta", "greater"),
    ("delta 1", private(cap={"epsilon": 1.0, "delta": 1.0}), "/privacy/cap/delta", "less"),
    ("order for gdp", private(order=4.0), "/privacy", "rdp"),
    ("no rdp budget", private(filter="rdp", cap={"epsilon": 0.01, "delta": 1e-9}), "/privacy/cap", "budget"),
    (
        "no budget at the order",
        private(filter="rdp", order=1.5, cap={"epsilon": 0.5, "delta": 1e-9}),
        "/privacy/cap",
        "budget",
    ),
    ("one class", {"task": {"kind": "classification", "label": "y", "classes": [0]}}, "classes", "at least 2"),
    ("a class twice", {"task": {"kind": "classification", "label": "y", "classes": [1, "1"]}}, "/task", "distinct"),
    (
        "the label as a feature",
        {"features": {"kind": "columns", "columns": ["a", "y"]}},
        "",
        "label cannot also be a feature",
    ),
    ("a column twice", {"features": {"kind": "columns", "columns": ["a", "a"]}}, "/features", "distinct"),
    ("no columns", {"features": {"kind": "columns", "columns": []}}, "/features", "at least 1"),
    ("a tensor of a csv", {"features": {"kind": "tensor", "array": "x"}}, "", "npz"),
    ("all held out", {"holdout": {"kind": "split", "fraction": 1.0}}, "/holdout", "less"),
    (
        "too little held out",
        {"holdout": {"kind": "split", "fraction": 0.001}},
        "/holdout/fraction",
        "60 for training and 0",
    ),
    (
        "too little left",
        {"holdout": {"kind": "split", "fraction": 0.999}},
        "/holdout/fraction",
        "0 for training and 60",
    ),
    ("a strange name", {"name": "../x"}, "/name", "pattern"),
    ("an unknown format", {"format": "pickle"}, "/format", "csv"),
    ("an unknown member", {"seed": 3}, "/seed", "not permitted"),
    ("a path and an upload", {"path": "d.csv"}, "/path", "not both"),
]


@pytest.mark.parametrize("case", DECLARATIONS, ids=[case[0] for case in DECLARATIONS])
def test_bad_declarations(refusing_api: Api, case: tuple[str, dict[str, Any], str, str]) -> None:
    _, changes, pointer, text = case
    response = refusing_api.upload(spec(**changes))
    problem = response.json()
    assert (response.status_code, problem["type"]) == (422, "/problems/invalid-request"), problem
    assert response.headers["content-type"] == "application/problem+json"
    assert any(pointer in each["pointer"] and text in each["detail"] for each in problem["errors"]), problem
    assert refusing_api.stored() == set()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"name": NaN}', "\x00"])
def test_specs_that_are_no_documents(refusing_api: Api, text: str) -> None:
    assert refusing_api.upload(text).status_code == 422


# The tables of every format are in tests/formats: here, that its problems arrive.
DATA: list[tuple[str, dict[str, Any], str, str, int]] = [
    ("NaN", {}, "a,b,y\n1,nan,0\n", "b", 1),
    ("missing", {}, "a,b,y\n1,,0\n2,,0\n", "b", 2),
    ("unknown class", {}, "a,b,y\n1,2,3\n1,2,0\n", "y", 1),
]


@pytest.mark.parametrize("case", DATA, ids=[case[0] for case in DATA])
def test_bad_data_name_column_and_count(refusing_api: Api, case: tuple[str, dict[str, Any], str, str, int]) -> None:
    _, changes, text, column, count = case
    response = refusing_api.upload(spec(**changes), text)
    problem = response.json()
    assert (response.status_code, problem["type"]) == (422, "/problems/invalid-request"), problem
    assert [(each["column"], each["count"]) for each in problem["errors"] if "row" not in each] == [(column, count)]
    assert column in problem["errors"][0]["detail"] and str(count) in problem["errors"][0]["detail"]
    assert refusing_api.stored() == set()


@pytest.mark.parametrize(
    "text", ["", "a,b,y\n", "a,b,y\n1,2\n", "a,b,b,y\n1,2,3,4\n", "a,z,y\n1,2,3\n", 'a,b,y\n1,"2,0\n']
)
def test_broken_files(refusing_api: Api, text: str) -> None:
    response = refusing_api.upload(spec(), text)
    assert (response.status_code, response.json()["type"]) == (422, "/problems/invalid-request"), response.text
    assert refusing_api.stored() == set()


def test_files_must_be_those_that_are_declared(api: Api) -> None:
    public = {"holdout": {"kind": "public"}}
    for response, pointer in (
        (api.upload(spec(), None), "/file"),
        (api.upload(spec(**public)), "/holdout_file"),
        (api.upload(spec(), holdout_file=CSV), "/holdout"),
        (api.upload(spec(holdout=None), holdout_file=CSV), "/holdout"),
        (api.upload(spec(), edges_file="source,target\n"), "/features"),
        (api.upload(spec(features=GRAPH), "id,a,b,y\n1,2,3,1\n"), "/edges_file"),
    ):
        assert response.status_code == 422
        assert response.json()["errors"][0]["pointer"] == pointer


def test_a_name_is_taken_once(api: Api) -> None:
    assert api.upload(spec()).status_code == 201
    response = api.upload(spec(), CSV + "77,1,1\n")
    assert (response.status_code, response.json()["type"], response.json()["name"]) == (
        409,
        "/problems/duplicate-name",
        "small",
    )
    assert api.count() == 1 and len(api.stored()) == 5


REORDERED = "y,b,a\n" + "".join(f"{i % 2},{i * i % 7}.0,{i}e0\n" for i in reversed(range(60)))
DIFFERENT = CSV + "61,0,1\n"
OTHER = "a,b,y\n" + "".join(f"{i}.5,0,{i % 2}\n" for i in range(60))


ONE_COLUMN = {"features": {"kind": "columns", "columns": ["a"]}}


@pytest.mark.parametrize(
    ("first", "attempts"),
    [
        ({}, [({}, REORDERED), (ONE_COLUMN, CSV), (PUBLIC, CSV)]),
        (PUBLIC, [({}, CSV), ({}, REORDERED)]),
    ],
    ids=["private first", "public first"],
)
def test_private_content_is_registered_once(
    api: Api, first: dict[str, Any], attempts: list[tuple[dict[str, Any], str]]
) -> None:
    made = api.upload(spec("one", **first))
    assert made.status_code == 201
    for changes, text in attempts:
        response = api.upload(spec("two", **changes), text)
        assert (response.status_code, response.json()["type"]) == (409, "/problems/duplicate-content"), changes
        assert response.json()["dataset"] == made.json()["id"]
    assert api.count() == 1
    with api.db.read() as session:
        assert len(list(session.scalars(select(Account)))) == (0 if first else 1)
    assert api.upload(spec("three"), DIFFERENT).status_code == 201


def test_public_content_may_be_registered_again(api: Api) -> None:
    assert [api.upload(spec(name, **PUBLIC)).status_code for name in ("one", "two")] == [201, 201]


def test_private_content_can_not_come_back_as_a_holdout(api: Api) -> None:
    api.upload(spec("one"))
    other = OTHER
    response = api.upload(spec("two", holdout={"kind": "public"}), other, holdout_file=REORDERED)
    assert (response.status_code, response.json()["type"]) == (409, "/problems/duplicate-content")
    # Nor a public hold-out as private data.
    assert api.upload(spec("three", holdout={"kind": "public"}), other, holdout_file=DIFFERENT).status_code == 201
    assert api.upload(spec("four"), DIFFERENT).status_code == 409


def test_the_data_are_not_their_own_holdout(api: Api) -> None:
    for holdout in (CSV, REORDERED):
        response = api.upload(spec(holdout={"kind": "public"}), holdout_file=holdout)
        assert response.status_code == 422 and response.json()["errors"][0]["pointer"] == "/holdout_file"


def test_of_many_registrations_at_once_one_is_let_in(api: Api) -> None:
    codes: list[int] = []
    threads = [
        threading.Thread(target=lambda i=i: codes.append(api.upload(spec(f"n{i}")).status_code)) for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == [201, 409, 409, 409]
    assert api.count() == 1 and len(api.stored()) == 5


def test_a_parser_out_of_memory_is_a_refusal_and_the_api_lives(make_api: MakeApi, tmp_path: Path) -> None:
    api = make_api(parse_memory_bytes=300 * MIB, max_unpack_ratio=1e6)
    np.savez_compressed(tmp_path / "d.npz", x=np.zeros((8 * MIB, 2)), y=np.zeros(8 * MIB, dtype=np.int8))
    document = spec(format="npz", features={"kind": "tensor", "array": "x"})
    response = api.upload(document, tmp_path / "d.npz")
    assert (response.status_code, response.json()["type"]) == (422, "/problems/limit-exceeded"), response.text
    assert "300 MiB" in response.json()["detail"]
    assert api.stored() == set() and api.get("/v1/datasets").status_code == 200


def test_a_parser_out_of_time_is_a_refusal(make_api: MakeApi) -> None:
    api = make_api(parse_time_s=0.0)
    response = api.upload(spec())
    assert (response.status_code, response.json()["type"]) == (422, "/problems/limit-exceeded")
    assert api.stored() == set()


def test_a_failure_after_the_parsing_leaves_nothing(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(parts, "keep", fail)
    assert api.upload(spec()).status_code == 500
    assert api.count() == 0 and api.stored() == set()
    monkeypatch.undo()
    assert api.upload(spec()).status_code == 201


def test_sweep_removes_what_crashes_left_but_nothing_that_is_used(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    made = api.upload(spec()).json()
    root: Path = api.settings.storage_root
    for orphan in (root / "staging" / "in_x", root / "datasets" / "ds_x"):
        orphan.mkdir()
        (orphan / "file").write_text("data")
    assert service.sweep(api.settings) == 0, "they may be in use"
    monkeypatch.setattr(folder, "STALE_S", -1.0)
    assert service.sweep(api.settings) == 1
    # What is not in this database may be in the right one.
    assert (root / "datasets" / "ds_x" / "file").exists()
    assert api.stored() >= {f"datasets/{made['id']}/{name}.arrow" for name in ("train", "holdout")}
    with api.db.read() as session:
        assert session.scalar(select(Dataset.name)) == "small"
