"""Who spent what of a data set's budget, summed over its blocks, from the ledger's entries.

A key's sum is as public as the entries that it adds up. It says who used the budget and is no guarantee about a person:
a unit lies in one block, or has a share in each, so amounts of several blocks are no cost of anybody's.
"""

from __future__ import annotations

from pydantic import BaseModel
from sqlalchemy import Row, and_, func, select
from sqlalchemy.orm import Session, aliased

from app.budgets.service import visible_to
from app.db.models import Account, ApiKey, Dataset, LedgerEntry
from app.grants import service as grants
from app.grants.service import Access
from app.keys.service import Caller
from app.ledger.accounts import filter_for
from app.ledger.blocks import family_of, label_of
from app.ledger.repository import dataset_with_account


class SpentPart(BaseModel):
    """What was spent on an account, and its share of the budgets of all blocks together."""

    amount: int
    share: float


class KeySpending(BaseModel):
    """What the jobs and charges of a key spent, whoever posted them.

    `key_name` is null for callers who may not read it. `budgets`: the budgets within the cap that the caller sees and
    the key shares. `charges` counts jobs (a study is one) and charges of other systems, each once, however many blocks
    it read. `holdout` is null without a private hold-out.
    """

    key_id: str
    key_name: str | None
    budgets: list[str]
    charges: int
    train: SpentPart
    holdout: SpentPart | None


class SpendingView(BaseModel):
    """Who spent what, the largest share first. Amounts are in `unit`, which add up.

    `blocks`: the labels of the blocks that are summed, retired ones too; null for a data set that never grew, and where
    a block is named by its id.
    """

    dataset: str
    unit: str
    blocks: list[str] | None
    items: list[KeySpending]
    next: None = None


def spending(session: Session, caller: Caller, dataset: str) -> SpendingView:
    """What each key spent on a data set.

    Raises:
        NotFound: no such data set, or the caller may not see it, or it is public.
    """
    named, access = grants.find(session, caller, dataset)
    first, account = dataset_with_account(session, named.id)
    members = family_of(session, first.id)
    totals = {part: _budget_of(session, members, part) for part in ("train", "holdout")}
    rows = _sums(session, members)
    names = _names(session, caller, access, [row.key for row in rows])
    budgets = [(each.name, each.keys or [caller.id]) for each in visible_to(session, caller, named.id)]
    items = [
        KeySpending(
            key_id=row.key,
            key_name=names.get(row.key),
            budgets=sorted(name for name, keys in budgets if row.key in keys and name != row.key),
            charges=row.charges,
            train=_part(row.train, totals["train"]) or SpentPart(amount=0, share=0.0),
            holdout=_part(row.holdout, totals["holdout"]),
        )
        for row in rows
    ]
    items.sort(key=lambda each: -max(each.train.share, each.holdout.share if each.holdout else 0.0))
    arrived = (
        select(Dataset).where(Dataset.id.in_(members)).order_by(Dataset.parent_id.is_not(None), Dataset.created_at)
    )
    labels = [label_of(each) for each in session.scalars(arrived)] if len(members) > 1 else None
    unit = filter_for(account.filter, account.order).unit
    return SpendingView(dataset=first.id, unit=unit, blocks=labels, items=items)


def _sums(session: Session, members: list[str]) -> list[Row[tuple[str, int, int, int]]]:
    """What was posted, by the key of the hold: the worker posts a job, and a trial draws on its study's hold."""
    Hold = aliased(LedgerEntry)
    holder = func.coalesce(LedgerEntry.memo["hold"].as_string(), LedgerEntry.job_id)
    same = and_(Hold.dataset_id == LedgerEntry.dataset_id, Hold.job_id == holder, Hold.kind == "hold")
    key = func.coalesce(Hold.actor, LedgerEntry.actor)
    columns = (
        key.label("key"),
        func.count(holder.distinct()).label("charges"),
        func.sum(LedgerEntry.train).label("train"),
        func.sum(LedgerEntry.holdout).label("holdout"),
    )
    posts = select(*columns).select_from(LedgerEntry).outerjoin(Hold, same).group_by(key)
    of_members = (LedgerEntry.dataset_id.in_(members), LedgerEntry.kind == "post")
    return list(session.execute(posts.where(*of_members)))


def _budget_of(session: Session, members: list[str], part: str) -> int:
    column = getattr(Account, f"{part}_budget")
    return int(session.scalar(select(func.sum(column)).where(Account.dataset_id.in_(members))) or 0)


def _part(amount: int, budget: int) -> SpentPart | None:
    return SpentPart(amount=int(amount), share=int(amount) / budget) if budget else None


def _names(session: Session, caller: Caller, access: Access, key_ids: list[str]) -> dict[str, str]:
    """The names of keys: of all for the data set's owner and admins, else the caller's own."""
    if access.level != "own":
        return {caller.id: caller.name}
    rows = select(ApiKey.id, ApiKey.name).where(ApiKey.id.in_(key_ids))
    return {row.id: row.name for row in session.execute(rows)}
