"""The hash chain: recomputed from the API's own answers, and tampering found where it was done."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, text

from app.db.engine import Database
from app.db.migrate import upgrade
from app.db.models import Account, LedgerEntry
from app.ids import now
from app.ledger.entries import COLUMNS, append, balance_of, genesis
from app.ledger.repository import page_of_entries
from app.ledger.schemas import EntryView
from tests.ledger.support import ENTRIES, OWNER, a_history, add_owner, check, open_ledger


@pytest.fixture(scope="module")
def open_db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A database of its own whose protection is gone: what somebody with the database's password can do."""
    folder: Path = tmp_path_factory.mktemp("open")
    url = f"sqlite:///{folder / 'open.db'}"
    upgrade(url)
    db = Database(url)
    add_owner(db)
    with db.write() as session:
        for name in session.scalars(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")).all():
            session.execute(text(f"DROP TRIGGER {name}"))
    yield db
    db.close()


def tamper(db: Database, statement: str, **values: Any) -> None:
    with db.engine.connect() as connection:
        connection.exec_driver_sql("COMMIT")  # PRAGMAs do nothing inside a transaction
        connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
        connection.exec_driver_sql("PRAGMA ignore_check_constraints = ON")
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        connection.execute(text(statement), values)
        connection.commit()
        connection.exec_driver_sql("ROLLBACK")
        connection.invalidate()


def test_a_reader_recomputes_the_chain_from_the_entries_as_shown(db: Database) -> None:
    dataset_id = a_history(db)
    with db.read() as session:
        entries = page_of_entries(session, dataset_id, after=0, job=None, limit=100)
        shown = [json.loads(EntryView.of(entry).model_dump_json()) for entry in entries]
        head = session.get_one(Account, dataset_id).head
    previous = hashlib.sha256(b"scrimp/ledger/v1:" + dataset_id.encode()).hexdigest()
    for entry in shown:
        said = {name: value for name, value in entry.items() if name != "hash"}
        spelled = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert entry["prev_hash"] == previous
        previous = hashlib.sha256(spelled.encode()).hexdigest()
        assert entry["hash"] == previous
    assert (len(shown), head) == (ENTRIES, previous)
    assert [entry["kind"] for entry in shown] == ["open", "hold", "hold", "hold", "post", "void", "cap"]


def test_an_untouched_ledger_is_valid(db: Database) -> None:
    found = check(db, a_history(db))
    assert (found.valid, found.entries, found.first_bad_entry, found.problem) == (True, ENTRIES, None, None)


LIES: dict[str, Any] = {
    "kind": "gift",
    "job_id": "job_9",
    "train": 12345,
    "holdout": 12345,
    "train_released": 12345,
    "holdout_released": 12345,
    "once": "hold:job_9",
    "actor": "key_nobody",
    "memo": '{"reason": "none"}',
    "created_at": "2020-01-01 00:00:00.000000",
    "prev_hash": "00" * 32,
    "hash": "00" * 32,
    "dataset_id": "ds_elsewhere",
    "seq": 99,
}
UNREADABLE = {"memo": "{", "created_at": "yesterday", "train": "much", "holdout": b"\x00", "actor": b"\xff"}


@pytest.mark.parametrize("seq", range(1, ENTRIES + 1))
def test_any_change_of_any_field_is_found_at_its_entry(open_db: Database, seq: int) -> None:
    assert {*LIES} == {*COLUMNS, "hash"}
    for column, lie in [*LIES.items(), *UNREADABLE.items()]:
        dataset_id = a_history(open_db)
        if column == "dataset_id":
            lie = f"{lie}_{dataset_id}"  # noqa: PLW2901
        statement = f"UPDATE ledger_entries SET {column} = :lie WHERE dataset_id = :d AND seq = :s"  # noqa: S608
        tamper(open_db, statement, lie=lie, d=dataset_id, s=seq)
        found = check(open_db, dataset_id)
        assert (found.valid, found.first_bad_entry) == (False, seq), (column, lie, found)


@pytest.mark.parametrize("seq", range(1, ENTRIES + 1))
def test_a_deleted_entry_is_found_in_its_place(open_db: Database, seq: int) -> None:
    dataset_id = a_history(open_db)
    tamper(open_db, "DELETE FROM ledger_entries WHERE dataset_id = :d AND seq = :s", d=dataset_id, s=seq)
    assert check(open_db, dataset_id).first_bad_entry == seq


def test_swapped_entries_are_found_at_the_first_of_them(open_db: Database) -> None:
    dataset_id = a_history(open_db)
    move = "UPDATE ledger_entries SET seq = :new WHERE dataset_id = :d AND seq = :old"
    for old, new in ((3, 99), (4, 3), (99, 4)):
        tamper(open_db, move, d=dataset_id, old=old, new=new)
    assert check(open_db, dataset_id).first_bad_entry == 3


@pytest.mark.parametrize("seq", [0, -1, ENTRIES + 1, 99])
def test_an_entry_that_nobody_counted_is_found(open_db: Database, seq: int) -> None:
    dataset_id = a_history(open_db)
    columns = ", ".join(name for name in (*COLUMNS, "hash") if name not in ("seq", "once"))
    copy = f"SELECT :s, {columns} FROM ledger_entries WHERE dataset_id = :d AND seq = 2"  # noqa: S608
    tamper(open_db, f"INSERT INTO ledger_entries (seq, {columns}) {copy}", d=dataset_id, s=seq)
    assert check(open_db, dataset_id).first_bad_entry == seq


@pytest.mark.parametrize(
    ("change", "bad"),
    [
        ("train_spent = train_spent - 7", None),
        ("holdout_held = 0", None),
        ("train_budget = train_budget * 2", None),
        ("cap_epsilon = 50", None),
        ("largest_cap_epsilon = 4", None),
        ("cap_delta = 0.009", None),
        ("filter = 'rdp'", None),
        ("head = 'ff'", ENTRIES),
        ("entries = entries - 1", ENTRIES),
        ("entries = entries + 1", ENTRIES + 1),
    ],
)
def test_a_changed_account_row_is_found(open_db: Database, change: str, bad: int | None) -> None:
    dataset_id = a_history(open_db)
    tamper(open_db, f"UPDATE accounts SET {change} WHERE dataset_id = :d", d=dataset_id)  # noqa: S608
    found = check(open_db, dataset_id)
    assert (found.valid, found.first_bad_entry) == (False, bad), found


@pytest.mark.parametrize(
    "forged",
    [
        {"kind": "open", "amounts": (10**15, 10**15), "once": "open:2"},
        {"kind": "hold", "amounts": (2**60, 0), "once": "hold:job_9", "job_id": "job_9"},
        {"kind": "post", "amounts": (0, 0), "once": "settle:job_9", "job_id": "job_9"},
        {"kind": "post", "amounts": (1, 3), "released": (1, 0), "once": "settle:job_3", "job_id": "job_3"},
        {"kind": "void", "amounts": (30, 3), "once": "settle:job_3", "job_id": "job_3"},
        {"kind": "void", "amounts": (0, 0), "released": (30, 3), "once": "settle:job_4", "job_id": "job_3"},
        {"kind": "cap", "amounts": (0, 0), "once": None},
        {"kind": "cap", "amounts": (10**15, 0), "released": (1, 0), "once": None},
    ],
)
def test_a_forged_entry_that_hashes_right_is_found(open_db: Database, forged: dict[str, Any]) -> None:
    dataset_id = a_history(open_db)
    with open_db.write() as session:
        account = session.get_one(Account, dataset_id)
        account.entries += 1
        memo = {"cap_epsilon": 1.0, "cap_delta": 1e-5, "filter": "gdp", "order": None}
        append(session, account, **({"job_id": None, "actor": OWNER, "memo": memo} | forged))
    found = check(open_db, dataset_id)
    assert (found.valid, found.first_bad_entry) == (False, ENTRIES + 1), found


def test_a_long_ledger_is_verified_in_batches(db: Database) -> None:
    """2,500 entries: past two batches, the damage in the third."""
    dataset_id = open_ledger(db)
    with db.write() as session:
        account = session.get_one(Account, dataset_id)
        for number in range(2_499):
            account.entries += 1
            account.train_held += 1
            said: dict[str, Any] = {"kind": "hold", "job_id": f"job_{number}", "once": f"hold:job_{number}"}
            append(session, account, **said, amounts=(1, 0), actor=OWNER, memo={})
            session.expunge_all()
            session.add(account)
    began = time.monotonic()
    found = check(db, dataset_id)
    assert (found.valid, found.entries) == (True, 2_500)
    assert time.monotonic() - began < 5.0


def test_a_chain_can_not_be_moved_to_another_data_set(db: Database) -> None:
    assert genesis("ds_a") != genesis("ds_b")


def test_entries_are_counted_by_the_account(db: Database) -> None:
    dataset_id = a_history(db)
    with db.read() as session:
        count = session.scalar(select(func.count()).where(LedgerEntry.dataset_id == dataset_id))
        account = session.get_one(Account, dataset_id)
        last = session.get_one(LedgerEntry, (dataset_id, ENTRIES))
    assert count == account.entries == ENTRIES
    assert last.memo["balance"] == balance_of(account)
    assert last.created_at <= now()
