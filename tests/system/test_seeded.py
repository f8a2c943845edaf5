"""The benchmarks' long histories are what the service itself would have written: a small one is compared here."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError

from app.audit import audit_chain
from app.dashboard.burndown import KEYS_SHOWN, Burndown, burndowns
from app.db.database import Database
from app.db.models import Account, Job, LedgerEntry, SpentByKey, SubAccount
from app.ledger import accounts
from app.ledger.verification import verify
from app.settings import Settings
from benchmarks.history_seed import History, Seeder
from tests.conftest import BACKINGS


@pytest.fixture(params=BACKINGS)
def backing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def history(db: Database, settings: Settings) -> History:
    return Seeder(db, settings).fill(entries=400, jobs=300, queued=20)


def test_a_seeded_ledger_verifies(db: Database, history: History) -> None:
    with db.read() as session:
        found, log = verify(session, history.dataset), audit_chain.verify(session)
    assert (found.valid, found.problem, found.entries) == (True, None, history.entries)
    assert (log.valid, log.unsealed) == (True, 0) and log.entries > 300


def test_its_balances_are_the_sums_of_its_entries(db: Database, history: History) -> None:
    entry = LedgerEntry
    with db.read() as session:
        account = session.get_one(Account, history.dataset)
        sums = (func.sum(entry.train), func.sum(entry.train_released))
        of = {kind: session.execute(select(*sums).where(entry.kind == kind)).one() for kind in ("hold", "post", "void")}
        counts = dict(session.execute(select(Job.status, func.count()).group_by(Job.status)).all())
        own = session.scalars(select(SubAccount)).one()
    spent = of["post"][0]
    assert account.train_spent == spent == history.spent
    assert account.train_held == of["hold"][0] - spent - of["post"][1] - of["void"][1] == history.held > 0
    assert (
        history.entries - 420 in range(-30, 30) and counts["queued"] == 21 and sum(counts.values()) in range(300, 350)
    )
    assert 0 < own.train_spent < account.train_spent


def test_what_follows_a_seeded_history_is_admitted(db: Database, history: History) -> None:
    """Its triggers are back, and the product's own moves go on from its head."""
    with db.write() as session:
        owner = history.scene.owner.id
        terms: dict[str, Any] = {
            "dataset_id": history.dataset,
            "job_id": "job_next",
            "train": 10,
            "holdout": 0,
            "actor": owner,
        }
        accounts.hold(session, **terms)
        accounts.post(session, **terms)
    with db.read() as session:
        assert verify(session, history.dataset).valid
    with pytest.raises(DBAPIError), db.write() as session:
        session.get_one(Account, history.dataset).train_spent = 0


def test_a_long_ledger_s_burn_down_sums_what_its_posts_sum(
    db: Database, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By day and key, with the costliest jobs as dots: as exact as from every post."""

    def drawing() -> Burndown:
        with db.read() as session:
            account = session.get_one(Account, history.dataset)
            return burndowns(session, account, lambda keys: dict.fromkeys(keys, ""))[0]  # of the training part

    exact = drawing()
    monkeypatch.setattr("app.dashboard.burndown.MOST_READ", 10)
    short = drawing()
    states = [each.over_time.lines[0].points[:-1] for each in (exact, short)]  # the last point is of this moment
    assert short.percent == exact.percent and states[0] == states[1]
    assert short.by_job.lines == exact.by_job.lines  # fewer jobs than dots
    ends = [sorted(line.points[-1].y for line in each.by_key.lines)[-3:] for each in (exact, short)]
    total = [sum(line.points[-1].y for line in each.by_key.lines[:-1]) for each in (exact, short)]
    assert ends[1][-1] > ends[0][-1] and total[1] > total[0]  # the keys without lines of their own are one line
    spent = SpentByKey
    with db.read() as session:
        of_ledger = (spent.dataset_id == history.dataset, spent.day == "", spent.train > 0)
        keys = session.scalar(select(func.count()).where(*of_ledger)) or 0
    assert f"{keys - KEYS_SHOWN + 1} other keys" in [line.name for line in short.by_key.lines]
