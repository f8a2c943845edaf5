"""The disk's reserve and an owner's quota are checked before a file is accepted."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from app.datasets import quota, resumable
from app.db.models import ApiKey
from core.disk import RESERVE_BYTES
from core.errors import Conflict
from tests.datasets.conftest import CSV, PUBLIC, Api, MakeApi, spec
from tests.datasets.test_resumable import begin, begun, give_up, kind, piece, whole

Usage = namedtuple("Usage", "total used free")


def stored_bytes(api: Api) -> int:
    with api.db.read() as session:
        return quota.stored_bytes(session, api.settings, api.key_ids["owner"])


def free(monkeypatch: pytest.MonkeyPatch, bytes_free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: Usage(10**12, 0, bytes_free))


def test_a_sent_file_leaves_the_reserve(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, RESERVE_BYTES + len(CSV))  # the body is a little larger than its file
    assert kind(api.upload(spec())) == (507, "storage-full")
    assert api.stored() == set()
    free(monkeypatch, RESERVE_BYTES + 100_000)
    assert api.upload(spec()).status_code == 201


def test_a_file_of_unknown_length_leaves_it_too(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, RESERVE_BYTES - 1)

    def body() -> Any:
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n1,2\r\n--x--\r\n'

    headers = api.headers("owner") | {"Content-Type": "multipart/form-data; boundary=x"}
    answer = api.client.post("/v1/datasets", content=body(), headers=headers)
    assert kind(answer) == (507, "storage-full")


def test_a_key_s_quota(make_api: MakeApi, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "large.csv").write_text(CSV * 20)
    api = make_api(max_stored_bytes=20_000, data_root=tmp_path / "root")
    made = api.upload(spec()).json()
    stored = stored_bytes(api)
    files = (api.settings.storage_root / "datasets" / made["id"]).rglob("*")
    assert stored == sum(each.stat().st_size for each in files) > 1000
    refused = begin(api, 20_001 - stored)
    assert kind(refused) == (409, "quota-exceeded")
    assert (refused.json()["limit_bytes"], refused.json()["stored_bytes"]) == (20_000, stored)
    upload = begun(api, 20_000 - stored)
    assert kind(api.upload(spec("sent", **PUBLIC))) == (409, "quota-exceeded")
    assert kind(api.by_path(spec("named", **PUBLIC) | {"path": "large.csv"})) == (409, "quota-exceeded")
    assert api.upload(spec("other"), who="other-owner").status_code == 201
    give_up(api, upload)
    named = whole(api)  # an upload is counted once
    assert kind(api.by_path(spec("named", **PUBLIC) | {"upload": named})) == (409, "duplicate-content")
    assert api.client.delete(f"/v1/datasets/{made['id']}/content", headers=api.headers("owner")).status_code == 200
    assert stored_bytes(api) == len(CSV)


def test_a_key_without_a_quota_has_a_share_of_the_free_disk(make_api: MakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had a share of the whole disk: of one that is nearly full, all that was free."""
    api = make_api(stored_share=0.25, disk_reserve_bytes=1000)
    free(monkeypatch, 81_000)
    refused = begin(api, 20_001)
    assert kind(refused) == (409, "quota-exceeded") and refused.json()["limit_bytes"] == 20_000
    upload = begun(api, 20_000)
    assert piece(api, upload, 0, b"x" * 15_000).status_code == 200
    free(monkeypatch, 66_000)  # what has arrived is the key's, no longer free
    assert kind(begin(api, 1)) == (409, "quota-exceeded") and piece(api, upload, 15_000, b"x" * 5000).status_code == 200
    assert begin(api, 15_000, "other-owner").status_code == 201, "each key has its own"
    limits = api.get("/v1/keys/self").json()["limits"]
    assert (limits["max_stored_bytes"], limits["max_stored_percent"]) == (None, 25)


def test_a_file_that_has_arrived_is_the_key_s_own(make_api: MakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it takes of the disk is not taken from its share a second time when its registration is decided."""
    api = make_api(stored_share=0.25, disk_reserve_bytes=1000)
    owner = api.key_ids["owner"]
    free(monkeypatch, 81_000)
    quota.require(api.db, api.settings, owner, 20_000)
    free(monkeypatch, 61_000)
    quota.require(api.db, api.settings, owner, 20_000, on_disk=20_000)
    with pytest.raises(Conflict):
        quota.require(api.db, api.settings, owner, 20_001, on_disk=20_000)


def test_what_is_declared_and_not_sent_takes_nothing_from_others(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One key declared all that was free, sent nothing, and everybody else's files were refused.

    Attack (Tenants): Declared bytes of an upload, beside other writers
    Now: count against their own key; from others as many are kept as have arrived
    Also: tests/datasets/test_resumable.py::test_a_disk_without_room_is_told_at_once
    """
    api = make_api(stored_share=1.0, disk_reserve_bytes=1000)
    free(monkeypatch, 101_000)
    upload = begun(api, 90_000)
    assert kind(begin(api, 10_001)) == (507, "storage-full"), "it counts against its own key"
    declared = begin(api, 100_000, "other-owner")
    assert declared.status_code == 201 and give_up(api, declared.json()["id"], "other-owner").status_code == 204
    assert api.upload(spec(), who="other-owner").status_code == 201
    assert piece(api, upload, 0, b"x" * 30_000).status_code == 200
    free(monkeypatch, 71_000)  # 70,000 without the reserve: as many as were sent are kept free for the rest
    assert kind(begin(api, 40_001, "other-owner")) == (507, "storage-full")
    assert begin(api, 40_000, "other-owner").status_code == 201
    assert resumable.room_of(api.settings).set_aside == 31_000
    assert piece(api, upload, 30_000, b"x" * 50_000).status_code == 200
    assert resumable.room_of(api.settings).set_aside == 11_000, "no more than is missing"


def test_a_share_of_the_disk_does_not_bound_what_lies_in_a_bucket(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = make_api(stored_share=0.25, object_store="s3://bucket", disk_reserve_bytes=0)
    monkeypatch.setattr(quota, "stored_bytes", lambda *_: 10**12)
    free(monkeypatch, 80_000)
    quota.require(api.db, api.settings, api.key_ids["owner"], 20_000)
    with pytest.raises(Conflict):
        quota.require(api.db, api.settings, api.key_ids["owner"], 20_001)


@pytest.mark.parametrize("setting", [0, 10**9, 1000])
def test_a_key_s_own_quota_counts_before_the_setting(make_api: MakeApi, setting: int) -> None:
    api = make_api(max_stored_bytes=setting)
    with api.db.write() as session:
        session.get_one(ApiKey, api.key_ids["owner"]).max_stored_bytes = 20_000
    assert begin(api, 20_001).json()["limit_bytes"] == 20_000
    assert begin(api, 20_000).status_code == 201
    assert kind(begin(api, 1)) == (409, "quota-exceeded")
