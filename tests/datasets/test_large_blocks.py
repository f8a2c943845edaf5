"""Large blocks are read in the background: compared, refused and stored as at once; the owner alone is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import obstore
import pytest
from sqlalchemy import func, select

from app.datasets import growth
from app.datasets.reader import Reader
from app.db.models import Account, AuditEntry, Dataset, DatasetContent, DatasetReading, LedgerEntry
from app.ledger.transparency.heads import Heads
from app.ledger.verification import verify
from app.lifecycle.sweeper import expire_all_leases
from app.storage.s3 import client
from tests.datasets.conftest import Api, MakeApi, spec
from tests.datasets.test_blocks import append, rows
from tests.datasets.test_resumable import whole


@pytest.fixture
def api(make_api: MakeApi, tmp_path: Path) -> Api:
    """An API that reads every file in the background. Its reader is run by the tests."""
    (tmp_path / "root").mkdir()
    return make_api(read_at_once_bytes=10, data_root=tmp_path / "root")


@pytest.fixture
def reader(api: Api) -> Reader:
    return Reader(api.db, api.settings)


def counted(api: Api, *tables: type[Any]) -> list[int]:
    with api.db.read() as session:
        return [session.scalar(select(func.count()).select_from(table)) or 0 for table in tables]


def appended(api: Api, dataset: str, file: str, label: str = "two", **more: Any) -> dict[str, Any]:
    answer = append(api, dataset, file, label, **more)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    assert (found["state"], found["dataset"], found["ledger"]) == ("reading", dataset, None)
    return found


def problem(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"].removeprefix("/problems/")


def ready(api: Api, reader: Reader) -> str:
    made = api.upload(spec()).json()
    assert made["state"] == "reading" and reader.run_once()
    return str(made["id"])


def test_a_large_block_is_read_in_the_background(api: Api, reader: Reader) -> None:
    dataset = ready(api, reader)
    api.share(dataset)
    found = appended(api, dataset, rows(range(60, 120)))
    states = {who: [each["state"] for each in listed(api, dataset, who)] for who in ("owner", "admin", "analyst")}
    assert states == {"owner": ["ready", "reading"], "admin": ["ready", "reading"], "analyst": ["ready"]}
    assert [each["id"] for each in api.get("/v1/datasets").json()["items"]] == [dataset]
    assert api.get(f"/v1/datasets/{found['id']}", "analyst").status_code == 404
    again = append(api, dataset, rows(range(120, 180)), "two")
    assert problem(again) == (409, "duplicate-label")
    assert counted(api, Dataset, Account) == [1, 1]
    assert reader.run_once() and not reader.run_once()
    assert [each["label"] for each in listed(api, dataset, "analyst")] == ["first", "two"]
    shown = api.get(f"/v1/datasets/{found['id']}").json()
    assert shown["reading"]["read"]["units"] == 60 and shown["name"] == "small/two"
    assert Heads.of(api.settings).read(found["id"]) is not None
    with api.db.read() as session:
        assert verify(session, found["id"]).valid


def listed(api: Api, dataset: str, who: str = "owner") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get(f"/v1/datasets/{dataset}/blocks", who).json()["items"]
    return found


def test_a_large_block_that_shares_a_record_is_refused_to_its_owner_alone(api: Api, reader: Reader) -> None:
    """What others see, the audit log included, is the same with and without the shared record until it is a block."""
    dataset = ready(api, reader)
    api.share(dataset)
    found = appended(api, dataset, rows(range(59, 120)))
    seen = [(listed(api, dataset, who), api.get(f"/v1/datasets/{dataset}", who).json()) for who in ("analyst",)]
    tables = (Dataset, Account, LedgerEntry, DatasetContent, AuditEntry)
    before = counted(api, *tables)
    assert reader.run_once()
    assert counted(api, *tables) == before
    assert seen == [(listed(api, dataset, who), api.get(f"/v1/datasets/{dataset}", who).json()) for who in ("analyst",)]
    rejected = listed(api, dataset)[1]
    assert (rejected["state"], rejected["reading"]["problem"]["shared"]) == ("rejected", {"first": 1})
    assert api.get(f"/v1/datasets/{found['id']}").json()["state"] == "rejected"
    assert [each["state"] for each in listed(api, dataset, "admin")] == ["ready"]
    assert api.get(f"/v1/datasets/{found['id']}", "admin").status_code == 404
    assert 'scrimp_readings{state="rejected"}' not in api.get("/metrics", "admin").text
    assert {path.split("/")[1] for path in api.stored()} == {dataset}
    appended(api, dataset, rows(range(60, 120)))
    assert reader.run_once() and listed(api, dataset, "analyst")[1]["label"] == "two", "its label was free"


def test_a_large_block_has_the_slots_that_it_was_sent_with(api: Api, reader: Reader) -> None:
    dataset = ready(api, reader)
    found = appended(api, dataset, rows(range(60, 120)), slots={"train": 300})
    few = appended(api, dataset, rows(range(120, 180)), "three", records=20, slots={"train": 20, "holdout": 200})
    assert reader.run_once() and reader.run_once()
    assert api.get(f"/v1/datasets/{found['id']}").json()["shape"]["slots"]["train"]["units"] == 300
    refused = api.get(f"/v1/datasets/{few['id']}").json()["reading"]["problem"]["errors"]
    assert [each["pointer"] for each in refused] == ["/slots/train"]


def test_a_block_by_upload_and_by_path(api: Api, reader: Reader) -> None:
    dataset = ready(api, reader)
    path = f"/v1/datasets/{dataset}/blocks"
    content = rows(range(60, 120)).encode()
    upload = whole(api, content)
    body = {"label": "two", "records": 60, "upload": upload}
    made = api.client.post(path, json=body, headers=api.headers("owner"))
    assert made.status_code == 201, made.text
    assert api.get(f"/v1/uploads/{upload}").status_code == 404, "it is used up"
    assert api.settings.data_root is not None
    (api.settings.data_root / "three.csv").write_text(rows(range(120, 180)))
    body = {"label": "three", "records": 60, "path": "three.csv"}
    assert api.client.post(path, json=body, headers=api.headers("owner")).status_code == 201
    assert reader.run_once() and reader.run_once()
    assert [each["state"] for each in listed(api, dataset)] == ["ready"] * 3


def test_a_large_block_from_a_bucket(make_api: MakeApi, s3_bucket: str) -> None:
    """It is fetched and read in the background, as it was accepted; one that has changed since is refused."""
    api = make_api(read_at_once_bytes=10, data_buckets=[s3_bucket.removeprefix("s3://")])
    reader = Reader(api.db, api.settings)
    dataset = ready(api, reader)
    for label, first, changed in (("two", 60, False), ("three", 120, True)):
        address, key = f"{s3_bucket}/data/{label}.csv", f"data/{label}.csv"
        obstore.put(client(s3_bucket), key, rows(range(first, first + 60)).encode())
        body = {"label": label, "records": 60, "path": address}
        made = api.client.post(f"/v1/datasets/{dataset}/blocks", json=body, headers=api.headers("owner"))
        assert made.status_code == 201 and made.json()["state"] == "reading", made.text
        if changed:
            obstore.put(client(s3_bucket), key, rows(range(180, 240)).encode())
        assert reader.run_once() and not reader.run_once()
        assert s3_bucket not in api.get(f"/v1/datasets/{made.json()['id']}").text, "where it lay is not shown"
    found = listed(api, dataset)
    assert [each["state"] for each in found] == ["ready", "ready", "rejected"]
    assert api.get(f"/v1/datasets/{found[1]['id']}").json()["reading"]["read"]["units"] == 60
    assert {path.split("/")[1] for path in api.stored()} == {dataset, found[1]["id"]}, "no copy of a file is left"


def test_two_blocks_that_share_a_record_are_read_at_once(api: Api, reader: Reader, monkeypatch: Any) -> None:
    """The second was compared before the first was stored: it is compared again, and refused."""
    dataset = ready(api, reader)
    appended(api, dataset, rows(range(60, 120)), "two")
    appended(api, dataset, rows(range(119, 180)), "three")
    compare, raced = growth.check_units, []

    def race(*args: Any) -> None:
        compare(*args)
        if not raced:
            raced.append(None)
            assert Reader(api.db, api.settings).run_once()

    monkeypatch.setattr(growth, "check_units", race)
    monkeypatch.setattr("app.datasets.read_file.AGAIN_S", 0.0)
    assert reader.run_once()
    assert sorted(each["state"] for each in listed(api, dataset)) == ["ready", "ready", "rejected"]


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_a_slow_reader_that_lost_its_claim_takes_nothing_from_the_block(
    make_api: MakeApi, kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped before it compared the block, and finds it among the others now. Without the digests of the
    block's units no later block could be compared with it."""
    bucket = {"object_store": request.getfixturevalue("s3_bucket")} if kind == "bucket" else {}
    api = make_api(read_at_once_bytes=10, **bucket)
    dataset = ready(api, Reader(api.db, api.settings))
    block = appended(api, dataset, rows(range(60, 120)))["id"]
    compare, late = growth.check_units, []

    def stopped(*args: Any) -> None:
        if not late:
            late.append(None)
            expire_all_leases(api.db)
            assert Reader(api.db, api.settings).run_once()
        compare(*args)

    monkeypatch.setattr(growth, "check_units", stopped)
    assert Reader(api.db, api.settings).run_once()
    assert [each["state"] for each in listed(api, dataset)] == ["ready", "ready"]
    appended(api, dataset, rows(range(120, 180)), "three")
    assert Reader(api.db, api.settings).run_once()
    assert [each["state"] for each in listed(api, dataset)] == ["ready", "ready", "ready"]
    if kind == "bucket":
        objects = [each["path"] for some in obstore.list(client(bucket["object_store"])) for each in some]
        publications = {path.split("/")[2] for path in objects if path.startswith(f"datasets/{block}/")}
        assert len(publications) == 1, "what the late one published is gone"


def test_a_block_is_read_under_the_declaration_and_the_cap_of_its_end(api: Api, reader: Reader) -> None:
    dataset = ready(api, reader)
    appended(api, dataset, rows(range(60, 120)))
    headers = api.headers("owner") | {"If-Match": "*"}
    cap = {"epsilon": 2.0, "reason": "less"}
    assert api.client.post(f"/v1/datasets/{dataset}/ledger/cap", json=cap, headers=headers).status_code == 200
    declared = {"classes": [0, 1, 2]}
    post = api.client.post
    assert post(f"/v1/datasets/{dataset}/declarations", json=declared, headers=headers).status_code == 201
    assert reader.run_once()
    found = listed(api, dataset)[1]
    assert (found["ledger"]["cap"]["value"], found["shape"]["outputs"]) == (2.0, 3)


def test_a_block_of_a_retired_data_set_is_rejected(api: Api, reader: Reader) -> None:
    dataset = ready(api, reader)
    found = appended(api, dataset, rows(range(60, 120)))
    assert api.client.post(f"/v1/datasets/{dataset}/retire", headers=api.headers("owner")).status_code == 200
    assert reader.run_once()
    with api.db.read() as session:
        assert session.get_one(DatasetReading, found["id"]).state == "rejected"
    assert counted(api, Dataset) == [1]


def test_a_block_is_withdrawn(api: Api, reader: Reader) -> None:
    dataset = ready(api, reader)
    found = appended(api, dataset, rows(range(60, 120)))
    gone = api.client.delete(f"/v1/datasets/{found['id']}/content", headers=api.headers("owner"))
    assert gone.status_code == 200, gone.text
    assert not reader.run_once() and [each["label"] for each in listed(api, dataset)] == ["first"]
