"""A backup that forgot a join of two ledgers: both are behind, and both stay one budget once they are restored."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

from app.db.models import Account
from app.ledger.verification import verify
from app.lifecycle import restore
from app.storage import objects
from core.privacy.prices import Units
from tests.chaos.tamper import unprotected
from tests.factories import add_dataset
from tests.lifecycle.test_restore import CAP, World, world

__all__ = ["world"]


@pytest.fixture
def pair(world: World) -> tuple[str, str]:
    """Two data sets; the first one has spent half of its cap."""
    closed, stays = (add_dataset(world.db, privacy=CAP, holdout=None) for _ in range(2))
    world.run(world.submit(closed, 0.5, "first").json()["id"])
    return closed, stays


def join(world: World, closed: str, stays: str) -> Any:
    with world.api() as client:
        return client.post(f"/v1/datasets/{closed}/ledger/join", json={"into": stays, "reason": "the same records"})


def post(world: World, dataset: str) -> Units:
    return restore.post(world.db, world.heads, objects.of(world.settings), dataset, "the disk died")


def test_a_join_is_recorded_before_its_answer(world: World, pair: tuple[str, str]) -> None:
    closed, stays = pair
    assert join(world, closed, stays).status_code == 200
    recorded = {each: world.heads.read(each) for each in pair}
    for each, head in recorded.items():
        account = world.account(each)
        assert head is not None and (head.seq, head.head) == (account.entries, account.head)
        assert head.joined_into == (stays if each == closed else None)


def test_a_forgotten_join_is_closed_and_charged_again(world: World, pair: tuple[str, str]) -> None:
    closed, stays = pair
    backup = world.backup()
    join(world, closed, stays)
    charged = world.account(stays).train_spent
    world.restore(backup)
    assert {gap.dataset_id for gap in restore.gaps(world.db, world.heads, objects.of(world.settings))} == set(pair)
    assert join(world, closed, stays).json()["type"] == "/problems/ledger-behind"
    assert post(world, closed) == Units(train=0, holdout=0)
    assert post(world, stays) == Units(train=charged, holdout=0)
    assert world.account(closed).joined_into == stays and world.account(stays).train_spent == charged
    assert restore.gaps(world.db, world.heads, objects.of(world.settings)) == []
    assert world.submit(closed, 0.1, "second").status_code == 409
    assert world.submit(stays, 0.95, "third").json()["type"] == "/problems/budget-exceeded"
    with world.db.read() as session:
        assert all(verify(session, each).valid for each in pair)


def test_what_a_closed_ledger_forgot_is_in_the_charge_of_the_other(world: World, pair: tuple[str, str]) -> None:
    closed, stays = pair
    job = world.submit(closed, 0.3, "runs").json()["id"]
    join(world, closed, stays)
    charged = world.account(stays).train_spent
    backup = world.backup()
    world.run(job)
    world.restore(backup)
    (gap,) = restore.gaps(world.db, world.heads, objects.of(world.settings))
    assert gap.dataset_id == closed and gap.missing == Units(train=0, holdout=0)
    assert post(world, closed) == Units(train=0, holdout=0)
    assert restore.gaps(world.db, world.heads, objects.of(world.settings)) == []
    assert world.account(stays).train_spent == charged
    with world.db.read() as session:
        assert verify(session, closed).valid


@pytest.mark.parametrize("tampered", [0, 1])
def test_a_row_that_is_not_what_its_last_entry_says_is_not_joined(
    world: World, pair: tuple[str, str], tampered: int
) -> None:
    with unprotected(world.db) as session:
        session.execute(update(Account).where(Account.dataset_id == pair[tampered]).values(train_spent=1))
    before = [world.account(each).entries for each in pair]
    assert join(world, *pair).json()["type"] == "/problems/ledger-behind"
    assert [world.account(each).entries for each in pair] == before
