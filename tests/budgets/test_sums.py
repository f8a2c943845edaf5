"""The running sums of what keys spent: moved with each post, the same as adding up all entries, and never behind."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select, text
from sqlalchemy.orm import Session

from app.budgets.spending import spending
from app.db.engine import Database
from app.db.models import Dataset, SpentByKey, table_of
from app.keys.service import Caller
from app.ledger import accounts
from app.ledger.memos import HeldFor
from core.errors import PrivacyError
from tests.conftest import BACKINGS
from tests.ledger.support import OWNER, a_history, add_job, add_owner, hold, open_ledger, post

VERSIONS = Path(__file__).resolve().parents[2] / "alembic" / "versions"


@pytest.fixture(params=BACKINGS)
def backing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def migration() -> Any:
    spec = importlib.util.spec_from_file_location("spent", VERSIONS / "0036_spent_by_key.py")
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
