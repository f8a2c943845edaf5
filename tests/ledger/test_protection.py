"""What the database itself refuses, whoever asks: triggers keep entries, CHECKs keep balances."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DatabaseError

from app.db.database import Database
from app.db.models import Account
from app.ledger import accounts
from app.ledger.entries import append_cap
from core.errors import Conflict
from tests.ledger.support import OWNER, a_history, balances, check, hold

INTO = (
    "INTO ledger_entries (dataset_id, seq, kind, train, holdout, train_released, holdout_released, once, actor, memo, "
    "created_at, prev_hash, hash) VALUES (:d, "
)
REST = "'', '{}', '2026-01-01', '', '')"

ON_BOTH = [
    "UPDATE ledger_entries SET memo = '{}' WHERE dataset_id = :d",
    "UPDATE ledger_entries SET train = train WHERE dataset_id = :d AND seq = 2",
    "DELETE FROM ledger_entries WHERE dataset_id = :d",
    f"INSERT {INTO} 2, 'void', 0, 0, 0, 0, NULL, {REST}",
    f"INSERT {INTO} 8, 'hold', 0, 0, 0, 0, 'hold:job_1', {REST}",
    f"INSERT {INTO} 8, 'gift', 0, 0, 0, 0, NULL, {REST}",
    f"INSERT {INTO} 8, 'post', -1, 0, 0, 0, NULL, {REST}",
    f"INSERT {INTO} 8, 'post', 0, 0, -1, 0, NULL, {REST}",
    "DELETE FROM accounts WHERE dataset_id = :d",
    "UPDATE accounts SET filter = 'rdp' WHERE dataset_id = :d",
    "UPDATE accounts SET filter_order = 4.0 WHERE dataset_id = :d",
    "UPDATE accounts SET cap_delta = 0.001 WHERE dataset_id = :d",
    "UPDATE accounts SET train_held = train_budget + 1 WHERE dataset_id = :d",
    "UPDATE accounts SET train_budget = train_spent - 1 WHERE dataset_id = :d",
    "UPDATE accounts SET train_held = -1 WHERE dataset_id = :d",
    "UPDATE accounts SET holdout_spent = -1 WHERE dataset_id = :d",
    "UPDATE accounts SET holdout_spent = holdout_budget + 1 WHERE dataset_id = :d",
]
# The balances and the head of an account without the entry that states them.
UNSTATED = [
    *(
        f"UPDATE accounts SET {change} WHERE dataset_id = :d"  # noqa: S608
        for change in (
            "train_spent = 0",
            "train_held = 0",
            "holdout_spent = 0",
            "holdout_held = 0",
            "train_spent = train_spent - 1, train_held = train_held + 1",
            "train_spent = train_spent + 1",
            "train_budget = train_budget + 1",
            "holdout_budget = holdout_budget + 1",
            "cap_epsilon = cap_epsilon * 2",
            "joined_into = 'retired'",
            # Also counted, as a move is, or with the hash of the entry that is there.
            *(
                f"{change}, {counted}"
                for change in ("cap_epsilon = 9.0", "largest_cap_epsilon = 9.0", "joined_into = 'retired'")
                for counted in ("entries = entries + 1", "head = head")
            ),
            "cap_epsilon = 9.0, largest_cap_epsilon = 9.0, joined_into = 'retired'",
            "largest_cap_epsilon = largest_cap_epsilon * 2",
            "entries = entries - 1",
            "entries = entries + 2",
            "train_spent = 0, entries = entries + 2",
            "head = 'ff'",
            "train_spent = 0, entries = entries + 1, head = 'ff'",
            "largest_cap_epsilon = largest_cap_epsilon / 2",
            # An older entry, with the balances of that time.
            "head = (SELECT hash FROM ledger_entries WHERE dataset_id = :d AND seq = 2)",
        )
    ),
    "UPDATE accounts SET train_spent = 0",  # of all data sets: a missing WHERE
]
# Counted, but without an entry. SQLite cannot see at a commit that the entry is missing.
COUNTED = "UPDATE accounts SET train_spent = 0, entries = entries + 1 WHERE dataset_id = :d"
# The ways around an UPDATE or DELETE that each dialect has.
OWN = {
    "sqlite": [
        "INSERT OR REPLACE INTO ledger_entries SELECT * FROM ledger_entries WHERE dataset_id = :d AND seq = 2",
        f"REPLACE {INTO} 8, 'void', 0, 0, 0, 0, 'hold:job_1', {REST}",
        "INSERT OR REPLACE INTO accounts SELECT * FROM accounts WHERE dataset_id = :d",
    ],
    "postgresql": [
        "TRUNCATE ledger_entries",
        "TRUNCATE accounts CASCADE",
        "TRUNCATE datasets CASCADE",
        f"INSERT {INTO} 2, 'void', 0, 0, 0, 0, NULL, {REST} "
        "ON CONFLICT (dataset_id, seq) DO UPDATE SET train = EXCLUDED.train",
        "MERGE INTO ledger_entries AS old USING (SELECT 1) AS one ON old.dataset_id = :d "
        "WHEN MATCHED THEN UPDATE SET train = 0",
    ],
}


def row(db: Database, dataset_id: str) -> dict[str, Any]:
    with db.read() as session:
        account = text("SELECT * FROM accounts WHERE dataset_id = :d")
        return dict(session.execute(account, {"d": dataset_id}).mappings().one())


def refuses(db: Database, *statements: str) -> None:
    """The database refuses each statement, and the ledger is as it was."""
    dataset_id = a_history(db)
    before = row(db, dataset_id)
    for statement in statements:
        with pytest.raises(DatabaseError), db.write() as session:
            session.execute(text(statement), {"d": dataset_id})
        assert row(db, dataset_id) == before, statement
    assert check(db, dataset_id).valid


@pytest.mark.parametrize("statement", [*ON_BOTH, *UNSTATED])
def test_the_database_itself_refuses(db: Database, statement: str) -> None:
    """Attack (Reliability): `UPDATE accounts SET train_spent = 0`
    Now: triggers refuse it; without them each hold compares the row with the last entry: refused
    Also: tests/ledger/test_anchors.py::test_a_row_that_was_set_back_admits_nothing

    Attack (Reliability): `UPDATE accounts SET cap_epsilon = 9`, `joined_into = NULL`, `largest_cap_epsilon = 9`, with
    `entries` counted up
    Now: refused unless the statement moves the head to an entry that states them
    Also: tests/ledger/test_protection.py::test_a_cap_that_its_entry_states_otherwise_is_refused
    """
    refuses(db, statement)


def test_it_refuses_the_ways_around(db: Database) -> None:
    refuses(db, *OWN[db.engine.dialect.name])


def test_a_counted_move_without_its_entry_spends_nothing_more(db: Database) -> None:
    if db.engine.dialect.name == "postgresql":
        refuses(db, COUNTED)
        return
    dataset_id = a_history(db)
    with db.write() as session:
        session.execute(text(COUNTED), {"d": dataset_id})
    assert not check(db, dataset_id).valid
    with pytest.raises(Conflict) as refused:
        hold(db, dataset_id, "job_more", 1)
    assert refused.value.code == "ledger-behind"


@pytest.mark.parametrize(
    ("stated", "changed"),
    [
        ({"cap_epsilon": 9.0, "joined_into": None}, "cap_epsilon = 8.0, largest_cap_epsilon = 8.0"),
        ({"cap_epsilon": 9.0, "joined_into": None}, "cap_epsilon = 9.0, largest_cap_epsilon = 10.0"),
        ({"cap_epsilon": 4.0, "joined_into": "retired"}, "joined_into = 'ds_other'"),
        ({"cap_epsilon": 4.0, "joined_into": "retired"}, "joined_into = NULL"),
    ],
)
def test_a_cap_that_its_entry_states_otherwise_is_refused(db: Database, stated: Any, changed: str) -> None:
    """An entry of a cap is written, and the row changed to another one."""
    dataset_id = a_history(db)
    before = row(db, dataset_id)
    with pytest.raises(DatabaseError), db.write() as session:
        account = accounts.move(session, dataset_id)
        assert account is not None
        append_cap(session, account, **stated, actor="nobody", reason="a test")
        session.execute(text(f"UPDATE accounts SET {changed} WHERE dataset_id = :d"), {"d": dataset_id})  # noqa: S608
    assert row(db, dataset_id) == before


def test_a_cap_moves_with_its_entry(db: Database) -> None:
    dataset_id = a_history(db)
    with db.write() as session:
        accounts.change_cap(session, dataset_id=dataset_id, cap_epsilon=7.1, actor=OWNER, reason="more")
        accounts.change_cap(session, dataset_id=dataset_id, cap_epsilon=0.1 + 6.2, actor=OWNER, reason="less")
        assert session.get_one(Account, dataset_id).cap_epsilon == 0.1 + 6.2
    with db.read() as session:
        account = session.get_one(Account, dataset_id)
        assert (account.cap_epsilon, account.largest_cap_epsilon, account.joined_into) == (0.1 + 6.2, 7.1, None)
    assert check(db, dataset_id).valid


def test_a_move_that_an_entry_states_otherwise_is_refused(db: Database) -> None:
    """Whoever calls `append` with a row that is not the account's."""
    dataset_id = a_history(db)
    before = balances(db, dataset_id)
    with pytest.raises(DatabaseError), db.write() as session:
        account = accounts.move(session, dataset_id, train_spent=Account.train_spent + 1)
        assert account is not None
        session.execute(
            text("UPDATE accounts SET train_spent = 0, entries = entries + 1 WHERE dataset_id = :d"), {"d": dataset_id}
        )
        account.entries += 1
        terms: dict[str, Any] = {"cap_epsilon": account.cap_epsilon, "joined_into": None}
        append_cap(session, account, **terms, actor="nobody", reason="a test")
    assert balances(db, dataset_id) == before
