"""Rows of sub-accounts: the units of an ε, and the same sub-account on another ledger of the data set.

Only app.ledger.sub_accounts moves their balances, beside a move between ledgers (app.ledger.second), which carries
them.
"""

from __future__ import annotations

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from app.db.models import Account, Dataset, SubAccount, SubAccountKey
from app.ledger import accounts
from core.errors import Conflict, InvalidRequest
from core.ids import new_id


def copy_to(session: Session, share: SubAccount, block: Account) -> SubAccount:
    """Gives one block a data set's sub-account, as it is now. Where the cap was lowered since, the cap binds first.
    Where its ε has no units under the block's filter, nothing is left of it. Returns the block's."""
    keys = keys_of(session, share)
    try:
        units = units_of(block, share.epsilon)
    except InvalidRequest:
        units = 0
    copied = write(session, block, share, units)
    copied.version, copied.changed_at, copied.changed_by = share.version, share.changed_at, share.changed_by
    mine = (SubAccountKey.dataset_id == block.dataset_id, SubAccountKey.name == share.name)
    session.execute(delete(SubAccountKey).where(*mine))
    for key_id in keys:
        session.add(SubAccountKey(dataset_id=block.dataset_id, key_id=key_id, name=share.name))
    copied.closed_at = share.closed_at
    session.flush()
    return copied


def write(session: Session, account: Account, like: SubAccount, units: int) -> SubAccount:
    """Gives a sub-account of this name its ε, in these units; makes it, if there is none.

    Raises:
        Conflict: `budget-too-low`: more than that is spent and held. `wrong-state`: it was used up by a move.
    """
    share = session.get(SubAccount, (account.dataset_id, like.name), populate_existing=True)
    if share is not None and units > share.train_budget:
        _require_counted(session, account, share)
    if share is None:
        share = SubAccount(dataset_id=account.dataset_id, name=like.name, id=new_id("sub"), version=0)
        share.train_spent = share.train_held = share.holdout_spent = share.holdout_held = 0
        session.add(share)
    taken = max(share.train_spent + share.train_held, share.holdout_spent + share.holdout_held)
    if taken > units:
        lowest = accounts.filter_for(account.filter, account.order).epsilon(taken, account.cap_delta)
        raise Conflict(
            "budget-too-low",
            f"what is spent and held of this budget needs about ε = {lowest:.6g}: ask for at least that",
            smallest_epsilon=lowest,
        )
    share.epsilon, share.train_budget = like.epsilon, units
    share.holdout_budget = units if account.holdout_budget else 0
    return share


def _require_counted(session: Session, account: Account, share: SubAccount) -> None:
    """Refuses to raise a budget that says less than was carried to it (decision 62): what it lacks would be free."""
    first = session.get_one(Dataset, account.dataset_id).pays_for
    earlier = None if first is None else session.get(SubAccount, (first, share.name), populate_existing=True)
    if first is None or earlier is None:
        return
    closed = accounts.account_of(session, first)
    from_filter, to = (accounts.filter_for(each.filter, each.order) for each in (closed, account))
    spent = (earlier.train_spent + earlier.train_held, earlier.holdout_spent + earlier.holdout_held)
    counted = (share.train_spent + share.train_held, share.holdout_spent + share.holdout_held)
    for amount, amount_here in zip(spent, counted, strict=True):
        carried = from_filter.carried(amount, to)
        if carried is None or carried > amount_here:
            raise Conflict(
                "wrong-state",
                "this budget was used up when its ledger moved, by more than it can say: close it, and give its keys a "
                "new one under another name",
            )


def units_of(account: Account, epsilon: float) -> int:
    """What an ε is worth in the filter's units, rounded down.

    Raises:
        InvalidRequest: it has no units under this filter.
    """
    privacy_filter = accounts.filter_for(account.filter, account.order)
    try:
        return privacy_filter.budget(epsilon, account.cap_delta)
    except InvalidRequest:
        lowest = privacy_filter.epsilon(1, account.cap_delta)
        raise InvalidRequest.at(
            "/epsilon",
            f"this data set's filter has units only above ε = {lowest:.4g} at δ = {account.cap_delta:g}: ask for more",
        ) from None


def keys_of(session: Session, share: SubAccount) -> list[str]:
    """The keys that share a sub-account."""
    mine = (SubAccountKey.dataset_id == share.dataset_id, SubAccountKey.name == share.name)
    return list(session.scalars(select(SubAccountKey.key_id).where(*mine).order_by(SubAccountKey.key_id)))
