"""Requests that are not what they should be are refused as what they are, and never end in a 500."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from app.db.database import Database
from app.web.pagination import encode_cursor
from tests.conftest import Api
from tests.factories import add_dataset, job_spec

FORGED = [(10**30,), (-1, 2), ("0001-01-01T00:00:00+14:00", "x"), ("2026-01-01T00:00:00", "x"), ("\ud800", "x")]


@pytest.mark.parametrize("key", FORGED, ids=str)
def test_forged_cursors(api: Api, key: tuple[Any, ...], db: Database) -> None:
    dataset = add_dataset(db)
    for path in ("/v1/jobs", "/v1/datasets", f"/v1/datasets/{dataset}/ledger/entries"):
        answer = api.client.get(path, params={"after": encode_cursor(*key)}, headers=api.headers("analyst"))
        assert answer.status_code == 422, (path, answer.text)


def test_a_chunked_body_over_the_limit_is_too_large(api: Api) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(40):
            yield b"x" * 65_536

    headers = api.headers("analyst", **{"Content-Type": "application/json"})
    answer = api.client.post("/v1/quotes", content=chunks(), headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (413, "/problems/too-large")


NO_NUMBERS: list[dict[str, Any]] = [
    {"length": {"steps": True}},
    {"length": {"steps": "5"}},
    {"optimizer": {"kind": "dp_sgd", "learning_rate": "1"}},
    {"privacy": {"target_epsilon": True}},
    {"evaluation": {"on": "holdout", "noise_mu": "0.05"}},
]


@pytest.mark.parametrize("change", NO_NUMBERS, ids=str)
def test_what_looks_like_a_number_is_none(api: Api, db: Database, change: dict[str, Any]) -> None:
    answer = api.client.post("/v1/quotes", json=job_spec(add_dataset(db), **change), headers=api.headers("analyst"))
    assert answer.status_code == 422, answer.text


def test_a_document_without_its_content_type_is_told_so(api: Api) -> None:
    """What `curl -d` sends unless told otherwise."""
    headers = api.headers("analyst", **{"Content-Type": "application/x-www-form-urlencoded"})
    answer = api.client.post("/v1/quotes", content=b'{"dataset": "x"}', headers=headers)
    assert answer.status_code == 422
    assert "application/json" in answer.json()["errors"][0]["detail"], answer.text


def test_a_syntax_error_says_where(api: Api) -> None:
    headers = api.headers("analyst", **{"Content-Type": "application/json"})
    error = api.client.post("/v1/quotes", content=b'{"dataset": "x",}', headers=headers).json()["errors"][0]
    assert error["pointer"] == ""
    assert "not JSON" in error["detail"]
