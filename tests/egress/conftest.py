"""A service with finished jobs, and the relay that makes their egresses."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from app.db.database import Database
from app.ledger.signer import public_key
from app.lifecycle.relay import Relay
from app.main import create_app
from app.settings import Settings
from tests.dashboard.conftest import make_home
from tests.dashboard.scene import Key, Scene
from tests.lifecycle.test_relay import Notifier

REQUEST = {"recipient": "University Hospital", "reason": "use in the study"}


class World:
    """The API over a home, a relay over the same, and a data set with two finished jobs."""

    def __init__(self, settings: Settings) -> None:
        self.db = Database.of(settings)
        self.scene = Scene(self.db, settings)
        self.client = TestClient(create_app(settings), raise_server_exceptions=False)
        self.relay = Relay(self.db, settings, self.scene.signing_key, Notifier([].append))
        self.key = public_key(self.scene.signing_key)
        self.dataset = self.scene.dataset("imdb-reviews")

    @cached_property
    def first(self) -> str:
        return self.finished("first")

    @cached_property
    def second(self) -> str:
        return self.finished("second")

    def finished(self, name: str, dataset: str | None = None, **more: Any) -> str:
        asked = {"privacy": {"target_epsilon": 0.5}, "evaluation": None} | more
        job = self.scene.job(dataset or self.dataset, name, by=self.scene.owner, **asked)
        log = self.scene.start(job)
        self.scene.step(log, log.recorded()[0].steps)
        self.scene.finish(log)
        return job

    def call(self, method: str, path: str, by: Key | None = None, **more: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {(by or self.scene.owner).token}"} | more.pop("headers", {})
        return self.client.request(method, path, headers=headers, **more)

    def ask(self, job: str, by: Key | None = None, **more: str) -> httpx.Response:
        return self.call("POST", f"/v1/jobs/{job}/egress", by, json=REQUEST | more)

    def fetch(self, job: str, folder: Path, **params: Any) -> Path:
        answer = self.call("GET", f"/v1/jobs/{job}/egress", params=params)
        assert answer.status_code == 200, answer.text
        with zipfile.ZipFile(io.BytesIO(answer.content)) as packed:
            packed.extractall(folder)
        return folder

    def made(self, job: str, folder: Path, **more: str) -> Path:
        """A new egress of a job, unpacked."""
        assert self.ask(job, **more).status_code == 202
        self.let_out()
        return self.fetch(job, folder)

    def let_out(self) -> None:
        """The relay makes all egresses that are due."""
        self.relay.run_once()
        while self.relay.let_out():
            pass

    def close(self) -> None:
        self.client.app.state.pricing.close()  # type: ignore[attr-defined]
        self.client.app.state.db.close()  # type: ignore[attr-defined]
        self.db.close()


@pytest.fixture
def world(settings: Settings) -> Iterator[World]:
    made = World(settings)
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Iterator[World]:
    made = World(make_home(tmp_path_factory.mktemp("egress") / "home", migrated_database))
    yield made
    made.close()
