"""The running sums of what keys spent: moved with each post, the same as adding up all entries, and never behind."""

from __future__ import annotations

import importlib.util
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, insert, select, text
from sqlalchemy.orm import Session

from app.budgets.spending import spending
from app.db.database import Database
from app.db.models import AuditEntry, Dataset, LedgerCheck, LedgerEntry, SpentByKey, table_of
from app.keys.service import Caller
from app.ledger import accounts, entries, running_sums
from app.ledger.memos import HeldFor
from core.errors import PrivacyError
from core.ids import now
from tests.conftest import BACKINGS
from tests.ledger.support import OWNER, a_history, add_job, add_owner, check, hold, open_ledger, post
from tests.work import of_session

VERSIONS = Path(__file__).resolve().parents[2] / "alembic" / "versions"


@pytest.fixture(params=BACKINGS)
def backing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def migration(name: str = "0036_spent_by_key") -> Any:
    spec = importlib.util.spec_from_file_location(name, VERSIONS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sums(session: Session) -> set[tuple[Any, ...]]:
    return {tuple(row) for row in session.execute(select(table_of(SpentByKey)))}


def alike(rows: set[tuple[Any, ...]]) -> tuple[set[tuple[object, ...]], int]:
    """The rows without the counts of the data set, and the sum of these."""
    return {(*row[:4], *row[5:]) for row in rows}, sum(row[4] for row in rows)


def a_study(db: Database, dataset: str) -> None:
    terms: dict[str, Any] = {"dataset_id": dataset, "actor": OWNER}
    with db.write() as session:
        study = add_job(session, dataset)
        accounts.hold(session, job_id=study, train=500, holdout=50, memo=HeldFor(epsilon=None, study=2), **terms)
        for number in (1, 2):
            run = add_job(session, dataset, parent_id=study, trial_number=number)
            accounts.draw(session, job_id=run, study_id=study, train=100 * number, holdout=20, **terms)
        accounts.post(session, job_id=study, train=100, holdout=10, **terms)


def test_each_post_moves_the_sums_that_the_migration_makes_of_all_entries(db: Database) -> None:
    add_owner(db)
    dataset, block = a_history(db), open_ledger(db)
    with db.write() as session:
        session.get_one(Dataset, block).parent_id = dataset
    a_study(db, dataset)
    for each in (dataset, block):  # one job reads both blocks
        hold(db, each, "job_both", 40)
        post(db, each, "job_both", 40)
    kind = db.engine.dialect.name
    with db.write() as session:
        moved = sums(session)
        session.execute(delete(SpentByKey))
        session.execute(text(migration().BACKFILL[kind]))
        made = sums(session)
    # Of two blocks that a job reads in the same second either may count it for the data set.
    assert alike(moved) == alike(made)
    of_all = {row[0]: row[3:7] for row in moved if row[2] == ""}
    # job_1 spent 7 and 1, the study 400 and 50, the job on both blocks 40; that counts once in the family
    assert of_all[dataset] == (3, 3, 447, 51) and of_all[block] == (1, 0, 40, 0)


def test_sums_that_differ_from_the_account_are_not_shown(db: Database) -> None:
    add_owner(db)
    dataset = a_history(db)
    owner = Caller(OWNER, "owner", "owner")
    with db.read() as session:
        assert spending(session, owner, dataset).items[0].train.amount == 7
    with db.write() as session:
        session.execute(text("UPDATE spent_by_key SET train = train - 1 WHERE day = ''"))
    with db.read() as session, pytest.raises(PrivacyError, match="running sums"):
        spending(session, owner, dataset)


def long_ledger(session: Session, dataset: str, entries: int) -> None:
    """Posts of other jobs behind the ledger's end, which no chain reads: what a look-up has to pass over."""
    kind = session.get_bind().dialect.name
    if kind == "postgresql":
        session.execute(text("SET LOCAL session_replication_role = replica"))
    else:
        session.execute(text("DROP TRIGGER ledger_entries_spent"))
    row = {"dataset_id": dataset, "kind": "post", "train": 1, "holdout": 0, "actor": OWNER, "memo": {}}
    row |= {"created_at": now(), "prev_hash": "", "hash": ""}
    places = range(1000, 1000 + entries)
    rows = [row | {"seq": seq, "job_id": f"job_{seq}", "once": f"settle:job_{seq}"} for seq in places]
    session.execute(insert(table_of(LedgerEntry)), rows)
    if kind == "postgresql":
        session.execute(text("SET LOCAL session_replication_role = origin"))
        session.execute(text("ANALYZE ledger_entries"))
    else:
        session.execute(text(migration("0040_history").TRIGGERS["sqlite"]))


def test_a_post_reads_no_other_charge_however_long_the_ledger(db: Database) -> None:
    add_owner(db)
    dataset = open_ledger(db)
    hold(db, dataset, "job_1", 40)
    with db.write() as session:
        study = add_job(session, dataset)
        run = add_job(session, dataset, parent_id=study, trial_number=1)
        terms: dict[str, Any] = {"dataset_id": dataset, "actor": OWNER}
        accounts.hold(session, job_id=study, train=50, holdout=5, memo=HeldFor(epsilon=None, study=1), **terms)
        long_ledger(session, dataset, 20_000)
        work = of_session(session, "ledger_entries")
        accounts.post(session, job_id="job_1", train=40, holdout=0, **terms)
        accounts.draw(session, job_id=run, study_id=study, train=5, holdout=1, **terms)
        assert work() < 200  # 20,000 and more, where each is read
        session.rollback()


def test_posts_without_a_holder_are_charges_of_their_own(db: Database) -> None:
    """No function of ours writes one; the trigger, the migration and a rebuild count it alike."""
    add_owner(db)
    dataset = a_history(db)
    kind = db.engine.dialect.name
    with db.write() as session:
        for seq in (100, 101):
            entry: dict[str, Any] = {
                "seq": seq,
                "kind": "post",
                "train": 3,
                "holdout": 0,
                "memo": {},
                "once": f"settle:{seq}",
            }
            chain = {"actor": OWNER, "created_at": now(), "prev_hash": "", "hash": ""}
            session.execute(insert(table_of(LedgerEntry)).values(dataset_id=dataset, job_id=None, **entry, **chain))
        moved = sums(session)
        session.execute(delete(SpentByKey))
        session.execute(text(migration("0040_history").BACKFILL[kind]))
        assert sums(session) == moved
        running_sums.write(session, [dataset])
        assert sums(session) == moved
        (of_all,) = [row for row in moved if row[2] == ""]
        assert of_all[3:7] == (3, 3, 7 + 3 + 3, 1)
        session.rollback()


@pytest.mark.parametrize("moved", ["charges = charges + 1", "train = train - 1", "family_charges = 0"])
def test_a_verification_recomputes_the_sums_and_an_operator_rebuilds_them(db: Database, moved: str) -> None:
    add_owner(db)
    dataset = a_history(db)
    block = open_ledger(db)
    with db.write() as session:
        session.get_one(Dataset, block).parent_id = dataset
    for each in (dataset, block):
        hold(db, each, "job_both", 40)
        post(db, each, "job_both", 40)
    a_study(db, dataset)
    assert check(db, dataset).valid and check(db, block).valid
    with db.write() as session:
        right = sums(session)
        # The sum of all days is as before: no view sees it.
        session.execute(text(f"UPDATE spent_by_key SET {moved} WHERE dataset_id = :id AND day <> ''"), {"id": dataset})  # noqa: S608
        assert sums(session) != right
    found = check(db, dataset)
    assert (found.valid, found.first_bad_entry) == (False, None) and found.problem is not None
    assert found.problem.startswith("the running sums of what keys spent")
    assert check(db, block).valid
    assert running_sums.rebuild(db, block) == len(right)  # of the whole data set
    assert check(db, dataset).valid
    with db.read() as session:
        assert alike(sums(session)) == alike(right)
        logged = session.scalars(select(AuditEntry.target).where(AuditEntry.action == "ledger.sums_rebuilt")).all()
        asked = session.scalars(select(LedgerCheck.dataset_id).where(LedgerCheck.requested_at.is_not(None))).all()
    assert set(logged) == set(asked) == {dataset, block}


@pytest.mark.parametrize("several", [False, True])
def test_clocks_that_disagree_across_midnight_leave_an_honest_ledger_valid(
    db: Database, monkeypatch: pytest.MonkeyPatch, several: bool
) -> None:
    """Trials of one study post on several machines: of one ledger the order of entries says which post came first."""
    add_owner(db)
    ledgers = [open_ledger(db) for _ in range(2 if several else 1)]
    dataset = ledgers[0]
    with db.write() as session:
        for block in ledgers[1:]:
            session.get_one(Dataset, block).parent_id = dataset
        study = add_job(session, dataset)
        runs = [add_job(session, dataset, parent_id=study, trial_number=number) for number in (1, 2)]
        for each in ledgers:
            held = HeldFor(epsilon=None, study=2)
            accounts.hold(session, job_id=study, train=500, holdout=50, memo=held, dataset_id=each, actor=OWNER)
    midnight = datetime(2027, 1, 2, tzinfo=UTC)
    times = iter([midnight, midnight - timedelta(seconds=1)])
    for run, at in zip(runs, times, strict=True):
        monkeypatch.setattr(entries, "whole_second", lambda at=at: at)
        for each in reversed(ledgers):
            with db.write() as session:
                terms: dict[str, Any] = {"dataset_id": each, "actor": OWNER, "study_id": study}
                accounts.draw(session, job_id=run, train=100, holdout=20, **terms)
    monkeypatch.undo()
    assert [check(db, each).problem for each in ledgers] == [None] * len(ledgers)
    with db.write() as session:
        moved = {
            row[:-1] for row in sums(session)
        }  # without the time of the last: the trigger's is of the last to arrive
        session.execute(delete(SpentByKey))
        session.execute(text(migration("0040_history").BACKFILL[db.engine.dialect.name]))
        again = {row[:-1] for row in sums(session)}
        assert alike(again) == alike(moved)
        assert several or again == moved
    assert [check(db, each).problem for each in ledgers] == [None] * len(ledgers)


def test_a_charge_of_one_ledger_counts_on_its_day_for_the_data_set_too(db: Database) -> None:
    add_owner(db)
    dataset = a_history(db)
    with db.write() as session:
        session.execute(text("UPDATE spent_by_key SET family_charges = family_charges + 1 WHERE day <> ''"))
        values = "SELECT dataset_id, key_id, '1999-01-01', 0, -1, 0, 0, last_at FROM spent_by_key WHERE day = ''"
        session.execute(text(f"INSERT INTO spent_by_key {values}"))
    found = check(db, dataset)
    assert not found.valid and found.problem == running_sums.PROBLEM
