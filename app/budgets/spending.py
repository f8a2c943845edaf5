"""Who spent what of a data set's budget, summed over its blocks, from the running sums of its posts.

A key's sum is as public as the entries that it adds up. It says who used the budget and is no guarantee about a person:
a unit lies in one block, or has a share in each, so amounts of several blocks are no cost of anybody's.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row, func, select
from sqlalchemy.orm import Session

from app.budgets.service import visible_to
from app.db.models import Account, ApiKey, Dataset, SpentByKey, table_of
from app.grants import service as grants
from app.grants.service import Access
from app.keys.service import Caller
from app.ledger.accounts import account_of, filter_for
from app.ledger.block_accounts import family_of, label_of, lead
from app.ledger.repository import dataset_with_account
from core.contracts.base import Deferred
from core.errors import PrivacyError


class SpentPart(Deferred):
    """What was spent on an account, and its share of the budgets of all blocks together."""

    amount: int
    share: float


class KeySpending(Deferred):
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


class SpendingView(Deferred):
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
    dataset_id, access = grants.find(session, caller, dataset)
    first = dataset_with_account(session, dataset_id.id)[0]
    account = lead(session, first.id)
    # Amounts of two units do not add up: after a move the second ledgers have all that was spent.
    family = (account_of(session, each) for each in family_of(session, first.id))
    members = [each.dataset_id for each in family if each.filter == account.filter]
    totals = {part: _budget_of(session, members, part) for part in ("train", "holdout")}
    rows = _sums(session, members)
    names = _names(session, caller, access, [row.key for row in rows])
    budgets = [(each.name, each.keys or [caller.id]) for each in visible_to(session, caller, dataset_id.id)]
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
    items.sort(key=lambda item: -max(item.train.share, item.holdout.share if item.holdout else 0.0))
    arrived = (
        select(Dataset).where(Dataset.id.in_(members)).order_by(Dataset.parent_id.is_not(None), Dataset.created_at)
    )
    labels = [label_of(each) for each in session.scalars(arrived)] if len(members) > 1 else None
    unit = filter_for(account.filter, account.order).unit
    return SpendingView(dataset=first.id, unit=unit, blocks=labels, items=items)


def _sums(session: Session, members: list[str]) -> list[Row[Any, Any, Any, Any]]:
    """What was posted, by the key of the hold: the worker posts a job, and a trial draws on its study's hold.

    Raises:
        PrivacyError: the running sums are not what the accounts have spent.
    """
    spent = table_of(SpentByKey).c
    # A charge counts once, however many blocks it read.
    count = spent.charges if len(members) == 1 else spent.family_charges
    columns = (
        spent.key_id.label("key"),
        func.sum(count).label("charges"),
        func.sum(spent.train).label("train"),
        func.sum(spent.holdout).label("holdout"),
    )
    of_members = (spent.dataset_id.in_(members), spent.day == "")
    rows = list(session.execute(select(*columns).where(*of_members).group_by(spent.key_id)))
    accounts = select(func.sum(Account.train_spent), func.sum(Account.holdout_spent))
    balances = session.execute(accounts.where(Account.dataset_id.in_(members))).one()
    sums = (sum(row.train for row in rows), sum(row.holdout for row in rows))
    if sums != tuple(int(each or 0) for each in balances):
        raise PrivacyError("the running sums of what keys spent differ from the account's balances")
    return rows


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
