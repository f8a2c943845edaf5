"""A backup that forgot a retirement, or spending: no content has two budgets that can be spent."""

from __future__ import annotations

from app.db.models import Dataset
from app.ledger import accounts
from app.ledger.verification import verify
from app.lifecycle import restore
from app.storage import objects
from core.privacy.prices import Units
from tests.factories import add_dataset
from tests.lifecycle.test_restore import CAP, World, world

__all__ = ["world"]


def test_a_retirement_that_a_backup_forgot_closes_the_ledger_again(world: World) -> None:
    """The content may have been registered anew and spent since: the first budget must stay closed."""
    unused = add_dataset(world.db, privacy=CAP, holdout=None)
    backup = world.backup()
    with world.api() as client:
        assert client.post(f"/v1/datasets/{unused}/retire").json()["state"] == "retired"
    recorded = world.heads.read(unused)
    assert recorded is not None and recorded.joined_into == accounts.RETIRED
    world.restore(backup)
    assert world.submit(unused, 0.5, "first").json()["type"] == "/problems/ledger-behind"
    nothing = Units(train=0, holdout=0)
    assert restore.post(world.db, world.heads, objects.of(world.settings), unused, "the disk died") == nothing
    refused = world.submit(unused, 0.5, "second")
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/content-deleted")
    with world.db.read() as session:
        assert verify(session, unused).valid and session.get_one(Dataset, unused).retired_at is not None
    assert world.account(unused).joined_into == accounts.RETIRED


def test_what_only_seems_unused_is_not_retired(world: World) -> None:
    """The backup has no hold on it, but one was posted: its content would get a second budget."""
    spent = add_dataset(world.db, privacy=CAP, holdout=None)
    backup = world.backup()
    world.run(world.submit(spent, 0.95, "first").json()["id"])
    world.restore(backup)
    with world.api() as client:
        refused = client.post(f"/v1/datasets/{spent}/retire")
        assert (refused.status_code, refused.json()["type"]) == (409, "/problems/ledger-behind")
        changed = client.post(f"/v1/datasets/{spent}/declarations", json={"classes": [0, 1, 2]})
        assert changed.status_code == 409
        assert client.get(f"/v1/datasets/{spent}").json()["state"] == "behind"
