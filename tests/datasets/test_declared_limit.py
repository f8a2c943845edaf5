"""How many records a declaration may name is limited, and checked before a file is looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.datasets.conftest import CSV, PUBLIC, Api, MakeApi, private, spec
from tests.datasets.test_blocks import append, rows
from tests.datasets.test_check import check

MANY = 500_000_000
BROKEN = "this is not the file that was declared"


def refusal(answer: Any) -> tuple[str, str]:
    assert answer.status_code == 422, answer.text
    (error,) = answer.json()["errors"]
    return error["pointer"], error["detail"]


def test_half_a_billion_declared_at_once_are_refused_before_the_file_is_read(refusing_api: Api) -> None:
    """A file that cannot be read would be refused for its content, one that is not there as missing."""
    document = spec(**private(records=MANY))
    for answer in (
        refusing_api.upload(document, BROKEN),
        check(refusing_api, document, BROKEN),
        refusing_api.by_path(document | {"path": "absent.csv"}),
        refusing_api.by_path(document | {"upload": "up_" + "a" * 21}),
    ):
        pointer, detail = refusal(answer)
        assert pointer == "/privacy/records"
        assert "500,000,000" in detail and "100,000,000" in detail and "SCRIMP_MAX_RECORDS" in detail


@pytest.mark.parametrize("member", ["train", "holdout", "train_rows", "holdout_rows"])
def test_slots_are_limited_alike(refusing_api: Api, member: str) -> None:
    assert refusal(refusing_api.upload(spec(**private(slots={member: MANY})), BROKEN))[0] == f"/privacy/slots/{member}"


def test_public_data_that_declare_a_number(refusing_api: Api) -> None:
    document = spec(**PUBLIC)
    document["privacy"] = document["privacy"] | {"records": MANY}
    assert refusal(refusing_api.upload(document, BROKEN))[0] == "/privacy/records"


def test_a_block_is_limited_at_its_own_numbers(make_api: MakeApi, tmp_path: Path) -> None:
    """As many as the limit are taken, and one more is refused; a path that does not exist is not looked at."""
    api = make_api(max_records=60, data_root=tmp_path)
    made = api.upload(spec()).json()
    at_once = append(api, made["id"], BROKEN, records=61)
    assert refusal(at_once)[0] == "/records"
    body = json.dumps({"label": "later", "records": 61, "path": "absent.csv"})
    headers = api.headers("owner") | {"Content-Type": "application/json"}
    by_path = api.client.post(f"/v1/datasets/{made['id']}/blocks", content=body, headers=headers)
    assert refusal(by_path)[0] == "/records"
    slots = append(api, made["id"], BROKEN, records=30, slots={"train": 61})
    assert refusal(slots)[0] == "/slots/train"
    assert append(api, made["id"], rows(range(60, 120)), records=60).status_code == 201


def test_a_large_file_is_refused_by_the_request(make_api: MakeApi) -> None:
    """Nothing waits to be read in the background."""
    api = make_api(read_at_once_bytes=1, max_records=59)
    before = api.stored()
    assert refusal(api.upload(spec(), CSV))[0] == "/privacy/records"
    assert api.stored() == before and api.count() == 0
