"""What the database itself refuses, whoever asks: triggers keep entries, CHECKs keep balances."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DatabaseError

from app.db.engine import Database
from tests.ledger.support import a_history, balances, check

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


def refuses(db: Database, *statements: str) -> None:
    """The database refuses each statement, and the ledger is as it was."""
    dataset_id = a_history(db)
    before = balances(db, dataset_id)
    for statement in statements:
        with pytest.raises(DatabaseError), db.write() as session:
            session.execute(text(statement), {"d": dataset_id})
        assert balances(db, dataset_id) == before, statement
    assert check(db, dataset_id).valid


@pytest.mark.parametrize("statement", ON_BOTH)
def test_the_database_itself_refuses(db: Database, statement: str) -> None:
    refuses(db, statement)


def test_it_refuses_the_ways_around(db: Database) -> None:
    refuses(db, *OWN[db.engine.dialect.name])
