"""A backup from before a ledger moved to another filter: the database has lost the second ledger with its row."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.db.models import Dataset
from app.ledger import sub_accounts
from app.ledger.block_accounts import ledgers_of
from app.ledger.verification import verify
from app.lifecycle import restore
from app.storage import objects
from core.errors import NotFound
from core.privacy.prices import Units
from tests.factories import add_dataset
from tests.lifecycle.test_restore import CAP, World, world

__all__ = ["world"]

MIXED = {name: value for name, value in CAP.items() if name != "filter"} | {"plan": "mixed", "order": 8.0}
CAP4 = {"cap": {"epsilon": 4.0, "delta": 1e-5}}
MU = {"kind": "gdp", "mu": 0.2}
ZCDP = {"kind": "zcdp", "rho": 0.05}


def charge(client: TestClient, dataset: str, mechanism: dict[str, object], once: str) -> int:
    body = {"dataset": dataset, "mechanism": mechanism, "unit": "example", "attested": "elsewhere"}
    made = client.post("/v1/charges", json=body, headers={"Idempotency-Key": once})
    if made.status_code == 201:
        assert client.post(f"/v1/charges/{made.json()['id']}/post").status_code == 200
    return int(made.status_code)


def gaps(world: World) -> dict[str, restore.Gap]:
    return {each.dataset_id: each for each in restore.gaps(world.db, world.heads, objects.of(world.settings))}


def post(world: World, dataset: str) -> Units:
    return restore.post(world.db, world.heads, objects.of(world.settings), dataset, "the disk died")


@pytest.fixture
def moved(world: World) -> tuple[str, str]:
    """A data set of the plan "mixed" after its move, and a database that has forgotten the move."""
    first = add_dataset(world.db, privacy=MIXED | CAP4, holdout=None)
    with world.api() as client:
        (key,) = [each["id"] for each in client.get("/v1/keys").json()["items"] if each["name"] == "a"]
        budget = client.put(f"/v1/datasets/{first}/budgets/{key}", json={"epsilon": 3.5})
        assert budget.status_code in (200, 201), budget.text
        assert charge(client, first, MU, "before") == 201
    backup = world.backup()
    with world.api() as client:
        assert charge(client, first, MU, "forgotten") == 201
        assert charge(client, first, ZCDP, "moves") == 201
        assert charge(client, first, ZCDP, "then") == 201
    with world.db.read() as session:
        _, second = ledgers_of(session, first)
    world.spent = world.account(second).train_spent  # type: ignore[attr-defined]
    world.restore(backup)
    return first, second


def test_both_ledgers_are_behind_and_nothing_is_admitted(world: World, moved: tuple[str, str]) -> None:
    first, second = moved
    found = gaps(world)
    assert set(found) == {first, second} and found[second].name is None
    with world.api() as client:
        assert charge(client, first, MU, "full") == 409 and charge(client, first, ZCDP, "any") == 409
        assert client.get("/readyz").json()["checks"]["ledger"] == "LedgerBehindError", "what `scrimp doctor` shows"
    with pytest.raises(NotFound, match=f"post {found[first].name}, which moved to it, first"):
        post(world, second)


def test_a_ledger_that_was_joined_to_one_that_is_there_is_closed(world: World, moved: tuple[str, str]) -> None:
    """As a version before decision 62 could: that ledger has its row, and was charged."""
    first, _ = moved
    other, head = add_dataset(world.db), world.heads.read(first)
    assert head is not None
    world.heads.replace(head.model_copy(update={"joined_into": other}))
    assert post(world, first).train > 0
    assert world.account(first).joined_into == other


def test_the_move_is_made_again_and_nothing_is_overspent(world: World, moved: tuple[str, str]) -> None:
    first, second = moved
    assert post(world, first).train > 0
    assert world.account(first).joined_into == second
    with world.api() as client:
        assert charge(client, first, ZCDP, "early") == 409, "what more was spent on the other ledger is not known yet"
    assert post(world, second).train > 0
    assert gaps(world) == {}
    assert world.account(second).train_spent >= world.spent  # type: ignore[attr-defined]
    with world.db.read() as session:
        assert all(verify(session, each).valid for each in moved)
        assert session.scalar(select(Dataset.pays_for).where(Dataset.id == second)) == first
        (copy,) = sub_accounts.all_of(session, second)
        assert copy.train_spent > 0, "what the backup knew of the budget goes along"
    with world.api() as client:
        assert charge(client, first, ZCDP, "later") == 201
        assert charge(client, first, {"kind": "zcdp", "rho": 5.0}, "too much") == 409
