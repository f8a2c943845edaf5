"""Real attempts on sealed data sets: no record is on the disk in plaintext, before, while or after they run."""

from __future__ import annotations

import csv
import io
import json
import logging
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.db.database import Database
from app.keys import service as keys
from app.main import create_app
from app.renewal import resealing, rotation
from app.secrets import load_secret, secret_id, write_private
from app.settings import Settings
from core.parts.sealed import header_of
from tests.datasets.test_sealed_home import traces as numbers
from tests.e2e.conftest import csv_spec, job_of
from tests.e2e.test_private_logs import NEEDLES, write_texts
from tests.lifecycle import test_auditor as auditing
from tests.lifecycle.conftest import claimed, job_row
from worker.attempt.auditor import replay
from worker.attempt.fork_server import ForkServer
from worker.attempt.supervisor import run_attempt

settings, db = auditing.settings, auditing.db


@pytest.fixture(scope="module")
def token(settings: Settings, db: Database) -> str:
    with db.write() as session:
        pepper = load_secret(settings, "api_key_pepper")
        return keys.create(session, pepper, name="a", role="admin", created_by=None)[1]


@pytest.fixture(scope="module")
def clients(settings: Settings, token: str) -> Iterator[tuple[TestClient, TestClient]]:
    """The API before SCRIMP_ENCRYPT_PARTS was on, and after."""
    plain = TestClient(create_app(settings))
    with TestClient(create_app(settings.model_copy(update={"encrypt_parts": True}))) as client:
        for each in (plain, client):
            each.headers["Authorization"] = f"Bearer {token}"
        yield plain, client


def traces(home: Path) -> set[str]:
    """The files under a home that have the planted text."""
    needles = [each.encode() for each in NEEDLES]
    files = [path for path in home.rglob("*") if path.is_file()]
    return {str(path.relative_to(home)) for path in files if any(each in path.read_bytes() for each in needles)}


def text_spec(name: str) -> dict[str, Any]:
    return csv_spec(name) | {"features": {"kind": "text", "column": "text"}}


def registered(client: TestClient, name: str, content: bytes) -> str:
    files = {"spec": (None, json.dumps(text_spec(name))), "file": ("data.csv", content)}
    made = client.post("/v1/datasets", files=files)
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


def submitted(client: TestClient, dataset: str, name: str, buckets: int = 128) -> str:
    model = {"kind": "linear", "extractor": {"name": "hashed-words", "words": {"buckets": buckets}}}
    spec = job_of(dataset, name=name, model=model, length={"steps": 10}, evaluation={"noise_mu": 0.2, "points": 2})
    made = client.post("/v1/jobs", json=spec, headers={"Idempotency-Key": name})
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_texts(tmp_path_factory.mktemp("texts") / "data.csv").read_bytes()


def others(content: bytes) -> bytes:
    """The same words in other records."""
    out = io.StringIO()
    rows = csv.reader(io.StringIO(content.decode()))
    csv.writer(out).writerows([next(rows), *([f"{text} more", y] for text, y in rows)])
    return out.getvalue().encode()


def test_a_planted_record_is_nowhere_in_plaintext(
    clients: tuple[TestClient, TestClient],
    settings: Settings,
    db: Database,
    fork_server: ForkServer,
    content: bytes,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """After registration, training with an extractor, and evaluation; with the attempt's own temporary files."""
    _, client = clients
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sealed = settings.model_copy(update={"encrypt_parts": True})
    dataset = registered(client, "sealed", content)
    assert traces(settings.home) == set()
    job_id = submitted(client, dataset, "sealed")
    run_attempt(claimed(db, job_id), sealed, fork_server)
    assert job_row(db, job_id).status == "succeeded"
    features = settings.storage_root / "datasets" / dataset / "features"
    made = [path for path in features.iterdir() if path.suffix != ".lock"]
    assert len(made) == 4 and all(header_of(path) is not None for path in made)
    assert traces(settings.home) == set() and traces(tmp_path) == set()
    again = replay(db, sealed, fork_server, job_id, None)
    assert again.holds and again.same_model


def test_sealing_and_rotation_change_no_bit_of_a_job(
    clients: tuple[TestClient, TestClient], settings: Settings, db: Database, fork_server: ForkServer, content: bytes
) -> None:
    """A job ran on plaintext. Its replay on the sealed parts, and then under another key, gives the same model."""
    plain, client = clients
    dataset = registered(plain, "plain", others(content))
    assert traces(settings.home), "the search finds what is there"
    job_id = submitted(client, dataset, "plain")
    run_attempt(claimed(db, job_id), settings, fork_server)
    assert job_row(db, job_id).status == "succeeded"
    sealed = settings.model_copy(update={"encrypt_parts": True})
    assert resealing.seal(sealed) == 4 + 4 + 1, "parts, features, digests of units; indexes too"
    assert traces(settings.home) == numbers(settings.home) == set()
    assert replay(db, sealed, fork_server, job_id, None).same_model
    rotation.rotate(db, sealed, "parts_key")
    rotation.finish(db, sealed, "parts_key")
    again = replay(db, sealed, fork_server, job_id, None)
    assert again.holds and again.same_model


def test_with_a_wrong_key_a_job_waits_and_the_log_says_what_to_do(
    clients: tuple[TestClient, TestClient],
    settings: Settings,
    db: Database,
    fork_server: ForkServer,
    content: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, client = clients
    dataset = registered(client, "waits", others(others(content)))
    job_id = submitted(client, dataset, "waits")
    path = settings.effective_secrets_dir / "parts_key"
    kept, name = path.read_text(), secret_id(load_secret(settings, "parts_key"))
    write_private(path, "ab" * 32 + "\n", overwrite=True)
    with caplog.at_level(logging.ERROR):
        for _ in range(settings.max_attempts + 1):
            run_attempt(claimed(db, job_id), settings, fork_server)
            assert job_row(db, job_id).status == "queued", "it fails never: nothing is wrong with it"
    assert f"sealed under the parts key {name}" in caplog.text and "put that key back" in caplog.text
    write_private(path, kept, overwrite=True)
    run_attempt(claimed(db, job_id), settings, fork_server)
    assert job_row(db, job_id).status == "succeeded"


def test_a_part_that_is_sealed_while_an_attempt_begins_costs_an_attempt_alone(
    clients: tuple[TestClient, TestClient],
    settings: Settings,
    db: Database,
    fork_server: ForkServer,
    content: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was told of no key."""
    plain, client = clients
    dataset = registered(plain, "begins", others(others(others(content))))
    job_id = submitted(client, dataset, "begins")
    sealed = settings.model_copy(update={"encrypt_parts": True})

    class Late(ForkServer):
        def __init__(self) -> None:
            """Starts no server of its own."""
            self.device = None

        def start(self, channel: int) -> Any:
            assert resealing.seal(sealed) > 0
            return fork_server.start(channel)

    run_attempt(claimed(db, job_id), sealed, Late())
    assert job_row(db, job_id).status == "queued"
    run_attempt(claimed(db, job_id), sealed, fork_server)
    assert job_row(db, job_id).status == "succeeded"
    shutil.rmtree(settings.storage_root / "staging", ignore_errors=True)
