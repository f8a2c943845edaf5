"""A verification that goes on from an earlier one finds what one in full finds, and reads what is new.

a fault after where it goes on        found there, as in full
a history that was rewritten before   found by what was replayed alone, without a record or a checkpoint
an entry changed in place before      found by the next one in full, which the relay makes once a day
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from app.db.database import Database
from app.db.models import Account, LedgerCheck
from app.ledger import accounts, signing_keys, verifications
from app.ledger.memos import HeldFor
from app.ledger.transparency.checkpoints import sign_due
from app.ledger.transparency.heads import Head, Heads
from app.ledger.transparency.ledger_tree import TILE
from app.ledger.verification import BACK, Replay, Replayed, Verification, verify
from core.ids import now
from tests.by_night import but
from tests.chaos.tamper import roll_back, rows_of, set_account, set_entry
from tests.ledger.support import OWNER, add_job, open_ledger, unprotected
from tests.ledger.test_anchors import KEY, unheard
from tests.ledger.test_chain import LIES
from tests.ledger.test_long_chain import Long, another_actor, cap_of, forge

DAY = timedelta(days=1)
FIRST, LENGTH = 560, 700  # entries at the first verification, and later
REACHED = (FIRST - BACK) // TILE * TILE


@pytest.fixture(scope="module")
def open_db(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Iterator[Database]:
    """Nothing in it is signed: a checkpoint of `grown` would find the histories that these tests forge."""
    with unprotected(migrated_database, tmp_path_factory.mktemp("open")) as db:
        yield db


class Writer:
    """Writes a random history, in which holds and a study stay open over hundreds of entries."""

    def __init__(self, db: Database, seed: int) -> None:
        self.db, self.dataset, self.chance = db, open_ledger(db), random.Random(seed)
        self.terms: dict[str, Any] = {"dataset_id": self.dataset, "actor": OWNER}
        self.open: list[str] = []
        self.jobs = 0
        with db.write() as session:
            self.study = add_job(session, self.dataset)
            accounts.hold(
                session, job_id=self.study, train=5_000, holdout=500, memo=HeldFor(epsilon=None), **self.terms
            )

    def grow(self, entries: int) -> None:
        """Writes entries until there are so many."""
        with self.db.write() as session:
            while session.get_one(Account, self.dataset).entries < entries:
                self._write(session)

    def _write(self, session: Session) -> None:
        what = self.chance.random()
        if what < 0.02:
            cap = 4.0 + self.chance.random()
            accounts.change_cap(session, cap_epsilon=cap, reason="more data came in", **self.terms)
        elif what < 0.05:
            run = add_job(session, self.dataset, parent_id=self.study)
            accounts.draw(session, job_id=run, study_id=self.study, train=9, holdout=1, **self.terms)
        elif what < 0.5 and self.open:
            job = self.open.pop(self.chance.randrange(len(self.open)))
            if self.chance.random() < 0.2:
                accounts.void(session, job_id=job, **self.terms)
            else:
                accounts.post(session, job_id=job, train=self.chance.randrange(900), holdout=1, **self.terms)
        else:
            self.jobs += 1
            self.open.append(f"job_{self.jobs}")
            accounts.hold(session, job_id=self.open[-1], train=900, holdout=1, **self.terms)


@dataclass(frozen=True)
class Grown:
    """A ledger that grew after it was verified."""

    dataset: str
    since: Replayed


def replayed(found: Verification) -> Replayed:
    assert found.replayed is not None, found
    return found.replayed


@pytest.fixture(scope="module")
def grown(open_db: Database) -> Grown:
    writer = Writer(open_db, 1)
    writer.grow(FIRST)
    with open_db.read() as session:
        since = replayed(verify(session, writer.dataset))
    writer.grow(LENGTH)
    return Grown(writer.dataset, since)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The places of entries that are replayed."""
    places, take = list[int](), Replay.take

    def taken(self: Replay, place: int, entry: Any) -> None:
        places.append(place)
        take(self, place, entry)

    monkeypatch.setattr(Replay, "take", taken)
    return places


@pytest.mark.parametrize("seed", but(range(2), lambda seed: seed == 0))
def test_it_finds_what_a_verification_in_full_finds_and_reads_what_is_new(
    migrated_database: Path, tmp_path: Path, read: list[int], seed: int
) -> None:
    with unprotected(migrated_database, tmp_path) as db:
        signing_keys.publish(db, KEY)
        writer, heads, since = Writer(db, seed), Heads(tmp_path / "heads"), None
        for entries in (100, 511, 512, 513, 767, 768, 900):
            writer.grow(entries)
            sign_due(db, heads, KEY, unheard)
            recorded, outside = heads.read(writer.dataset), heads.checkpoint(writer.dataset)
            with db.read() as session:
                read.clear()
                on = verify(session, writer.dataset, recorded, outside, since)
                assert read == list(range(1 if since is None else since.entries + 1, entries + 1))
                full = verify(session, writer.dataset, recorded, outside)
            assert on.valid and (on.entries, on.head) == (full.entries, full.head) == (entries, on.head)
            if since is None:
                assert on == full
            reached = (entries - BACK) // TILE * TILE
            assert (0 if on.replayed is None else on.replayed.entries) == max(0, reached)
            if on.replayed is not None and full.replayed is not None:
                assert vars(on.replayed.replay) == vars(full.replayed.replay)
                assert on.replayed.tree.root() == full.replayed.tree.root()
            since = on.replayed


def test_what_it_goes_on_from_does_not_change(open_db: Database, grown: Grown) -> None:
    for _ in range(2):
        with open_db.read() as session:
            assert verify(session, grown.dataset, since=grown.since).valid
        assert grown.since.entries == grown.since.tree.size == REACHED


@pytest.mark.parametrize("place", but([REACHED + 1, FIRST, FIRST + 1, LENGTH], {REACHED + 1, LENGTH}.__contains__))
def test_a_fault_in_what_is_new_is_found_at_its_entry(open_db: Database, grown: Grown, place: int) -> None:
    for column, lie in LIES.items():
        value = {"seq": 999, "once": "hold:job_of_nobody", "job_id": "job_of_nobody"}.get(column, lie)
        change = f"UPDATE ledger_entries SET {column} = :lie WHERE dataset_id = :d AND seq = :s"  # noqa: S608
        with Session(open_db.engine) as session:
            session.execute(text(change), {"lie": value, "d": grown.dataset, "s": place})
            on, full = verify(session, grown.dataset, since=grown.since), verify(session, grown.dataset)
        assert (on.valid, on.first_bad_entry) == (False, place), (column, on)
        assert on == full


@pytest.mark.parametrize("place", [1, 2, 100, REACHED - 1, REACHED])
def test_a_history_that_was_rewritten_before_is_found_by_what_was_replayed(
    open_db: Database, grown: Grown, place: int
) -> None:
    """All that is kept agrees with the forged history: a verification in full, which has no record, finds it valid."""
    unknown: Any = None
    long = Long(grown.dataset, unknown, unknown, "")
    with Session(open_db.engine) as session:
        forge(session, long, place, another_actor)
        on, full = verify(session, grown.dataset, since=grown.since), verify(session, grown.dataset)
        again = verify(session, grown.dataset, since=grown.since, in_full=True)
    assert full.valid
    assert (again.valid, again.first_bad_entry) == (False, REACHED)
    assert (on.valid, on.first_bad_entry) == (False, REACHED + 1)


def test_a_history_that_was_cut_off_before_is_found(open_db: Database, grown: Grown) -> None:
    with Session(open_db.engine) as session:
        roll_back(session, grown.dataset, REACHED - 1)
        cap_of(session, grown.dataset)
        assert verify(session, grown.dataset).valid
        for in_full in (False, True):
            assert not verify(session, grown.dataset, since=grown.since, in_full=in_full).valid


def test_balances_running_sums_and_a_record_are_compared(open_db: Database, grown: Grown) -> None:
    sums = "UPDATE spent_by_key SET train = train + 1 WHERE dataset_id = :d AND day "
    for change in (
        "UPDATE accounts SET train_spent = train_spent - 1 WHERE dataset_id = :d",
        sums + "= ''",
        sums + "> ''",
    ):
        with Session(open_db.engine) as session:
            session.execute(text(change), {"d": grown.dataset})
            assert not verify(session, grown.dataset, since=grown.since).valid, change
    with open_db.read() as session:
        account = session.get_one(Account, grown.dataset)
        right = Head.of(account, OWNER, ())
        assert verify(session, grown.dataset, right, since=grown.since).valid
        wrong = verify(session, grown.dataset, right.model_copy(update={"head": "00" * 32}), since=grown.since)
        assert (wrong.valid, wrong.first_bad_entry) == (False, LENGTH)
        later = verify(session, grown.dataset, right.model_copy(update={"seq": LENGTH + 5}), since=grown.since)
        assert (later.valid, later.first_bad_entry) == (False, LENGTH + 1)


def test_the_relay_goes_on_when_asked_and_verifies_in_full_once_a_day_and_after_a_fault(
    tmp_path: Path, migrated_database: Path, read: list[int]
) -> None:
    with unprotected(migrated_database, tmp_path) as db:
        writer, heads, known = Writer(db, 7), Heads(tmp_path / "heads"), dict[str, Replayed]()
        writer.grow(LENGTH)
        whole, rest = list(range(1, LENGTH + 1)), list(range((LENGTH - BACK) // TILE * TILE + 1, LENGTH + 1))

        def verified(*, asked: bool) -> list[int]:
            read.clear()
            if asked:
                with db.write() as session:
                    verifications.request(session, writer.dataset)
            assert verifications.check_next(db, heads, DAY, known) and not verifications.check_next(
                db, heads, DAY, known
            )
            return list(read)

        def problem() -> str | None:
            with db.read() as session:
                return session.scalars(select(LedgerCheck.problem)).one()

        def basis() -> tuple[int | None, datetime | None]:
            """After which entry the last one went on, and when the one in full began that it goes back to."""
            with db.read() as session:
                after, in_full_at = session.execute(select(LedgerCheck.went_on_after, LedgerCheck.in_full_at)).one()
                return after, in_full_at

        unknown: Any = None
        assert verified(asked=False) == whole and problem() is None
        after, first_in_full = basis()
        assert after == 0 and first_in_full is not None
        assert verified(asked=True) == rest and problem() is None
        assert basis() == (rest[0] - 1, first_in_full)
        with db.write() as session:  # in place: nothing else follows from it
            rows, account = rows_of(session, writer.dataset)
            set_entry(session, writer.dataset, 20, actor="key_forger")
        assert verified(asked=True) == rest and problem() is None
        known[writer.dataset] = replace(known[writer.dataset], in_full_at=now() - DAY)
        assert verified(asked=False) == whole[:20]
        assert (problem() or "").startswith("entry 20: ")
        with db.write() as session:
            set_entry(session, writer.dataset, 20, actor=rows[19]["actor"])
        assert verified(asked=True) == whole and problem() is None
        after, in_full_at = basis()
        assert after == 0 and in_full_at is not None and in_full_at > first_in_full
        with db.write() as session:  # what one that goes on finds is verified in full before it is noted
            set_account(session, writer.dataset, train_spent=account["train_spent"] - 1)
        assert verified(asked=True) == rest + whole
        assert "balances" in (problem() or "")
        with db.write() as session:
            set_account(session, writer.dataset, train_spent=account["train_spent"])
        assert verified(asked=True) == whole and problem() is None
        with db.write() as session:  # all that is kept agrees with it, but what this relay has verified
            forge(session, Long(writer.dataset, unknown, unknown, ""), 20, another_actor)
        for _ in range(2):
            assert verified(asked=True)[-1] == rest[0] - 1
            assert "what was verified before" in (problem() or "")
        assert verifications.check(db, heads, writer.dataset) is None, "another process does not know"
