"""A ledger of 200 entries: each single change of it is found, and by whom.

    a change in place, a missing entry, a swap            the chain itself, at the entry
    a history that follows from itself, with the row      only what lies outside: here the record and the checkpoint,
                                                          in test_witness.py a witness

By day at some places, by night at every one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, insert
from sqlalchemy.orm import Session

from app.chain import digest
from app.db.database import Database
from app.db.models import LedgerCheckpoint, LedgerEntry, table_of
from app.ledger import accounts, behind, running_sums, signing_keys
from app.ledger.entries import COLUMNS, content
from app.ledger.memos import HeldFor
from app.ledger.transparency.checkpoints import sign_due
from app.ledger.transparency.heads import Head, Heads
from app.ledger.verification import Verification, verify
from tests.by_night import but
from tests.chaos.tamper import ENTRIES, roll_back, rows_of, set_account
from tests.ledger.support import OWNER, add_job, hold, open_ledger, post, unprotected, void
from tests.ledger.test_anchors import KEY, unheard
from tests.ledger.test_chain import LIES, after

_CHECKPOINTS = table_of(LedgerCheckpoint)
LENGTH = 200
EARLIER = 150  # an older record's entry, or the next one
SOME: Sequence[int] = (1, 2, 128, 199, 200)
PLACES = pytest.mark.parametrize("places", but([SOME, range(1, LENGTH + 1)], lambda each: each is SOME), ids=len)
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Long:
    """The ledger, and what is known of it outside the database."""

    dataset: str
    record: Head
    earlier: Head
    checkpoint: str


@pytest.fixture(scope="module")
def open_db(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Iterator[Database]:
    with unprotected(migrated_database, tmp_path_factory.mktemp("open")) as db:
        yield db


@pytest.fixture(scope="module")
def long(open_db: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Long]:
    """Entries of every kind; most jobs are posted, some voided, some still hold, and a study's runs draw on it."""
    db, heads = open_db, Heads(tmp_path_factory.mktemp("heads"))
    signing_keys.publish(db, KEY)
    dataset, earlier, entries = open_ledger(db), None, 1
    _a_study(db, dataset)
    entries += 3
    for number in range(LENGTH):
        job = f"job_{number}"
        entries = hold(db, dataset, job, 1_000 + number, 1)
        if entries < LENGTH and number % 10 == 7:
            entries = void(db, dataset, job)
        elif entries < LENGTH and number % 10 != 3:
            entries = post(db, dataset, job, 1_000, number % 2)
        if earlier is None and entries >= EARLIER:
            earlier = _recorded(db, heads, dataset)
        if entries == LENGTH:
            break
        if number % 25 == 24:
            with db.write() as session:
                cap = 4.0 + number / 100
                terms = {"dataset_id": dataset, "cap_epsilon": cap, "actor": OWNER, "reason": "more data"}
                entries = accounts.change_cap(session, **terms).seq
    assert entries == LENGTH and sign_due(db, heads, KEY, unheard) == (1, [])
    record, checkpoint = heads.read(dataset), heads.checkpoint(dataset)
    assert record is not None and record.seq == LENGTH and checkpoint is not None and earlier is not None
    yield Long(dataset, record, earlier, checkpoint)


def _a_study(db: Database, dataset: str) -> None:
    with db.write() as session:
        study = add_job(session, dataset)
        run = add_job(session, dataset, parent_id=study)
        terms: dict[str, Any] = {"dataset_id": dataset, "actor": OWNER}
        accounts.hold(session, job_id=study, train=500, holdout=50, memo=HeldFor(epsilon=None, study=1), **terms)
        accounts.draw(session, job_id=run, study_id=study, train=200, holdout=20, **terms)
        accounts.post(session, job_id=study, train=100, holdout=10, **terms)


def _recorded(db: Database, heads: Heads, dataset: str) -> Head:
    behind.record(db, heads, dataset)
    found = heads.read(dataset)
    assert found is not None
    return found


def test_the_ledger_has_entries_of_every_kind_and_is_valid(open_db: Database, long: Long) -> None:
    with open_db.read() as session:
        rows, _ = rows_of(session, long.dataset)
        found = verify(session, long.dataset, long.record, long.checkpoint)
    assert {row["kind"] for row in rows} == {"open", "hold", "post", "void", "cap"}
    assert (found.valid, found.entries, found.heads) == (
        True,
        LENGTH,
        2,
    )  # a head, and the checkpoint of the relay and of the record


@PLACES
@pytest.mark.parametrize("column", LIES)
def test_any_change_of_any_column_is_found_at_its_entry(
    open_db: Database, long: Long, places: Sequence[int], column: str
) -> None:
    lie = {"seq": 999, "once": "hold:job_of_nobody", "job_id": "job_of_nobody"}.get(column, LIES[column])
    change = f"UPDATE ledger_entries SET {column} = :lie WHERE dataset_id = :d AND seq = :s"  # noqa: S608
    for place in places:
        found = after(open_db, long.dataset, (change, {"lie": lie, "s": place}))
        assert (found.valid, found.first_bad_entry) == (False, place), found


GONE = "DELETE FROM ledger_entries WHERE dataset_id = :d AND seq = :s"
MOVED = "UPDATE ledger_entries SET seq = :new WHERE dataset_id = :d AND seq = :old"
# Through negative numbers: no two entries have one number in between.
LATER = "UPDATE ledger_entries SET seq = -seq WHERE dataset_id = :d AND seq > :s"
CLOSED_UP = "UPDATE ledger_entries SET seq = -seq - 1 WHERE dataset_id = :d AND seq < 0"
ONE_LESS = "UPDATE accounts SET entries = entries - 1 WHERE dataset_id = :d"
TAIL = "DELETE FROM ledger_entries WHERE dataset_id = :d AND seq >= :s"


@PLACES
def test_any_deletion_swap_or_truncation_is_found_at_its_entry(
    open_db: Database, long: Long, places: Sequence[int]
) -> None:
    for place in places:
        at = {"s": place}
        missing = [after(open_db, long.dataset, (what, at)) for what in (GONE, TAIL)]
        assert [each.first_bad_entry for each in missing] == [place, place]
        closed = after(open_db, long.dataset, (GONE, at), (LATER, at), (CLOSED_UP, {}), (ONE_LESS, {}))
        # Without the last entry what is left is a chain: the account's row, which names its head, tells.
        assert (closed.valid, closed.first_bad_entry) == (False, min(place, LENGTH - 1)), closed
        if place < LENGTH:
            around = [(place, 999), (place + 1, place), (999, place + 1)]
            swapped = after(open_db, long.dataset, *((MOVED, {"old": old, "new": new}) for old, new in around))
            assert (swapped.valid, swapped.first_bad_entry) == (False, place)


def verdicts(session: Session, long: Long) -> tuple[Verification, Verification, Verification, Verification]:
    """By the database alone; by it and an older record, the newest record, the checkpoint."""
    session.execute(delete(_CHECKPOINTS).where(_CHECKPOINTS.c.dataset_id == long.dataset))
    return (
        verify(session, long.dataset),
        verify(session, long.dataset, long.earlier),
        verify(session, long.dataset, long.record),
        verify(session, long.dataset, None, long.checkpoint),
    )


def forge(session: Session, long: Long, place: int, change: Callable[[dict[str, Any]], int]) -> None:
    """Changes an entry, then all that follows from it: hashes, stated balances, the account's row, the running sums.

    Args:
        change: changes the entry; returns by how much less is spent after it.
    """
    rows, account = rows_of(session, long.dataset)
    previous, less = rows[place - 1]["prev_hash"], 0
    for row in rows[place - 1 :]:
        less = change(row) if row["seq"] == place else less
        row["memo"]["balance"]["train"]["spent"] -= less
        row["prev_hash"] = previous
        row["hash"] = previous = digest(content(LedgerEntry(**{name: row[name] for name in COLUMNS})))
    session.execute(delete(ENTRIES).where(ENTRIES.c.dataset_id == long.dataset, ENTRIES.c.seq >= place))
    session.execute(insert(ENTRIES), rows[place - 1 :])
    set_account(session, long.dataset, head=previous, train_spent=account["train_spent"] - less)
    running_sums.write(session, [long.dataset])


def another_actor(row: dict[str, Any]) -> int:
    row["actor"] = "key_forger"
    return 0


def _less_spent(row: dict[str, Any]) -> int:
    row["train"] -= 7
    row["train_released"] += 7
    return 7


@PLACES
def test_a_history_that_was_rewritten_to_follow_from_itself_is_found_from_outside(
    open_db: Database, long: Long, places: Sequence[int]
) -> None:
    """Each rewrite gives the chain's end another hash; an older record does not know that end."""
    with open_db.read() as session:
        kinds = {row["seq"]: row for row in rows_of(session, long.dataset)[0]}
    known = long.earlier.seq
    for place in places:
        spends = kinds[place]["kind"] == "post" and "hold" not in kinds[place]["memo"]
        for change in (another_actor, _less_spent) if spends else (another_actor,):
            with Session(open_db.engine) as session:
                forge(session, long, place, change)
                alone, earlier, record, checkpoint = verdicts(session, long)
            assert alone.valid, alone
            assert earlier.valid == (place > known) and earlier.first_bad_entry in (None, known)
            assert (record.valid, record.first_bad_entry) == (False, LENGTH)
            assert (checkpoint.valid, checkpoint.first_bad_entry) == (False, LENGTH)


@PLACES
def test_a_tail_that_was_cut_off_with_the_account_s_row_is_found_from_outside(
    open_db: Database, long: Long, places: Sequence[int]
) -> None:
    for keep in (place for place in places if place < LENGTH):
        with Session(open_db.engine) as session:
            roll_back(session, long.dataset, keep)
            cap_of(session, long.dataset)
            alone, earlier, record, checkpoint = verdicts(session, long)
        assert alone.valid, alone
        assert earlier.valid == (keep >= long.earlier.seq) and earlier.first_bad_entry in (None, keep + 1)
        assert (record.valid, record.first_bad_entry) == (False, keep + 1)
        assert (checkpoint.valid, checkpoint.first_bad_entry) == (False, keep + 1)


def cap_of(session: Session, dataset: str) -> None:
    """Sets the row's cap to the newest that is left."""
    rows, _ = rows_of(session, dataset)
    caps = [row for row in rows if row["kind"] in ("open", "cap")]
    budgets = {f"{part}_budget": caps[-1][part] for part in ("train", "holdout")}
    largest = max(row["memo"]["cap_epsilon"] for row in caps)
    set_account(session, dataset, cap_epsilon=caps[-1]["memo"]["cap_epsilon"], largest_cap_epsilon=largest, **budgets)
