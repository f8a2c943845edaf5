"""/v1/workers: who was seen, who lives, who runs what."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from app.db.database import Database
from app.db.models import Worker
from app.lifecycle.queue.presence import Presence
from core.contracts.devices import Device
from core.ids import now
from tests.conftest import Api
from tests.e2e.conftest import until
from tests.lifecycle.conftest import claimed

Submit = Callable[..., str]


def listed(api: Api) -> list[dict[str, object]]:
    answer = api.client.get("/v1/workers", headers=api.headers("analyst"))
    assert answer.status_code == 200, answer.text
    items: list[dict[str, object]] = answer.json()["items"]
    return items


def test_a_worker_is_listed_while_it_lives(api: Api, db: Database, submit: Submit) -> None:
    assert listed(api) == []
    gpu = Device(kind="cuda", index=1, name="A GPU", memory_bytes=2**34, capability="9.0", driver="550.54", cuda="12.8")
    presence = Presence(db, "a-host", 7, interval_s=0.05, devices=[gpu])
    presence.start()
    until(lambda: listed(api))
    first = listed(api)[0]
    assert {name: first[name] for name in ("name", "host", "pid", "alive", "job")} == {
        "name": "a-host:7",
        "host": "a-host",
        "pid": 7,
        "alive": True,
        "job": None,
    }
    assert first["devices"] == [gpu.model_dump()]
    job = submit()
    log = claimed(db, job, worker="a-host:7")
    assert listed(api)[0]["job"] == job
    log.cancelled()
    assert listed(api)[0]["job"] is None
    until(lambda: listed(api)[0]["seen_at"] != first["seen_at"])
    presence.stop()
    assert listed(api) == []


def test_a_worker_is_listed_again_after_its_cluster_was_away(api: Api, db: Database) -> None:
    """Nothing that asks a cluster for its devices ends the thread that lists the worker."""
    away = iter([ConnectionError("the head is away")] * 2)

    def devices() -> list[Device]:
        for error in away:
            raise error
        return []

    presence = Presence(db, "a-host", 7, interval_s=0.05, devices=devices)
    presence.start()
    until(lambda: listed(api))
    presence.stop()


def test_a_dead_worker_is_not_alive_and_is_forgotten_in_a_day(api: Api, db: Database) -> None:
    for age_s in (40, 100_000):
        seen = now() - timedelta(seconds=age_s)
        with db.write() as session:
            session.add(Worker(name=f"h:{age_s}", host="h", pid=age_s, started_at=seen, seen_at=seen))
    assert [(each["name"], each["alive"]) for each in listed(api)] == [("h:40", False), ("h:100000", False)]
    Presence(db, "h", 1, interval_s=5.0).beat()
    assert [(each["name"], each["alive"]) for each in listed(api)] == [("h:1", True), ("h:40", False)]


def test_it_needs_a_key(api: Api) -> None:
    assert api.client.get("/v1/workers").status_code == 401
