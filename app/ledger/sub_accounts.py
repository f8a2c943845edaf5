"""Sub-accounts: what a key or a team may use within a data set's cap. Nothing else moves their balances.

    hold     spent + held + x ≤ budget here too, or the data set's own hold does not happen either
    settle   held −= hold, spent += x: back to the sub-account whose id the hold's entry has, whoever uses it now

Both run in the transaction of app.ledger.accounts, after the data set's row was moved or locked: every transaction
takes the two locks in this order. Amounts are the filter's units, which add up. The data set's cap is the guarantee,
and holds even if all keys share what they learn; a sub-account bounds what one team uses of it.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, and_, bindparam, select, update
from sqlalchemy.orm import Session

from app.db.models import Account, SubAccount, SubAccountKey, table_of
from core.errors import PrivacyError

Amounts = tuple[int, int]  # of (train, holdout)
PARTS = ("train", "holdout")
# Every admission asks this, mostly for a key without one: built once, and without the ORM.
KEYS = table_of(SubAccountKey).c
OF_KEY = select(KEYS.name).where(KEYS.dataset_id == bindparam("dataset"), KEYS.key_id == bindparam("key"))


def of_key(session: Session, dataset_id: str, key_id: str) -> SubAccount | None:
    """The sub-account that a key spends within, as it is now; None: the cap alone bounds this key."""
    name = session.scalar(OF_KEY, {"dataset": dataset_id, "key": key_id})
    return None if name is None else session.get(SubAccount, (dataset_id, name), populate_existing=True)


def of_key_on(session: Session, dataset_ids: list[str], key_id: str) -> dict[str, SubAccount]:
    """The same on several data sets, in one statement; without those where the cap alone bounds the key."""
    mine = and_(SubAccountKey.dataset_id == SubAccount.dataset_id, SubAccountKey.name == SubAccount.name)
    rows = select(SubAccount).join(SubAccountKey, mine)
    query = rows.where(SubAccountKey.dataset_id.in_(dataset_ids), SubAccountKey.key_id == key_id)
    shares = session.scalars(query.execution_options(populate_existing=True))
    return {each.dataset_id: each for each in shares}


def remaining_of(share: SubAccount) -> dict[str, int]:
    """What may still be held on each account of a sub-account."""
    return {
        "train": share.train_budget - share.train_spent - share.train_held,
        "holdout": share.holdout_budget - share.holdout_spent - share.holdout_held,
    }


def hold(session: Session, share: SubAccount, amounts: Amounts) -> bool:
    """Holds amounts on a sub-account; returns False, and changes nothing, if they do not fit."""
    train, holdout = amounts
    return _move(
        session,
        (share.dataset_id, share.id),
        SubAccount.train_spent + SubAccount.train_held <= SubAccount.train_budget - train,
        SubAccount.holdout_spent + SubAccount.holdout_held <= SubAccount.holdout_budget - holdout,
        train_held=SubAccount.train_held + train,
        holdout_held=SubAccount.holdout_held + holdout,
    )


def settle(session: Session, dataset_id: str, sub_id: str | None, held_units: Amounts, spent: Amounts) -> None:
    """Ends `held_units` of a sub-account's holds and spends `spent` of it. Does nothing if `sub_id` is None.

    Raises:
        PrivacyError: it holds less than that.
    """
    if sub_id is None:
        return
    moved = _move(
        session,
        (dataset_id, sub_id),
        SubAccount.train_held >= held_units[0],
        SubAccount.holdout_held >= held_units[1],
        train_held=SubAccount.train_held - held_units[0],
        train_spent=SubAccount.train_spent + spent[0],
        holdout_held=SubAccount.holdout_held - held_units[1],
        holdout_spent=SubAccount.holdout_spent + spent[1],
    )
    if not moved:
        raise PrivacyError("the sub-account holds less than this job's hold: its balances were changed from outside")


def all_of(session: Session, dataset_id: str) -> list[SubAccount]:
    """All sub-accounts of a data set by name, closed ones too."""
    return list(
        session.scalars(select(SubAccount).where(SubAccount.dataset_id == dataset_id).order_by(SubAccount.name))
    )


def newest_of(session: Session, dataset_ids: list[str]) -> list[SubAccount]:
    """The sub-accounts of a data set by name, each from an open block: there they are all alike. If none is open, from
    the block that has its newest version: a closed block keeps those that it had when it closed."""
    rows = select(SubAccount).where(SubAccount.dataset_id.in_(dataset_ids))
    rows = rows.join(Account, Account.dataset_id == SubAccount.dataset_id)
    is_open = Account.joined_into.is_(None)
    ordered = session.scalars(rows.order_by(is_open, SubAccount.version, SubAccount.dataset_id))
    by_name = {each.name: each for each in ordered}
    return [by_name[name] for name in sorted(by_name)]


def with_own(left: dict[str, int], share: SubAccount | None) -> dict[str, int]:
    """What a key may still hold: what is left of the data set's account, and of the key's own sub-account.

    A data set without a private hold-out has 0 on that account everywhere.
    """
    if share is None:
        return left
    inside = remaining_of(share)
    return {part: min(left[part], inside[part]) for part in PARTS}


def _move(
    session: Session, key: tuple[str, str], *conditions: ColumnElement[bool], **values: ColumnElement[int]
) -> bool:
    moved = (
        update(SubAccount)
        .where(SubAccount.dataset_id == key[0], SubAccount.id == key[1], *conditions)
        .values(**values)
        .returning(SubAccount.id)
    )
    return session.execute(moved, execution_options={"synchronize_session": False}).one_or_none() is not None
