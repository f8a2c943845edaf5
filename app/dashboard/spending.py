"""Who spent what of a data set's budget: by key, with the budget within the cap that bounds it.

From the ledger's entries alone, as `scrimp ledger spending` computes it: a sum of charges is as public as they are.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sqlalchemy import and_, func, select
from sqlalchemy.orm import Session

from app.budgets.service import visible_to
from app.dashboard.numbers import percent
from app.dashboard.views import key_names
from app.db.models import Account, LedgerEntry, table_of
from app.grants.service import Access
from app.keys.service import Caller
from app.ledger.entries import balance_of


@dataclass(frozen=True)
class Spending:
    """What the jobs of a key spent, in percent of each part's budget.

    Attributes:
        teams: the budgets that the key shares.
        holdout: None where there is no such part.
    """

    key: str
    name: str
    teams: list[str]
    jobs: int
    train: float
    holdout: float | None


def spending(session: Session, caller: Caller, access: Access, account: Account) -> list[Spending]:
    """What each key spent, the largest share first. A charge's key is its hold's: another may post it."""
    entry, hold = table_of(LedgerEntry), table_of(LedgerEntry).alias("hold")
    same = and_(hold.c.dataset_id == entry.c.dataset_id, hold.c.job_id == entry.c.job_id, hold.c.kind == "hold")
    posts = session.execute(
        select(func.coalesce(hold.c.actor, entry.c.actor).label("key"), entry.c.train, entry.c.holdout)
        .select_from(entry.outerjoin(hold, same))
        .where(entry.c.dataset_id == account.dataset_id, entry.c.kind == "post")
    ).all()
    train, holdout, jobs = Counter[str](), Counter[str](), Counter[str]()
    for post in posts:
        train[post.key] += post.train
        holdout[post.key] += post.holdout
        jobs[post.key] += 1
    names = key_names(session, caller, access, set(jobs))
    teams = {
        (budget.name, key) for budget in visible_to(session, caller, account.dataset_id) for key in budget.keys or ()
    }
    budgets = balance_of(account)
    return [
        Spending(
            key=key,
            name=names[key],
            teams=sorted(team for team, member in teams if member == key and team != key),
            jobs=jobs[key],
            train=percent(train[key], budgets.train.budget),
            holdout=percent(holdout[key], budgets.holdout.budget) if budgets.holdout.budget else None,
        )
        for key in sorted(jobs, key=lambda each: -max(train[each], holdout[each]))
    ]
