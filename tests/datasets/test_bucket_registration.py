"""Registration where parts go to a bucket: who reads a file that waits on one machine, and what leaves the bucket."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import obstore
import pytest

from app.datasets import quota, readings, volume
from app.datasets.read_file import File
from app.datasets.reader import Reader
from app.db.models import Dataset, DatasetReading
from app.lifecycle.copies import drop_deleted
from app.storage import parts
from app.storage.parts import InBucket
from app.storage.s3 import client
from core.ids import now
from tests.datasets.conftest import CSV, Api, MakeApi, spec


def objects(address: str) -> set[str]:
    return {each["path"] for some in obstore.list(client(address)) for each in some}


def elsewhere(api: Api) -> Reader:
    """Another machine's reader over the same database."""
    home = api.settings.home.parent / "elsewhere"
    home.mkdir()
    url, secrets = api.settings.effective_database_url, api.settings.home / "secrets"
    there = api.settings.model_copy(update={"home": home, "database_url": url, "secrets_dir": secrets})
    return Reader(api.db, there)


@pytest.fixture
def api(make_api: MakeApi, s3_bucket: str) -> Api:
    return make_api(object_store=s3_bucket, read_at_once_bytes=0)


def test_a_file_is_read_where_it_waits(api: Api, s3_bucket: str) -> None:
    made = api.upload(spec()).json()
    assert made["state"] == "reading"
    assert not elsewhere(api).run_once(), "its file is not there"
    assert Reader(api.db, api.settings).run_once()
    assert api.get(f"/v1/datasets/{made['id']}").json()["state"] == "ready"
    assert {name.split("/")[1] for name in objects(s3_bucket)} == {made["id"]} and len(objects(s3_bucket)) == 5
    assert api.stored() <= {"arrivals/uploads/lock"}
    # A quota counts the parts: the digests of units, 16 bytes each, are the service's own.
    stored = sum(each["size"] for some in obstore.list(client(s3_bucket), prefix="datasets") for each in some)
    with api.db.read() as session:
        assert quota.stored_bytes(session, api.settings, api.key_ids["owner"]) == stored > 0


def test_nothing_stays_of_a_file_that_was_withdrawn_as_its_reader_stored_it(
    api: Api, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, again = api.upload(spec()).json()["id"], File._again

    def withdrawn(file: File, store: Callable[[], None]) -> None:
        assert api.client.delete(f"/v1/datasets/{made}/content", headers=api.headers("owner")).status_code == 200
        again(file, store)

    monkeypatch.setattr(File, "_again", withdrawn)
    assert Reader(api.db, api.settings).run_once()
    left = {path for path in api.stored() if "/.locks/" not in path}
    assert objects(s3_bucket) == set() and left <= {"arrivals/uploads/lock"}


def test_nothing_stays_of_an_attempt_that_died_where_the_next_one_refuses_the_file(api: Api, s3_bucket: str) -> None:
    made = api.upload(spec()).json()["id"]
    for place in ("datasets", "units"):
        obstore.put(client(s3_bucket), f"{place}/{made}/p_died/train.arrow", b"private")
    with api.db.write() as session:
        session.get_one(DatasetReading, made).deaths = api.settings.max_attempts
    assert Reader(api.db, api.settings).run_once()
    assert api.get(f"/v1/datasets/{made}").json()["state"] == "rejected"
    assert objects(s3_bucket) == set()


def test_a_file_whose_machine_is_gone_is_rejected_in_the_end(api: Api) -> None:
    made = api.upload(spec()).json()
    there = elsewhere(api).settings
    volume.ensure(there)
    readings.sweep(api.db, there)
    assert api.get(f"/v1/datasets/{made['id']}").json()["state"] == "reading"
    with api.db.write() as session:
        session.get_one(DatasetReading, made["id"]).created_at = now() - timedelta(days=3)
    readings.sweep(api.db, there)
    found: dict[str, Any] = api.get(f"/v1/datasets/{made['id']}").json()
    assert found["state"] == "rejected" and "register it again" in str(found["reading"]["problem"])


def test_a_refused_registration_leaves_nothing_in_the_bucket(api: Api, s3_bucket: str) -> None:
    made = api.upload(spec()).json()
    reader = Reader(api.db, api.settings)
    assert reader.run_once()
    before = objects(s3_bucket)
    same = api.upload(spec(name="again")).json()
    assert reader.run_once()
    assert api.get(f"/v1/datasets/{same['id']}").json()["state"] == "rejected"
    assert objects(s3_bucket) == before and all(made["id"] in name for name in before)


def test_copies_of_deleted_content_leave_every_machine(api: Api, s3_bucket: str) -> None:
    files = {"a": CSV, "b": CSV + "9,9,1\n"}
    kept, gone = (api.upload(spec(name=name), file=file).json()["id"] for name, file in files.items())
    reader = Reader(api.db, api.settings)
    assert reader.run_once() and reader.run_once()
    worker = parts.of(elsewhere(api).settings)
    assert isinstance(worker, InBucket)
    for each in (kept, gone):
        with api.db.read() as session:
            part = session.get_one(Dataset, each).parts.train
        with worker.held(part.path, part.sha256):
            pass
    drop_deleted(api.db, worker)
    assert set(worker.copied()) == {kept, gone}
    assert api.client.delete(f"/v1/datasets/{gone}/content", headers=api.headers("owner")).status_code == 200
    assert {name.split("/")[1] for name in objects(s3_bucket)} == {kept}
    drop_deleted(api.db, worker)
    left = [path for path in worker.cache._root.rglob("*.arrow*") if path.is_file()]
    assert left and all(kept in str(path) for path in left)


def test_a_declaration_is_changed_by_the_stored_records(api: Api) -> None:
    made = api.upload(spec()).json()["id"]
    assert Reader(api.db, api.settings).run_once()
    body = {"records": 64}
    told = api.client.post(f"/v1/datasets/{made}/declarations", json=body, headers=api.headers("owner"))
    assert told.status_code in (200, 201), told.text
    assert parts.of(api.settings).copied() == [], "the API keeps no copy"
