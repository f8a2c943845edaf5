"""What is needed, and what only slows things down."""

from __future__ import annotations

import asyncio
import shutil
from types import SimpleNamespace

import pytest

from app.db.database import Database
from app.lifecycle.queue.presence import Presence
from app.settings import Settings
from app.system import health
from core.contracts.sandbox import Sandbox


def test_a_broker_that_is_down_degrades(db: Database, settings: Settings) -> None:
    found = health.checks(db, settings.model_copy(update={"broker_url": "redis://127.0.0.1:1/0"}))
    assert {name: state == "ok" for name, state in found.items()} == {
        "database": True,
        "migrations": True,
        "storage": True,
        "broker": False,
        "clock": True,
        "ledger": True,
    }
    assert health.status(found) == "degraded"


def test_a_storage_that_can_not_be_written_is_not_ready(db: Database, settings: Settings) -> None:
    settings.storage_root.parent.mkdir(exist_ok=True)
    shutil.rmtree(settings.storage_root, ignore_errors=True)
    settings.storage_root.write_text("a file in its place")
    found = health.checks(db, settings)
    assert found["storage"] != "ok" and health.status(found) == "not ready"


def test_a_storage_without_room_is_not_ready(db: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    found = health.checks(db, settings)
    assert found["storage"] == "StorageFullError" and health.status(found) == "not ready"


def test_attempts_without_their_own_user_degrade(db: Database, settings: Settings) -> None:
    wanted = settings.model_copy(update={"attempt_uid": 10002, "attempt_gid": 10002})
    assert "attempts" not in health.checks(db, settings)
    assert health.checks(db, wanted)["attempts"] == "AttemptUserError", "no worker lives: it may have refused to start"
    own = Sandbox(seccomp=True, landlock=True, network="none", memory_limit_bytes=1, uid=10002)
    Presence(db, "h", 1, 5.0, own).beat()
    assert health.checks(db, wanted)["attempts"] == "ok"
    ingest = Presence(db, "h", 3, 5.0)
    ingest.volume = "vol_a"
    ingest.beat()
    assert health.checks(db, wanted)["attempts"] == "ok", "it makes no attempts"
    assert set(health.skews(db, 30.0)) == {"api", "h:1", "h:3"}, "its clock counts"
    Presence(db, "h", 2, 5.0, own.model_copy(update={"uid": None})).beat()
    found = health.checks(db, wanted)
    assert found["attempts"] == "AttemptUserError" and health.status(found) == "degraded"


def test_readiness_is_looked_at_once_for_all_who_ask_at_once() -> None:
    """Attack (Doors): A probe of readiness
    Now: needs none, tells nothing private, and costs one look a second
    Also: tests/jobs/test_api.py::test_every_route_but_health_and_readiness_needs_a_key
    """
    looked: list[int] = []

    def look() -> dict[str, str]:
        looked.append(1)
        return {"database": "ok"}

    async def ask() -> None:
        readiness = health.Readiness(look)
        found = await asyncio.gather(*(readiness.checks() for _ in range(100)))
        assert found == [{"database": "ok"}] * 100

    asyncio.run(ask())
    assert len(looked) == 1
