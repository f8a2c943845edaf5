"""A hold that waits behind the owner's change is bounded by the change."""

from __future__ import annotations

import threading
import time

import pytest
from sqlalchemy import text

from app.budgets import service
from app.budgets.schemas import BudgetSetting
from app.db.database import Database
from app.keys.service import Caller
from core.errors import BudgetError
from tests.budgets.test_holds import OWNER, add_key, balances, give, hold, is_valid, of
from tests.ledger.support import add_owner, open_ledger

PATIENCE_S = 300.0


def wait_for_a_waiting_hold(db: Database, backing: str) -> None:
    """Waits until PostgreSQL says that a transaction waits for a lock. SQLite's waits before its first statement."""
    if backing == "sqlite":
        return
    until = time.monotonic() + PATIENCE_S
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    while time.monotonic() < until:
        with db.read() as session:
            if session.scalar(waiting):
                return
        time.sleep(0.01)
    raise AssertionError("no hold waits")


@pytest.mark.parametrize("case", ["new", "moved", "beyond the cap"])
def test_a_hold_that_waits_for_a_change_is_within_it(db: Database, backing: str, case: str) -> None:
    add_owner(db)
    dataset = open_ledger(db)
    ann, ben = add_key(db), add_key(db)
    if case == "moved":
        give(db, dataset, "big", 4.0, ann, ben)
    owner = Caller(OWNER, "owner", "admin")
    asked = balances(db, dataset)["train"]["budget"] + (case == "beyond the cap")
    refused: list[BudgetError] = []

    def try_hold() -> None:
        try:
            hold(db, dataset, "job_1", ann, asked)
        except BudgetError as error:
            refused.append(error)

    waits = threading.Thread(target=try_hold)
    with db.write() as session:
        if case == "moved":
            service.put(session, owner, dataset, "big", BudgetSetting(epsilon=4.0, keys=[ben]), "*")
        view = service.put(session, owner, dataset, ann, BudgetSetting(epsilon=0.5), None)
        waits.start()
        wait_for_a_waiting_hold(db, backing)
    waits.join(PATIENCE_S)
    (error,) = refused
    assert error.members["budget"] == ann and error.members["remaining"]["train"] == view.accounts.train.budget
    assert of(db, dataset, ann) == (0, 0, 0, 0) and balances(db, dataset)["train"]["held"] == 0
    assert is_valid(db, dataset)
