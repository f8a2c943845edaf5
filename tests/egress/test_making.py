"""How the relay makes an egress: within bounds, without a second copy of the model, and not for ever."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from app.db.models import Artifact, AuditEntry, Egress, Job, Outbox
from app.egress import making
from app.lifecycle.relay import Relay
from app.retention import service as retention
from app.settings import Settings
from app.storage.folder import Folder
from core.errors import Unavailable
from core.ids import now
from tests.egress.conftest import World
from tests.lifecycle.test_relay import Notifier


def shown(world: World, job: str) -> Any:
    (found,) = world.call("GET", f"/v1/jobs/{job}/egresses").json()["items"]
    return found


def kept(world: World, job: str) -> list[Path]:
    """The files of a job's egresses on the disk."""
    folder = world.relay.settings.storage_root / "jobs" / job / "egress"
    return [each for each in folder.rglob("*") if each.is_file()]


def due_now(world: World) -> None:
    with world.db.write() as session:
        session.execute(update(Egress).values(next_try_at=None))


def refuse(*_: object, **__: object) -> None:
    raise Unavailable("the object store does not answer")


def test_what_is_kept_is_without_the_model(world: World) -> None:
    world.ask(world.first)
    world.let_out()
    (papers,) = kept(world, world.first)
    with zipfile.ZipFile(papers) as packed:
        assert "manifest.json" in packed.namelist()
        assert not [name for name in packed.namelist() if name.startswith("model/")]
    answer = world.call("GET", f"/v1/jobs/{world.first}/egress")
    with zipfile.ZipFile(io.BytesIO(answer.content)) as packed:
        assert packed.testzip() is None and "model/model.safetensors" in packed.namelist()
    assert len(answer.content) == int(answer.headers["Content-Length"]) == shown(world, world.first)["size_bytes"]
    head = world.call("HEAD", f"/v1/jobs/{world.first}/egress")
    assert (head.status_code, head.content) == (200, b"") and head.headers["ETag"] == answer.headers["ETag"]


def test_of_deleted_files_none_is_made(world: World) -> None:
    """As the upgrade to papers leaves the row of a job whose files were deleted before it."""
    world.ask(world.first)
    assert world.call("DELETE", f"/v1/jobs/{world.first}/artifacts").status_code == 200
    with world.db.write() as session:
        session.execute(update(Egress).values(deleted_at=None, path=None))
    world.let_out()
    view = shown(world, world.first)
    assert view["status"] == "failed" and "files were deleted" in view["problem"] and not kept(world, world.first)


def test_the_relay_s_own_pass_makes_none(world: World) -> None:
    """A large model keeps wake-ups and certificates from nothing."""
    world.ask(world.first)
    world.relay.run_once()
    assert shown(world, world.first)["status"] == "pending"
    with world.db.read() as session:
        assert session.scalar(select(Outbox.id).where(Outbox.topic == "egress")) is None
    assert world.relay.let_out() and not world.relay.let_out()
    assert shown(world, world.first)["status"] == "ready"


def test_a_try_that_fails_leaves_nothing_and_the_last_one_ends_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = now()
    monkeypatch.setattr("app.egress.making.now", lambda: at)
    world.ask(world.first)
    monkeypatch.setattr("app.storage.folder.Folder.publish", refuse)
    for number in range(1, making.TRIES + 1):
        assert shown(world, world.first)["status"] == "pending"
        assert world.relay.let_out() and kept(world, world.first) == []
        assert not world.relay.let_out(), "the next try comes later"
        with world.db.read() as session:
            assert session.scalars(select(Egress.tries)).one() == number
        due_now(world)
    assert not world.relay.let_out()
    found = shown(world, world.first)
    assert (found["status"], found["problem"]) == ("failed", "the object store does not answer")
    with world.db.read() as session:
        assert session.scalar(select(AuditEntry.target).where(AuditEntry.action == "egress.failed")) == world.first
    monkeypatch.undo()
    assert world.ask(world.first).status_code == 202, "another one may be asked for"
    assert world.relay.let_out() and world.call("GET", f"/v1/jobs/{world.first}/egress").status_code == 200


def test_a_place_that_cannot_be_cleared_delays_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.ask(world.first)
    with world.db.write() as session:
        session.execute(update(Egress).values(path=f"jobs/{world.first}/egress/egr_old/papers.zip"))
    monkeypatch.setattr(Folder, "remove", refuse)
    world.let_out()
    assert shown(world, world.first)["status"] == "ready"


def test_ledgers_that_cannot_be_signed_are_a_try_and_delay_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fails before the folder is begun counts as well."""
    at = now()
    monkeypatch.setattr("app.egress.making.now", lambda: at)  # however long all this takes, the next try is not due
    world.ask(world.first)
    with monkeypatch.context() as patched:
        patched.setattr("app.ledger.signed_terms.sign", refuse)
        assert world.relay.let_out() and not world.relay.let_out()
    world.ask(world.second)
    assert world.relay.let_out() and not world.relay.let_out()
    assert (shown(world, world.first)["status"], shown(world, world.second)["status"]) == ("pending", "ready")
    with world.db.read() as session:
        assert session.scalar(select(Egress.tries).where(Egress.job_id == world.first)) == 1


def test_tries_that_are_killed_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay that dies each time notes no failure itself."""
    world.ask(world.first)
    with world.db.write() as session:
        session.execute(update(Egress).values(tries=making.TRIES))
    world.let_out()
    found = shown(world, world.first)
    assert found["status"] == "failed" and "did not end" in found["problem"]


def test_a_try_that_was_killed_leaves_nothing_behind(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The relay dies once the papers are on disk, before the row says so."""

    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    world.ask(world.first)
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr("app.storage.folder.Folder.publish", kill)
        world.relay.let_out()
    assert len(kept(world, world.first)) == 1
    due_now(world)
    assert world.relay.let_out() and len(kept(world, world.first)) == 1
    assert world.call("GET", f"/v1/jobs/{world.first}/egress").status_code == 200


def test_an_egress_that_fails_delays_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (world.relay.settings.storage_root / "jobs" / world.first / "model.safetensors").write_bytes(b"others")
    world.ask(world.first)
    world.ask(world.second)
    assert world.relay.let_out() and world.relay.let_out() and not world.relay.let_out()
    assert (shown(world, world.first)["status"], shown(world, world.second)["status"]) == ("failed", "ready")


def test_of_two_relays_one_makes_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one begins while the first one publishes: the first one's papers are of nobody, and go."""
    world.ask(world.first)
    other = Relay(world.db, world.relay.settings, world.scene.signing_key, Notifier(list[str]().append))
    published = making._write

    def interrupted(*args: Any) -> Any:
        monkeypatch.setattr(making, "_write", published)
        due_now(world)
        assert other.let_out()
        return published(*args)

    monkeypatch.setattr(making, "_write", interrupted)
    assert world.relay.let_out() and len(kept(world, world.first)) == 1
    assert world.call("GET", f"/v1/jobs/{world.first}/egress").status_code == 200
    with world.db.read() as session:
        assert len(session.scalars(select(AuditEntry.id).where(AuditEntry.action == "egress.made")).all()) == 1


def test_a_key_s_open_egresses_are_bounded(settings: Settings) -> None:
    world = World(settings.model_copy(update={"max_open_egresses": 2, "max_egress_bytes": 1}))
    try:
        assert [world.ask(world.first, recipient=each).status_code for each in ("a", "b", "c")] == [202, 202, 409]
        refused = world.ask(world.first, recipient="c").json()
        assert (refused["type"], refused["limit"]) == ("/problems/too-many-egresses", 2)
        assert len(world.call("GET", f"/v1/jobs/{world.first}/egresses").json()["items"]) == 2
        world.let_out()
        refused = world.ask(world.first, recipient="c").json()
        assert (refused["type"], refused["limit_bytes"]) == ("/problems/too-many-egresses", 1)
        assert world.call("DELETE", f"/v1/jobs/{world.first}/artifacts").status_code == 200
        assert world.ask(world.second).status_code == 202, "deleted papers take nothing"
    finally:
        world.close()


def test_no_egress_is_taken_without_room_on_the_disk(settings: Settings) -> None:
    world = World(settings.model_copy(update={"disk_reserve_bytes": 2**60}))
    try:
        assert world.ask(world.first).json()["type"] == "/problems/storage-full"
    finally:
        world.close()


def test_deleted_files_take_their_egresses_along(world: World) -> None:
    world.ask(world.first)
    world.let_out()
    world.ask(world.first, recipient="Another Hospital")
    assert world.call("DELETE", f"/v1/jobs/{world.first}/artifacts").status_code == 200
    world.let_out()
    items = world.call("GET", f"/v1/jobs/{world.first}/egresses").json()["items"]
    assert [each["status"] for each in items] == ["deleted", "deleted"]
    assert world.call("GET", f"/v1/jobs/{world.first}/egress").status_code == 404
    assert kept(world, world.first) == []


def test_retention_deletes_papers_of_jobs_without_files(world: World) -> None:
    """A job of statistics delivers no model: its egress has papers all the same."""
    world.ask(world.first)
    world.let_out()
    with world.db.write() as session:
        job = session.get_one(Job, world.first)
        job.finished_at = now().replace(year=2020)
        session.execute(update(Egress).values(made_at=now().replace(year=2020)))
        session.execute(delete(Artifact).where(Artifact.job_id == job.id))
    retention.sweep(world.db, world.relay.settings.model_copy(update={"artifacts_kept_days": 30.0}))
    world.relay.run_once()
    assert shown(world, world.first)["status"] == "deleted" and kept(world, world.first) == []
