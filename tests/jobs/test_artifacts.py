"""Files of finished jobs: what the disk has changed is never handed out as what was published."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.db.database import Database
from app.jobs.artifacts import ArtifactDamagedError
from app.settings import Settings
from core.contracts.stored_documents import ArtifactFile
from tests.conftest import Api
from tests.dashboard.conftest import serving
from tests.lifecycle.conftest import claimed
from tests.lifecycle.conftest import submit as submit  # noqa: PLC0414 - a fixture

CHUNK = 64 * 1024
# The last one is a multiple of what is read at once: its last piece is empty.
SIZES = [10, CHUNK - 1, CHUNK, 5 * CHUNK + 3, 4 * CHUNK]


@pytest.fixture(params=["sqlite"])
def backing() -> str:
    return "sqlite"


class Published:
    """A job with a model of some size, and requests for it."""

    def __init__(self, api: Api, settings: Settings, db: Database, job: str, size: int) -> None:
        self.api, self.url = api, f"/v1/jobs/{job}"
        self.content = bytes(range(251)) * (size // 251 + 1)
        self.content = self.content[:size]
        stored = f"jobs/{job}/attempt-1/model.safetensors"
        self.path: Path = settings.storage_root / stored
        self.path.parent.mkdir(parents=True)
        self.path.write_bytes(self.content)
        log = claimed(db, job)
        log.start_block(1, 50)
        model = ArtifactFile(
            name="model.safetensors", sha256=hashlib.sha256(self.content).hexdigest(), size_bytes=size, path=stored
        )
        log.succeed([model], 50, [])

    def get(self, **headers: str) -> Any:
        address = f"{self.url}/artifacts/model.safetensors"
        return self.api.client.get(address, headers=self.api.headers("admin", **headers))

    def damage(self, at: int) -> None:
        flipped = bytearray(self.content)
        flipped[at] ^= 1
        self.path.write_bytes(flipped)

    def is_damaged(self) -> bool:
        job = self.api.client.get(self.url, headers=self.api.headers("admin")).json()
        return bool(job["artifacts"][0]["damaged"])


@pytest.fixture
def strict(api: Api, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Api:
    """The test's client raises what breaks a response off, as a client of the wire sees it broken."""
    monkeypatch.setattr(api.client._transport, "raise_server_exceptions", True)
    return api


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("where", ["first", "last"])
def test_a_flipped_byte_breaks_the_download_and_marks_the_file(
    strict: Api, settings: Settings, db: Database, submit: Any, size: int, where: str
) -> None:
    model = Published(strict, settings, db, submit(), size)
    whole = model.get()
    assert (whole.status_code, whole.content) == (200, model.content)
    assert int(whole.headers["content-length"]) == size and "etag" in whole.headers
    model.damage(0 if where == "first" else size - 1)
    with pytest.raises(ArtifactDamagedError):
        model.get()
    assert model.is_damaged()
    refused = model.get()
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/artifact-damaged")
    model.path.write_bytes(model.content)  # put back from a backup
    assert model.get().content == model.content
    assert not model.is_damaged()


@pytest.mark.parametrize("change", ["shorter", "longer"])
def test_a_file_of_another_length_is_damaged_too(
    strict: Api, settings: Settings, db: Database, submit: Any, change: str
) -> None:
    model = Published(strict, settings, db, submit(), 1000)
    model.path.write_bytes(model.content[:-1] if change == "shorter" else model.content + b"x")
    with pytest.raises(ArtifactDamagedError):
        model.get()
    assert model.is_damaged()


def test_a_part_is_sent_of_a_whole_file_alone(api: Api, settings: Settings, db: Database, submit: Any) -> None:
    model = Published(api, settings, db, submit(), 1000)
    part = model.get(Range="bytes=10-19")
    assert (part.status_code, part.content) == (206, model.content[10:20])
    model.damage(900)
    refused = model.get(Range="bytes=10-19")
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/artifact-damaged")
    assert model.is_damaged()


def test_over_the_wire_a_damaged_file_never_arrives_complete(
    api: Api, settings: Settings, db: Database, submit: Any
) -> None:
    """Attack (Reliability): A byte of a model is flipped on the disk
    Now: the download breaks off before its end; 409 from then on
    Also: tests/jobs/test_artifacts.py::test_a_flipped_byte_breaks_the_download_and_marks_the_file
    """
    model = Published(api, settings, db, submit(), 4 * CHUNK)
    model.damage(5)
    with serving(settings.home) as url:
        address = f"{url}{model.url}/artifacts/model.safetensors"
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(address, headers=api.headers("admin"), trust_env=False)
