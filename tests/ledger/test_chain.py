"""The hash chain: recomputed from the API's own answers, and tampering found where it was done."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from app.db.database import Database
from app.db.models import Account, LedgerEntry
from app.ledger.entries import COLUMNS, Move, append, balance_of, genesis
from app.ledger.memos import Drawn, Memo
from app.ledger.repository import page_of_entries
from app.ledger.schemas import EntryView
from app.ledger.verification import Verification, verify
from core.ids import now
from tests.ledger.support import ENTRIES, OWNER, a_history, check, unprotected


@pytest.fixture(scope="module")
def open_db(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Iterator[Database]:
    with unprotected(migrated_database, tmp_path_factory.mktemp("open")) as db:
        yield db


@pytest.fixture(scope="module")
def history(open_db: Database) -> str:
    return a_history(open_db)


def after(db: Database, dataset_id: str, *statements: tuple[str, dict[str, Any]]) -> Verification:
    """What verify() says after a tampering, which is then rolled back."""
    with Session(db.engine) as session:
        for statement, values in statements:
            session.execute(text(statement), {"d": dataset_id} | values)
        return verify(session, dataset_id)


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
@pytest.mark.parametrize(("column", "lie"), [*LIES.items(), *UNREADABLE.items()])
def test_any_change_of_any_field_is_found_at_its_entry(
    open_db: Database, history: str, seq: int, column: str, lie: Any
) -> None:
    change = f"UPDATE ledger_entries SET {column} = :lie WHERE dataset_id = :d AND seq = :s"  # noqa: S608
    found = after(open_db, history, (change, {"lie": lie, "s": seq}))
    assert (found.valid, found.first_bad_entry) == (False, seq), found


def test_every_field_is_lied_about() -> None:
    assert {*LIES} == {*COLUMNS, "hash"}


@pytest.mark.parametrize("seq", range(1, ENTRIES + 1))
def test_a_deleted_entry_is_found_in_its_place(open_db: Database, history: str, seq: int) -> None:
    delete = "DELETE FROM ledger_entries WHERE dataset_id = :d AND seq = :s"
    assert after(open_db, history, (delete, {"s": seq})).first_bad_entry == seq


def test_swapped_entries_are_found_at_the_first_of_them(open_db: Database, history: str) -> None:
    move = "UPDATE ledger_entries SET seq = :new WHERE dataset_id = :d AND seq = :old"
    swap = [(move, {"old": old, "new": new}) for old, new in ((3, 99), (4, 3), (99, 4))]
    assert after(open_db, history, *swap).first_bad_entry == 3


@pytest.mark.parametrize("seq", [0, -1, ENTRIES + 1, 99])
def test_an_entry_that_nobody_counted_is_found(open_db: Database, history: str, seq: int) -> None:
    columns = ", ".join(name for name in (*COLUMNS, "hash") if name not in ("seq", "once"))
    copy = f"SELECT :s, {columns} FROM ledger_entries WHERE dataset_id = :d AND seq = 2"  # noqa: S608
    insert = f"INSERT INTO ledger_entries (seq, {columns}) {copy}"
    assert after(open_db, history, (insert, {"s": seq})).first_bad_entry == seq


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
def test_a_changed_account_row_is_found(open_db: Database, history: str, change: str, bad: int | None) -> None:
    found = after(open_db, history, (f"UPDATE accounts SET {change} WHERE dataset_id = :d", {}))  # noqa: S608
    assert (found.valid, found.first_bad_entry) == (False, bad), found


def test_the_account_s_row_is_read_anew_in_a_session_that_has_it(open_db: Database, history: str) -> None:
    with Session(open_db.engine) as session:
        known = session.get_one(Account, history)
        session.execute(text("UPDATE accounts SET train_spent = 0 WHERE dataset_id = :d"), {"d": history})
        assert known.train_spent > 0 and not verify(session, history).valid


JOB_3 = {"job_id": "job_3", "once": "settle:job_3"}  # holds 30 and 3
DRAWN = {"job_id": "job_9", "once": "settle:job_9", "memo": Drawn(hold="job_3")}


@pytest.mark.parametrize(
    ("forged", "problem"),
    [
        ({"kind": "open", "amounts": (10**15, 10**15), "once": "open:2"}, "exactly once, by its first"),
        ({"kind": "hold", "amounts": (2**60, 0), "once": "hold:job_9", "job_id": "job_9"}, "than the budget"),
        ({"kind": "hold", "amounts": (1, 0), "once": "hold:job_9", "job_id": "job_9"}, "stated balances differ"),
        ({"kind": "hold", "amounts": (1, -1), "once": "hold:job_9", "job_id": "job_9"}, "negative"),
        ({"kind": "post", "amounts": (0, 0), "once": "settle:job_9", "job_id": "job_9"}, "a hold that does not exist"),
        ({"kind": "post", "amounts": (1, 3), "released": (1, 0)} | JOB_3, "a different amount than was held"),
        ({"kind": "post", "amounts": (31, 3)} | DRAWN, "more than is left of the study's hold"),
        ({"kind": "post", "amounts": (1, 0), "released": (1, 0)} | DRAWN, "must not release any"),
        ({"kind": "void", "amounts": (30, 3)} | JOB_3, "spends nothing"),
        ({"kind": "void", "amounts": (0, 0), "released": (30, 3)} | JOB_3 | {"once": "settle:job_4"}, "`once`"),
        ({"kind": "cap", "amounts": (0, 0), "once": None}, "than the budget"),
        ({"kind": "cap", "amounts": (10**15, 0), "released": (1, 0), "once": None}, "only a settlement"),
    ],
)
def test_a_forged_entry_that_hashes_right_is_found(
    open_db: Database, history: str, forged: dict[str, Any], problem: str
) -> None:
    with Session(open_db.engine) as session:
        account = session.get_one(Account, history)
        account.entries += 1
        memo = Memo(cap_epsilon=1.0, cap_delta=1e-5, filter="gdp")
        append(session, account, Move(**({"job_id": None, "actor": OWNER, "memo": memo} | forged)))
        found = verify(session, history)
    assert (found.valid, found.first_bad_entry) == (False, ENTRIES + 1)
    assert problem in str(found.problem)


@pytest.mark.parametrize("batch", range(1, ENTRIES + 2))
def test_a_long_ledger_is_verified_in_batches(
    open_db: Database, history: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.db.ordered.BATCH", batch)
    assert check(open_db, history).valid
    damage = "UPDATE ledger_entries SET memo = '}' WHERE dataset_id = :d AND seq = :s"
    assert [after(open_db, history, (damage, {"s": seq})).first_bad_entry for seq in (1, 3, 4, 7)] == [1, 3, 4, 7]


def test_a_chain_can_not_be_moved_to_another_data_set(db: Database) -> None:
    assert genesis("ds_a") != genesis("ds_b")


def test_entries_are_counted_by_the_account(db: Database) -> None:
    dataset_id = a_history(db)
    with db.read() as session:
        count = session.scalar(select(func.count()).where(LedgerEntry.dataset_id == dataset_id))
        account = session.get_one(Account, dataset_id)
        last = session.get_one(LedgerEntry, (dataset_id, ENTRIES))
    assert count == account.entries == ENTRIES
    assert Memo.of(last.memo).balance == balance_of(account)
    assert last.created_at <= now()
