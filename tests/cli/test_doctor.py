"""`scrimp doctor` finds planted faults, names each, and is content with a service that is well."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import obstore
import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from app.datasets import volume
from app.db.database import Database
from app.db.models import Job, Outbox, Worker
from app.settings import Settings
from app.storage.s3 import client
from core.ids import now
from scrimp.cli import app
from scrimp_server.doctor import Finding, examine
from tests import servers
from tests.dashboard.scene import Scene
from tests.factories import add_dataset


@pytest.fixture
def well(db: Database, settings: Settings) -> Settings:
    """A home with a living worker."""
    worker(db)
    return settings


def worker(db: Database, **changes: Any) -> None:
    row = {
        "name": "host:1",
        "host": "host",
        "pid": 1,
        "started_at": now(),
        "seen_at": now(),
        "sandbox": {"seccomp": True, "landlock": True, "network": "loopback", "memory_limit_bytes": 2**30},
        "skew_s": 0.1,
        "devices": [{"kind": "cpu", "index": 0, "name": "a processor"}],
    }
    with db.write() as session:
        session.merge(Worker(**(row | changes)))


def faults(settings: Settings) -> dict[str, Finding]:
    return {each.part: each for each in examine(settings) if each.state == "fault"}


def test_a_service_that_is_well(well: Settings) -> None:
    found = examine(well)
    assert [each for each in found if each.state == "fault"] == []
    parts = {each.part for each in found}
    assert {"version", "secrets", "database", "migrations", "storage", "broker", "ledger", "workers"} <= parts
    assert {"queue", "relay", "machine"} <= parts


def test_a_machine_without_compiled_parts(well: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.native.kernels.INSTALLED", None)
    (slow,) = [each for each in examine(well) if each.part == "machine" and each.state == "warning"]
    assert "two to three times as long" in slow.says and "core.native.build" in slow.advice


def test_a_secret_that_others_can_read(well: Settings) -> None:
    (well.effective_secrets_dir / "noise_secret").chmod(0o644)
    assert "chmod 600" in faults(well)["secrets"].says


def test_a_database_of_another_version(well: Settings, db: Database) -> None:
    with db.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '0017'"))
    found = faults(well)
    assert set(found) == {"migrations"} and "scrimp prepare" in found["migrations"].advice


def test_sqlite_has_the_durability_that_the_service_sets(well: Settings) -> None:
    assert [each for each in examine(well) if each.part == "durability"] == []


def test_a_broker_that_is_away(well: Settings) -> None:
    away = well.model_copy(update={"broker_url": "redis://127.0.0.1:9/0"})
    assert set(faults(away)) == {"broker"}


def test_clocks_that_differ(well: Settings, db: Database) -> None:
    worker(db, skew_s=-100.0)
    assert "host:1 is -100.0 s off" in faults(well)["clock"].says


def test_no_worker(well: Settings, db: Database) -> None:
    worker(db, seen_at=now() - timedelta(hours=1))
    assert "`scrimp worker`" in faults(well)["workers"].advice


def test_an_ingest_worker_reads_files_and_runs_no_job(well: Settings, db: Database) -> None:
    at = volume.ensure(well)
    worker(db, volume=at, devices=None, sandbox=None)
    said = {each.says: each.state for each in examine(well) if each.part == "workers"}
    assert said == {"no worker is alive: jobs wait": "fault", "host:1 reads data files": "ok"}
    worker(db, volume="vol_elsewhere")
    (finding,) = (each for each in examine(well) if each.state == "warning" and each.part == "workers")
    assert "of another volume" in finding.says and "the same volume" in finding.advice


def test_a_job_that_waits_for_a_gpu_and_a_relay_that_is_away(well: Settings, db: Database) -> None:
    job = Scene(db, well).job(add_dataset(db))
    with db.write() as session:
        row = session.get_one(Job, job)
        row.spec = row.spec | {"runtime": {"device": "cuda"}}
        for each in session.query(Outbox).all():
            each.created_at = now() - timedelta(minutes=10)
        session.add(Outbox(topic="notify", job_id=job, created_at=now() - timedelta(minutes=10)))
    found = faults(well)
    assert "wait for a GPU: 1;" in found["queue"].says
    assert "`scrimp relay`" in found["relay"].advice


def test_a_sandbox_with_holes_is_a_warning(well: Settings, db: Database) -> None:
    worker(db, sandbox={"seccomp": True, "landlock": False, "network": "host", "memory_limit_bytes": 2**30})
    (found,) = (each for each in examine(well) if each.part == "sandbox")
    assert found.state == "warning" and "the file system, the network" in found.says


def test_what_is_on_of_a_sandbox_is_said(well: Settings, db: Database) -> None:
    worker(db)
    found = [each for each in examine(well) if each.part == "sandbox"]
    assert found and all(each.state == "ok" for each in found)
    assert "system calls, the file system, the network" in found[0].says


def test_heads_that_cannot_be_written(well: Settings, tmp_path: Path) -> None:
    file = tmp_path / "a-file"
    file.write_text("")
    assert "SCRIMP_HEADS_DIR" in faults(well.model_copy(update={"heads_dir": file}))["heads"].advice


def test_devices_that_are_not_there(well: Settings) -> None:
    assert "no cuda:7" in faults(well.model_copy(update={"devices": "cuda:7"}))["machine"].says


def test_a_home_that_is_not_there_is_not_made(well: Settings, tmp_path: Path) -> None:
    absent = tmp_path / "typo"
    (found,) = examine(well.model_copy(update={"home": absent}))
    assert found.state == "fault" and "--home" in found.advice and not absent.exists()


def test_the_command(well: Settings, db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = CliRunner()
    done = runner.invoke(app, ["doctor", "--home", str(well.home)])
    assert done.exit_code == 0, done.output
    assert "✓ database" in done.output
    (well.effective_secrets_dir / "session_key").unlink()
    told = runner.invoke(app, ["doctor", "--home", str(well.home), "--json"])
    assert told.exit_code == 1
    assert [each["part"] for each in json.loads(told.output) if each["state"] == "fault"] == ["secrets"]


def in_buckets(settings: Settings, objects: str, heads: str) -> Settings:
    return settings.model_copy(update={"object_store": objects, "heads_store": heads})


def test_buckets_that_are_well_are_left_as_they_were(well: Settings, s3_bucket: str) -> None:
    found = examine(in_buckets(well, f"{s3_bucket}/team", f"{s3_bucket}/heads"))
    assert [each.state for each in found if each.part == "bucket"] == ["ok", "ok"]
    assert not [each for each in found if each.state == "fault"]
    assert [each for some in obstore.list(client(s3_bucket)) for each in some] == []
    shared = examine(in_buckets(well, s3_bucket, f"{s3_bucket}/heads"))
    assert [each.part for each in shared if each.state == "warning" and "data sets" in each.says] == ["heads"]


def test_a_bucket_that_is_not_there_and_one_whose_clock_is_wrong(
    well: Settings, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = faults(in_buckets(well, s3_bucket, "s3://there-is-no-such-bucket"))
    assert set(absent) == {"bucket"} and "SCRIMP_HEADS_STORE: objects cannot be written" in absent["bucket"].says
    real = time.time
    monkeypatch.setattr("scrimp_server.buckets.time.time", lambda: real() + 100.0)
    assert "s off the clock of SCRIMP_OBJECT_STORE" in faults(in_buckets(well, s3_bucket, ""))["clock"].says


def test_a_store_without_conditions_is_no_store(well: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers every write with success, as older stores do."""
    kept: dict[str, bytes] = {}

    class Old(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            kept[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(b"")

        def do_GET(self) -> None:
            self._answer(kept.get(self.path, b""))

        def do_POST(self) -> None:
            self._answer(b"<DeleteResult/>")

        def do_DELETE(self) -> None:
            self._answer(b"")

        def _answer(self, content: bytes) -> None:
            self.send_response(200)
            for name, value in (("ETag", '"x"'), ("Last-Modified", formatdate(usegmt=True))):
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    with servers.answering(ThreadingHTTPServer(("127.0.0.1", 0), Old)) as server:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "x")
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        found = faults(in_buckets(well, "", "s3://bucket"))
    assert "(If-None-Match)" in found["bucket"].says
