"""An egress around a rotation of the signing key, and around the end of the grant under which it is asked for."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select, update

from app.db.models import AuditEntry, Grant
from app.ledger.signer import public_key
from app.ledger.signing_keys import signing_key
from app.lifecycle.relay import Relay
from app.renewal import rotation
from core.ids import now
from scrimp.egress import Expected, examine
from tests.egress.conftest import World
from tests.lifecycle.test_relay import Notifier
from tests.node import by_node, needs_node


def rotated(world: World) -> str:
    """Rotates the signing key and starts the relay anew, as an operator does. Returns the new public key."""
    rotation.rotate(world.db, world.relay.settings, "signing_key")
    world.scene.signing_key = signing_key(world.relay.settings)
    world.relay = Relay(world.db, world.relay.settings, world.scene.signing_key, Notifier([].append))
    return public_key(world.scene.signing_key)


@needs_node
@pytest.mark.parametrize("grown", [False, True], ids=["as it was", "grown since"])
def test_an_egress_of_a_certificate_of_the_key_before(world: World, tmp_path: Path, grown: bool) -> None:
    """Whoever names both keys can check it; whoever names one is told of the other."""
    before = world.made(world.first, tmp_path / "before")
    new = rotated(world)
    assert new != world.key
    if grown:
        world.finished("after")
    folder = world.made(world.first, tmp_path / "after", recipient="later")
    assert examine(folder, [world.key, new], Expected(world.first)).faults == []
    assert by_node(folder, "--public-key", world.key, "--public-key", new).returncode == 0
    assert "rotated" in examine(folder, [new]).faults[0]
    assert examine(folder, [world.key]).faults == ["no trusted key signed the manifest"]
    assert examine(before, [world.key]).faults == [], "what was made before stays what it was"
    assert (
        world.fetch(world.first, tmp_path / "again", number=1).joinpath("manifest.json").read_bytes()
        == (before / "manifest.json").read_bytes()
    )


def test_an_egress_that_was_asked_for_before_a_rotation_is_signed_by_the_key_after(
    world: World, tmp_path: Path
) -> None:
    assert world.ask(world.first).status_code == 202
    new = rotated(world)
    world.let_out()
    folder = world.fetch(world.first, tmp_path / "folder")
    assert examine(folder, [world.key, new]).faults == []
    assert examine(folder, [world.key]).faults == ["no trusted key signed the manifest"]


def end_grant(world: World) -> None:
    with world.db.write() as session:
        changed = session.execute(update(Grant).where(Grant.key_id == world.scene.analyst.id).values(ends_at=now()))
        assert changed.rowcount == 1  # type: ignore[attr-defined]


def actions(world: World) -> list[str]:
    with world.db.read() as session:
        rows = select(AuditEntry.action).where(AuditEntry.target == world.first).order_by(AuditEntry.id)
        return [each for each in session.scalars(rows) if each.startswith("egress.")]


def test_a_grant_that_has_ended_gives_no_egress(world: World, tmp_path: Path) -> None:
    """It may neither ask nor fetch nor look, whatever it asked for before; the owner may."""
    analyst, path = world.scene.analyst, f"/v1/jobs/{world.first}"
    assert world.ask(world.first, analyst).status_code == 202
    world.let_out()
    assert world.call("GET", f"{path}/egress", analyst).status_code == 200
    end_grant(world)
    before = actions(world)
    assert world.ask(world.first, analyst, recipient="another").status_code == 404
    for method, page in (("GET", "egress"), ("HEAD", "egress"), ("GET", "egresses")):
        assert world.call(method, f"{path}/{page}", analyst).status_code == 404, (method, page)
    assert actions(world) == before, "nothing of it left"
    assert world.call("GET", f"{path}/egress").status_code == 200


def test_an_egress_whose_asker_s_grant_ended_meanwhile_is_made_for_the_owner_alone(
    world: World, tmp_path: Path
) -> None:
    assert world.ask(world.first, world.scene.analyst).status_code == 202
    end_grant(world)
    world.let_out()
    path = f"/v1/jobs/{world.first}/egress"
    assert world.call("GET", path, world.scene.analyst).status_code == 404
    folder = world.fetch(world.first, tmp_path / "folder")
    assert examine(folder, [world.key]).manifest["asked_by"] == world.scene.analyst.id


def test_a_grant_that_ends_later_gives_its_egress(world: World) -> None:
    with world.db.write() as session:
        later = update(Grant).where(Grant.key_id == world.scene.analyst.id).values(ends_at=now() + timedelta(days=1))
        session.execute(later)
    assert world.ask(world.first, world.scene.analyst).status_code == 202
