"""Uploads in pieces: they go on where they stopped, belong to one key, and take no more than they declared."""

from __future__ import annotations

import copy
import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.datasets import resumable
from app.main import create_app
from app.retention import service as retention
from core.errors import StorageFull, TooLarge
from tests.datasets.conftest import CSV, GRAPH, PUBLIC, Api, MakeApi, spec

DATA = CSV.encode()


def begin(api: Api, size: int = len(DATA), who: str = "owner", **more: Any) -> Any:
    return api.client.post("/v1/uploads", json={"size": size, **more}, headers=api.headers(who))


def begun(api: Api, size: int = len(DATA), **more: Any) -> str:
    answer = begin(api, size, **more)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def piece(api: Api, upload: str, offset: int | str, content: Any, who: str = "owner") -> Any:
    headers = api.headers(who) | {"Upload-Offset": str(offset)}
    return api.client.patch(f"/v1/uploads/{upload}", content=content, headers=headers)


def whole(api: Api, content: bytes = DATA, **more: Any) -> str:
    upload = begun(api, len(content), **more)
    assert piece(api, upload, 0, content).json()["offset"] == len(content)
    return upload


def give_up(api: Api, upload: str, who: str = "owner") -> Any:
    return api.client.delete(f"/v1/uploads/{upload}", headers=api.headers(who))


def kind(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"].removeprefix("/problems/")


def uploads(api: Api) -> list[Path]:
    return sorted((api.settings.storage_root / "uploads").glob("up_*"))


def age(api: Api, upload: str, hours: float) -> None:
    """Makes an upload's last byte arrive, and its last progress be, that long ago."""
    for name in ("file", "upload.json"):
        file = api.settings.storage_root / "uploads" / upload / name
        moment = file.stat().st_mtime - hours * 3600
        os.utime(file, (moment, moment))


def test_a_file_arrives_in_pieces_and_is_registered(api: Api) -> None:
    answer = begin(api, sha256=hashlib.sha256(DATA).hexdigest())
    made = answer.json()
    assert answer.headers["location"] == f"/v1/uploads/{made['id']}" and made["offset"] == 0
    assert piece(api, made["id"], 0, DATA[:100]).headers["upload-offset"] == "100"
    head = api.client.head(f"/v1/uploads/{made['id']}", headers=api.headers("owner"))
    assert (head.headers["upload-offset"], head.headers["upload-length"]) == ("100", str(len(DATA)))
    assert piece(api, made["id"], 100, iter([DATA[100:150], DATA[150:]])).json()["offset"] == len(DATA)
    (folder,) = uploads(api)
    assert [each.stat().st_mode & 0o777 for each in (folder, folder / "file", folder / "upload.json")] == [
        0o700,
        0o600,
        0o600,
    ]
    checked = api.client.post("/v1/datasets/check", json=spec(upload=made["id"]), headers=api.headers("owner"))
    assert checked.status_code == 200 and uploads(api) == [folder], checked.text
    registered = api.by_path(spec(upload=made["id"]))
    assert registered.status_code == 201, registered.text
    assert registered.json()["read"] == checked.json()["read"]
    assert uploads(api) == [] and list((api.settings.storage_root / "staging").iterdir()) == []
    assert kind(piece(api, made["id"], len(DATA), b"")) == (404, "not-found")


def test_the_same_content_either_way_is_the_same_data_set(api: Api) -> None:
    one = api.upload(spec("one", **PUBLIC)).json()
    other = api.by_path(spec("other", upload=whole(api), **PUBLIC)).json()
    assert one["content_sha256"] == other["content_sha256"]


def test_a_public_hold_out_may_be_an_upload_too(api: Api) -> None:
    declared = spec(upload=whole(api), holdout_upload=whole(api, b"a,b,y\n-1,0,1\n"), holdout={"kind": "public"})
    assert api.by_path(declared).json()["shape"]["records_holdout"] == 1
    assert uploads(api) == []


def test_a_graph_s_edges_may_be_an_upload_too(api: Api) -> None:
    nodes = b"id,a,b,y\n" + b"".join(b"%d,%d,0,1\n" % (each, each) for each in range(20))
    declared = spec(features=GRAPH, upload=whole(api, nodes), edges_upload=whole(api, b"source,target\n1,2\n2,3\n"))
    made = api.by_path(declared)
    assert made.status_code == 201, made.text
    assert uploads(api) == [] and made.json()["features"]["edges"]["undirected"] is True


def test_a_wrong_offset_is_told_the_right_one(api: Api) -> None:
    upload = begun(api)
    assert piece(api, upload, 0, DATA[:7]).status_code == 200
    for offset in (0, 6, 8, 10**12):
        answer = piece(api, upload, offset, b"x")
        assert kind(answer) == (409, "wrong-offset") and answer.json()["offset"] == 7
    for offset in ("-1", "x", "", "1.5", "9" * 5000):
        assert kind(piece(api, upload, offset, b"x"))[0] in (409, 422)
    assert api.client.patch(f"/v1/uploads/{upload}", content=b"x", headers=api.headers("owner")).status_code == 422
    assert (uploads(api)[0] / "file").read_bytes() == DATA[:7]


def test_more_than_was_declared_is_not_written(api: Api) -> None:
    upload = begun(api, 10)
    assert kind(piece(api, upload, 0, b"x" * 11)) == (413, "too-large")
    assert kind(piece(api, upload, 0, iter([b"123456", b"789AB"]))) == (413, "too-large")  # of a length not announced
    writer = resumable.writer(api.settings, api.key_ids["owner"], upload, 0, 0)
    writer.write(b"123456")
    with pytest.raises(TooLarge):
        writer.write(b"789AB")
    writer.close()
    assert (uploads(api)[0] / "file").read_bytes() == b"123456"
    assert piece(api, upload, 6, b"789A").json()["offset"] == 10
    assert kind(piece(api, upload, 10, b"B")) == (413, "too-large")


def test_a_key_has_few_uploads_of_few_bytes(make_api: MakeApi) -> None:
    api = make_api(max_upload_total_bytes=100, max_open_uploads=3, max_open_upload_bytes=150)
    for size in (0, -1, 1.5, "7", True, None, 2**60):
        assert kind(begin(api, size)) == (422, "invalid-request"), size  # type: ignore[arg-type]
    assert kind(begin(api, 101)) == (413, "too-large")
    first = begun(api, 100)
    refused = begin(api, 51)
    assert kind(refused) == (409, "too-many-uploads") and refused.json()["limit_bytes"] == 150
    begun(api, 49), begun(api, 1)
    refused = begin(api, 1)
    assert kind(refused) == (409, "too-many-uploads") and refused.json()["limit"] == 3
    assert begin(api, 100, "other-owner").status_code == 201, "each key has its own limits"
    assert give_up(api, first).status_code == 204
    assert begin(api, 100).status_code == 201


def test_a_disk_without_room_is_told_at_once(make_api: MakeApi) -> None:
    much = 2**52
    api = make_api(max_upload_total_bytes=much, max_open_upload_bytes=much, stored_share=1.0)
    assert shutil.disk_usage(api.settings.home).free < much
    assert kind(begin(api, much)) == (507, "storage-full")
    assert uploads(api) == []
    # As much as has arrived of an upload is kept free for its rest, from registrations too.
    half = shutil.disk_usage(api.settings.home).free // 2
    upload = begun(api, half)
    os.truncate(api.settings.storage_root / "uploads" / upload / "file", half // 2)  # it takes no space
    assert kind(begin(api, 3 * half // 2, "other-owner")) == (507, "storage-full")
    with pytest.raises(StorageFull):
        resumable.room_of(api.settings).require(api.settings.home, 3 * half // 2)


def test_a_disk_that_fills_up_keeps_what_it_has(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    upload = begun(api)
    write = resumable.Writer.write

    def full(self: resumable.Writer, chunk: bytes) -> None:
        write(self, chunk[:5])
        raise OSError(errno.ENOSPC, "no")

    with monkeypatch.context() as patch:
        patch.setattr(resumable.Writer, "write", full)
        assert kind(piece(api, upload, 0, DATA)) == (507, "storage-full")
    assert piece(api, upload, 5, DATA[5:]).json()["offset"] == len(DATA)
    assert (uploads(api)[0] / "file").read_bytes() == DATA


def test_only_the_key_that_began_it_sees_it(api: Api) -> None:
    upload = whole(api)
    for who in ("other-owner", "admin"):
        assert kind(api.get(f"/v1/uploads/{upload}", who)) == (404, "not-found")
        assert kind(piece(api, upload, len(DATA), b"", who)) == (404, "not-found")
        assert kind(give_up(api, upload, who)) == (404, "not-found")
        answer = api.by_path(spec(upload=upload), who)
        assert answer.status_code == 422 and answer.json()["errors"][0]["pointer"] == "/upload"
        nothing = api.by_path(spec(upload="up_" + "a" * 21), who)
        assert nothing.json() == answer.json(), "as if it were not there"
    assert kind(api.get(f"/v1/uploads/{upload}", "analyst")) == (404, "not-found"), "who may upload a graph of its own"
    assert api.get(f"/v1/uploads/{upload}").json()["offset"] == len(DATA)


@pytest.mark.parametrize(
    "upload", ["up_", "..", "%2e%2e", "lock", "up_" + "a" * 20 + "%2f", "up_%00", "up_" + "A" * 21]
)
def test_an_id_is_no_path(api: Api, upload: str) -> None:
    begun(api)
    for answer in (api.get(f"/v1/uploads/{upload}"), piece(api, upload, 0, b"x"), give_up(api, upload)):
        assert answer.status_code in (404, 405), answer.text
    assert api.by_path(spec(upload=upload)).status_code == 422
    assert len(uploads(api)) == 1


def test_an_incomplete_or_damaged_upload_is_not_registered(api: Api) -> None:
    short = begun(api)
    piece(api, short, 0, DATA[:-1])
    damaged = whole(api, sha256="0" * 64)
    for upload, text in ((short, f"{len(DATA) - 1} of this upload's {len(DATA)}"), (damaged, "SHA-256")):
        answer = api.by_path(spec(upload=upload))
        assert kind(answer) == (422, "invalid-request") and text in answer.json()["detail"]
    both = api.by_path(spec(upload=whole(api), path="a.csv"))
    assert both.json()["errors"][0]["pointer"] == "/upload"
    assert api.upload(spec(upload=short)).json()["errors"][0]["pointer"] == "/upload"
    assert api.count() == 0 and len(uploads(api)) == 3


def test_a_refused_registration_leaves_the_upload(api: Api) -> None:
    upload = whole(api)
    assert api.by_path(spec(upload=upload, task={**spec()["task"], "label": "none"})).status_code == 422
    assert api.by_path(spec(upload=upload)).status_code == 201


def test_two_writers_do_not_interleave(api: Api) -> None:
    """The lock is the file's own: another process is refused the same way."""
    upload, key = begun(api), api.key_ids["owner"]
    first = resumable.writer(api.settings, key, upload, 0, len(DATA))
    first.write(DATA[:9])
    for answer in (piece(api, upload, 9, DATA[9:]), piece(api, upload, 0, DATA), give_up(api, upload)):
        assert kind(answer) == (409, "upload-busy")
    first.write(DATA[9:20])
    first.close()
    first.write(b"after the end")
    assert kind(piece(api, upload, 9, DATA[9:])) == (409, "wrong-offset")
    assert piece(api, upload, 20, DATA[20:]).status_code == 200
    assert (uploads(api)[0] / "file").read_bytes() == DATA


@pytest.fixture
def beside(api: Api, tmp_path: Path) -> Iterator[Callable[..., Api]]:
    """Makes other API processes over the same database, with the same keys."""
    made: list[Any] = []

    def make(**changes: Any) -> Api:
        other = copy.copy(api)
        other.settings = api.settings.model_copy(update=changes)
        other.client = TestClient(create_app(other.settings), raise_server_exceptions=False)
        made.append(other.client)
        return other

    yield make
    for client in made:
        client.app.state.pricing.close()
        client.app.state.db.close()


def test_an_upload_goes_on_at_another_api_process_with_the_same_storage(api: Api, beside: Callable[..., Api]) -> None:
    other = beside()
    upload = begun(api)
    assert piece(other, upload, 0, DATA[:9]).json()["offset"] == 9
    assert other.get(f"/v1/uploads/{upload}").json() == api.get(f"/v1/uploads/{upload}").json()
    assert piece(api, upload, 9, DATA[9:]).json()["offset"] == len(DATA)
    assert other.by_path(spec(upload=upload)).status_code == 201


def test_an_api_process_with_another_storage_says_where_an_upload_goes_on(
    api: Api, beside: Callable[..., Api], tmp_path: Path
) -> None:
    shutil.copytree(api.settings.home, tmp_path / "other")
    other = beside(home=tmp_path / "other", database_url=api.settings.effective_database_url)
    upload = begun(api)
    for answer in (piece(other, upload, 0, DATA), other.get(f"/v1/uploads/{upload}"), give_up(other, upload)):
        assert kind(answer) == (404, "not-found") and "goes on at the host that began it" in answer.json()["detail"]
    assert piece(api, upload, 0, DATA).status_code == 200
    refused = other.by_path(spec(upload=upload))
    assert kind(refused) == (422, "invalid-request") and "the host that began it" in refused.json()["detail"]
    assert other.count() == 0 and api.by_path(spec(upload=upload)).status_code == 201


def test_an_upload_without_progress_expires_in_minutes(make_api: MakeApi) -> None:
    """With nothing sent it held its bytes of the disk for a day, and one byte renewed that.

    Attack (Tenants): An upload of which nothing, or a byte a day, is sent
    Now: 15 minutes; a byte is worth a byte
    """
    api = make_api(upload_idle_s=600, body_bytes_per_s=10, max_open_upload_bytes=1000)
    silent, dripping, slow = begun(api, 400), begun(api, 300), begun(api, 300)
    assert kind(begin(api, 1)) == (409, "too-many-uploads"), "what they declared is set aside"
    for upload in (silent, dripping, slow):
        age(api, upload, 500 / 3600)
    piece(api, dripping, 0, b"x"), piece(api, slow, 0, b"x" * 200)
    for upload in (silent, dripping, slow):
        age(api, upload, 110 / 3600)
    answers = [api.get(f"/v1/uploads/{upload}").status_code for upload in (silent, dripping, slow)]
    assert answers == [404, 404, 200], "a byte is a tenth of a second, 200 are twenty"
    assert begin(api, 700).status_code == 201, "what they had set aside is free, before it is swept"
    assert resumable.sweep(api.settings) == 2


def test_progress_is_noted_while_a_piece_arrives(make_api: MakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumable, "LOOK_BYTES", 5)
    api = make_api(upload_idle_s=600, body_bytes_per_s=1)
    upload = begun(api, 100)
    age(api, upload, 500 / 3600)
    before = api.get(f"/v1/uploads/{upload}").json()["expires_at"]
    writer = resumable.writer(api.settings, api.key_ids["owner"], upload, 0, 0)
    writer.write(b"x" * 50)
    writer.write(b"x")
    assert api.get(f"/v1/uploads/{upload}").json()["expires_at"] > before
    writer.close()


def test_an_upload_leaves_the_reserve(make_api: MakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """One owner's key filled the disk to its last byte: everybody's writes failed, and the service was not ready.

    Attack (Tenants): An owner's uploads declare or send as much as the disk has
    Now: data files leave a reserve, and a key has a quarter of what is free less that and of what it has there (409)
    Also: tests/datasets/test_room.py::test_a_key_without_a_quota_has_a_share_of_the_free_disk,
    tests/formats/test_streaming.py::test_parts_leave_the_disk_a_reserve
    """
    api = make_api(disk_reserve_bytes=1000, stored_share=1.0)
    usage = shutil.disk_usage(api.settings.home)
    left = iter([1500, 1500, 999])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=next(left)))
    assert kind(begin(api, 501)) == (507, "storage-full")
    upload = begun(api, 500)
    assert kind(piece(api, upload, 0, b"x")) == (507, "storage-full"), "somebody else took what was set aside"
    assert (uploads(api)[0] / "file").read_bytes() == b""


def test_an_abandoned_upload_expires(make_api: MakeApi) -> None:
    api = make_api(max_open_uploads=2, upload_kept_hours=24)
    old, young = whole(api), whole(api)
    age(api, old, 25), age(api, young, 23)
    assert kind(api.get(f"/v1/uploads/{old}")) == (404, "not-found"), "before it is swept too"
    assert begin(api).status_code == 201, "it counts no more"
    retention.sweep(api.db, api.settings)
    assert old not in [each.name for each in uploads(api)] and len(uploads(api)) == 2
    assert api.get(f"/v1/uploads/{young}").json()["offset"] == len(DATA)


def test_what_a_crash_left_is_swept_and_what_is_written_to_is_not(api: Api) -> None:
    upload, half = begun(api), api.settings.storage_root / "uploads" / ("up_" + "b" * 21)
    half.mkdir()
    (half / "file").write_bytes(DATA)  # before it was declared, or after it was given up
    writer = resumable.writer(api.settings, api.key_ids["owner"], upload, 0, 0)
    age(api, upload, 25)
    assert resumable.sweep(api.settings) == 1 and not half.exists()
    writer.write(DATA[:3])
    writer.close()
    assert api.get(f"/v1/uploads/{upload}").json()["offset"] == 3
    age(api, upload, 25)
    assert resumable.sweep(api.settings) == 1 and uploads(api) == []


def test_an_upload_that_went_before_its_lock_was_taken_is_not_written_to(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload, lock = begun(api), resumable._lock

    def late(found: resumable.Upload) -> int:
        descriptor = lock(found)
        (found.folder / "upload.json").unlink()
        return descriptor

    monkeypatch.setattr(resumable, "_lock", late)
    assert kind(piece(api, upload, 0, DATA)) == (404, "not-found")
    monkeypatch.setattr(resumable, "_lock", lock)
    assert resumable.sweep(api.settings) == 1
