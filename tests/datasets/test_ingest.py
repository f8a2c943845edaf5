"""Ingest workers: which readings an API process leaves to them, and on which volume a reader sees files."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from app.datasets import reader as reader_module
from app.datasets import readings, volume
from app.datasets.reader import Reader
from app.db.models import DatasetReading, Worker
from app.ingest import UnfitError, Watching, check
from app.lifecycle.queue.presence import Presence
from app.main import create_app
from app.settings import Settings
from core.ids import now
from tests.datasets.conftest import CSV, Api, MakeApi, spec
from tests.datasets.test_resumable import DATA, begun, piece
from tests.processes import until


def mounted(api: Api, name: str, shared: Path | None = None) -> Settings:
    """Another machine's settings; `shared`: where its volume of files that arrive is mounted from."""
    home = api.settings.home.parent / name
    (home / "storage").mkdir(parents=True)
    url, secrets = api.settings.effective_database_url, api.settings.home / "secrets"
    there = api.settings.model_copy(update={"home": home, "database_url": url, "secrets_dir": secrets})
    if shared is not None:
        there.arrivals_root.symlink_to(shared)
    return there


@pytest.fixture
def api(make_api: MakeApi) -> Api:
    return make_api(read_at_once_bytes=0)


@pytest.fixture
def in_bucket(make_api: MakeApi, s3_bucket: str) -> Api:
    return make_api(object_store=s3_bucket, read_at_once_bytes=0)


def present(api: Api, at: str | None, **changes: object) -> Presence:
    presence = Presence(api.db, "ingest", 1, 1.0)
    presence.volume = at
    presence.beat()
    with api.db.write() as session:
        if changes:
            session.execute(update(Worker).where(Worker.name == presence.name).values(**changes))
    return presence


def state(api: Api, made: str) -> str:
    found: str = api.get(f"/v1/datasets/{made}").json()["state"]
    return found


def test_an_api_process_leaves_files_to_a_living_ingest_worker_of_its_volume(api: Api) -> None:
    made = api.upload(spec()).json()["id"]
    spare, at = Reader(api.db, api.settings, spare=True), volume.of(api.settings)
    presence = present(api, at)
    assert not spare.run_once(), "a worker lives"
    assert Reader(api.db, api.settings).run_once() and state(api, made) == "ready"
    second = api.upload(spec(name="second"), file=CSV + "9,9,1\n").json()["id"]
    assert not spare.run_once()
    presence._leave()
    assert spare.run_once() and state(api, second) == "ready", "no worker lives"


@pytest.mark.parametrize("kind", ["of another volume", "that runs jobs", "that is gone"])
def test_an_api_process_reads_though_there_is_a_worker(api: Api, kind: str) -> None:
    made, at = api.upload(spec()).json()["id"], volume.of(api.settings)
    old = {"seen_at": now() - timedelta(seconds=2 * api.settings.lease_s)}
    if kind == "that is gone":
        present(api, at, **old)
    else:
        present(api, "vol_elsewhere" if kind == "of another volume" else None)
    assert Reader(api.db, api.settings, spare=True).run_once() and state(api, made) == "ready"


def test_a_file_is_read_wherever_its_volume_is_mounted(in_bucket: Api) -> None:
    made = in_bucket.upload(spec()).json()["id"]
    there = mounted(in_bucket, "there", in_bucket.settings.arrivals_root)
    assert check(in_bucket.db, there) == volume.of(in_bucket.settings)
    assert Reader(in_bucket.db, there).run_once() and state(in_bucket, made) == "ready"
    assert not readings.folder_of(in_bucket.settings, made).exists()


def test_an_upload_goes_on_at_another_api_process_of_its_volume(in_bucket: Api) -> None:
    """As after the loss of the pod that received its first piece."""
    upload, half, headers = begun(in_bucket), len(DATA) // 2, in_bucket.headers("owner")
    assert piece(in_bucket, upload, 0, DATA[:half]).status_code == 200
    app = create_app(mounted(in_bucket, "there", in_bucket.settings.arrivals_root))
    with closing(app.state.db), closing(app.state.pricing), closing(TestClient(app)) as client:
        head = {"Upload-Offset": str(half)}
        assert client.patch(f"/v1/uploads/{upload}", content=DATA[half:], headers=headers | head).status_code == 200
        made = client.post("/v1/datasets", json=spec(upload=upload), headers=headers).json()["id"]
    assert Reader(in_bucket.db, in_bucket.settings).run_once() and state(in_bucket, made) == "ready"


def test_a_worker_that_sees_no_file_does_not_start(api: Api, in_bucket: Api) -> None:
    there = mounted(api, "empty")
    with pytest.raises(UnfitError, match=f"no API process keeps files in {there.arrivals_root}"):
        check(api.db, there)
    assert not there.arrivals_root.joinpath(volume.NAME).exists(), "it makes no volume"
    made = in_bucket.upload(spec()).json()["id"]
    other = mounted(in_bucket, "other")
    volume.ensure(other)
    with pytest.raises(UnfitError, match="files of 1 registrations wait on another volume"):
        check(in_bucket.db, other)
    assert not Reader(in_bucket.db, other).run_once() and state(in_bucket, made) == "reading"


def test_a_worker_without_a_secret_does_not_start(api: Api, tmp_path: Path) -> None:
    volume.ensure(api.settings)
    with pytest.raises(UnfitError, match="data_hmac_key is missing"):
        check(api.db, api.settings.model_copy(update={"secrets_dir": tmp_path}))
    sealed = api.settings.model_copy(update={"encrypt_parts": True})
    (api.settings.effective_secrets_dir / "parts_key").unlink(missing_ok=True)
    with pytest.raises(UnfitError, match="parts_key is missing"):
        check(api.db, sealed)


def test_what_the_last_release_accepted_is_read(api: Api, in_bucket: Api) -> None:
    """Its rows name no volume; with a bucket its files lie one folder higher."""
    for each in (api, in_bucket):
        made, settings = each.upload(spec()).json()["id"], each.settings
        with each.db.write() as session:
            session.execute(update(DatasetReading).values(volume=None))
        volume_file = settings.arrivals_root / volume.NAME
        volume_file.unlink()
        if settings.object_store:
            (settings.arrivals_root / "reading").rename(settings.storage_root / "reading")
        volume.ensure(settings)
        reader = Reader(each.db, settings)
        assert not reader.run_once()
        readings.adopt(each.db, settings)
        assert reader.run_once() and state(each, made) == "ready"


def test_of_many_processes_one_names_the_volume(api: Api) -> None:
    there = mounted(api, "there")
    with ThreadPoolExecutor(8) as pool:
        named = set(pool.map(lambda _: volume.ensure(there), range(64)))
    assert named == {volume.of(there)}
    assert [each.name for each in there.arrivals_root.iterdir()] == [volume.NAME]


def test_a_registration_whose_volume_is_lost_is_rejected_in_the_end(api: Api) -> None:
    """As after a backup of the database without the storage: the folder that is there now has another name."""
    made = api.upload(spec()).json()["id"]
    (api.settings.arrivals_root / volume.NAME).unlink()
    volume.ensure(api.settings)
    readings.sweep(api.db, api.settings)
    assert state(api, made) == "reading"
    with api.db.write() as session:
        session.get_one(DatasetReading, made).created_at = now() - timedelta(days=3)
    readings.sweep(api.db, mounted(api, "blind"))
    assert state(api, made) == "reading", "a process that sees no files cannot tell"
    readings.sweep(api.db, api.settings)
    assert state(api, made) == "rejected"


def test_a_relay_without_the_volume_rejects_no_file_that_waits_there(in_bucket: Api) -> None:
    """After an outage of three days."""
    made = in_bucket.upload(spec()).json()["id"]
    with in_bucket.db.write() as session:
        session.get_one(DatasetReading, made).created_at = now() - timedelta(days=4)
    readings.sweep(in_bucket.db, mounted(in_bucket, "relay"))
    readings.sweep(in_bucket.db, in_bucket.settings)
    assert state(in_bucket, made) == "reading"
    assert Reader(in_bucket.db, in_bucket.settings).run_once() and state(in_bucket, made) == "ready"


def test_whoever_sees_the_volume_removes_what_nobody_needs(in_bucket: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """With buckets the relay has no such volume, and an API process may run for months."""
    upload, settings = begun(in_bucket), in_bucket.settings
    waits = in_bucket.upload(spec()).json()["id"]
    shared, own = settings.arrivals_root, settings.storage_root
    left = [shared / "uploads" / upload, shared / "reading" / "ds_gone", shared / "staging" / "in_died"]
    left += [own / kind / "of_the_last_release" for kind in volume.KINDS]  # its disk is not the volume's
    kept = readings.folder_of(settings, waits)
    old_s = (now() - timedelta(days=9)).timestamp()
    for folder in (*left, kept):
        folder.mkdir(parents=True, exist_ok=True)
        for path in (folder / "file", folder / "upload.json"):
            path.touch()
            os.utime(path, (old_s, old_s))
        os.utime(folder, (old_s, old_s))
    present(in_bucket, volume.of(settings))  # the spare reader below reads nothing
    monkeypatch.setattr(reader_module, "SWEEP_S", 0.01)
    reader = Reader(in_bucket.db, settings, spare=True)
    reader.start()
    try:
        until(lambda: not any(folder.exists() for folder in left))
    finally:
        reader.close()
    assert kept.exists() and state(in_bucket, waits) == "reading"


@pytest.mark.parametrize("content", ["", "\n", "vol_", "vol_" + "a" * 300])
def test_a_damaged_name_is_no_volume(api: Api, content: str) -> None:
    """As after a power cut: of two volumes with an empty name each process would claim the other's files."""
    volume.ensure(api.settings)
    (api.settings.arrivals_root / volume.NAME).write_text(content)
    for use in (volume.of, volume.ensure):
        with pytest.raises(OSError, match="no name of a volume"):
            use(api.settings)
    with pytest.raises(UnfitError, match="no name of a volume"):
        check(api.db, api.settings)


@pytest.mark.parametrize("how", ["it is unmounted", "another is mounted", "it does not answer"])
def test_a_worker_whose_volume_goes_is_no_longer_present(api: Api, how: str) -> None:
    made, stop = api.upload(spec()).json()["id"], threading.Event()
    presence = Watching(api.db, api.settings, check(api.db, api.settings), stop)
    presence.beat()
    spare, path = Reader(api.db, api.settings, spare=True), api.settings.arrivals_root / volume.NAME
    name = path.read_text()
    assert not spare.run_once() and not stop.is_set()
    path.unlink()
    if how == "another is mounted":
        volume.ensure(api.settings)
    elif how == "it does not answer":
        path.symlink_to(path)
    presence.beat()
    assert stop.is_set() and presence.lost
    presence._leave()  # or a lease passes
    path.unlink(missing_ok=True)
    path.write_text(name)
    assert spare.run_once() and state(api, made) == "ready"


def test_the_list_of_workers_says_who_reads_files(api: Api) -> None:
    present(api, volume.ensure(api.settings))
    (row,) = api.get("/v1/workers", "analyst").json()["items"]
    assert row["runs"] == "readings" and row["alive"] and row["devices"] is None
