"""Joins two ledgers of the same records: one is closed, and all that it spent is charged to the other.

A data set's guarantee covers one registration. If an admin knows that two data sets have records in common, a join
keeps the records' own guarantee in one ledger: every later admission goes through it, and it carries the other's spent
and held budget as a charge. The charge must fit, by the ledger's own condition. So spent + held ≤ budget holds for both
together, including releases before the join: one total that only grows.

x is charged to both accounts of the ledger that stays. s is the larger of the closed ledger's two accounts, spent plus
held (a record is in one of its parts, and the two data sets may be split differently):

    gdp → gdp      x = s                  both count μ²
    rdp → rdp      x = s, α_stays ≤ α     a Rényi divergence does not fall with its order: a charge at α covers α_stays
    gdp → rdp      x = α s/2              a Gaussian mechanism with μ has divergence α μ²/2, and they add up

Each filter knows its conversions (core.privacy.filters, `carried`). Other pairs are joined the other way round. Held
budget that is later not spent stays charged.
"""

from __future__ import annotations

from sqlalchemy.orm import Session

from app.db.models import Account, Dataset
from app.ledger import accounts, block_accounts, memos
from app.ledger.accounts import HoldTerms
from app.ledger.agreement import require_agreement
from app.ledger.entries import append_cap
from app.ledger.repository import unit_of
from core.contracts.base import Document
from core.errors import BudgetError, Conflict, InvalidRequest


def join(session: Session, *, dataset_id: str, into: str, actor: str, reason: str) -> int:
    """Closes a data set's ledger and charges its spent and held budget to another's. In the caller's transaction.

    Args:
        dataset_id: the data set whose ledger is closed. Its running jobs continue and settle there; no job is admitted.
        into: the data set whose ledger stays.

    Returns:
        The charge on each account of the ledger that stays, in its units.

    Raises:
        InvalidRequest: both are the same data set.
        NotFound: one of them has no ledger.
        Conflict: `wrong-state`: one is closed already, they protect different units, or can only be joined the other
            way round. `cap-too-low`: both together spent more than the cap; `smallest_epsilon` would do.
            `ledger-behind`: the row of one of them differs from its last entry.
    """
    if dataset_id == into:
        raise InvalidRequest.at("/into", "a ledger must be joined to another one: name a different data set")
    for locked_id in sorted((dataset_id, into)):  # two joins at once take both locks in one order
        accounts.lock(session, locked_id)
    closed, stays = accounts.account_of(session, dataset_id), accounts.account_of(session, into)
    _check(session, closed, stays)
    amount = carried(closed, stays)
    if amount:
        _charge(session, stays, amount, closed.dataset_id, actor)
    close(session, closed, into, actor, reason)
    return amount


def carried(closed: Account, stays: Account) -> int:
    """Converts the closed ledger's spending to the units of the ledger that stays, rounded up.

    Raises:
        Conflict: no bound is known; the ledgers can be joined the other way round.
    """
    amount = max(closed.train_spent + closed.train_held, closed.holdout_spent + closed.holdout_held)
    filters = [accounts.filter_for(each.filter, each.order) for each in (closed, stays)]
    amount_carried = filters[0].carried(amount, filters[1])
    if amount_carried is None:
        raise Conflict("wrong-state", "these filters can only be joined the other way round: close the other ledger")
    return amount_carried


def _check(session: Session, closed: Account, stays: Account) -> None:
    for account in (closed, stays):
        if account.joined_into is not None:
            raise Conflict("wrong-state", f"{account.dataset_id}: {accounts.closed_because(account)}")
        if account.whole_delta is not None:
            raise Conflict(
                "wrong-state",
                f"{account.dataset_id} has a plan with two filters, each with a part of δ, and a join would be "
                "counted by "
                "one of them alone: retire it instead",
            )
        if len(block_accounts.family_of(session, account.dataset_id)) > 1:
            raise Conflict(
                "wrong-state",
                f"{account.dataset_id} has several ledgers, of blocks or of another filter, and one charge cannot say "
                "which of them must pay: retire its blocks instead",
            )
    rows = (session.get_one(Dataset, each.dataset_id) for each in (closed, stays))
    units = {unit_of(each) for each in rows}
    if len(units) > 1:
        raise Conflict(
            "wrong-state", "one ledger protects records and the other protects users: their charges do not add up"
        )


def _charge(session: Session, stays: Account, amount: int, closed: str, actor: str) -> None:
    holdout = amount if stays.holdout_budget else 0
    try:
        spend(session, stays.dataset_id, closed, (amount, holdout), actor, memos.Joined(joined=closed))
    except BudgetError:
        taken = max(stays.train_spent + stays.train_held, stays.holdout_spent + stays.holdout_held) + amount
        lowest = accounts.filter_for(stays.filter, stays.order).epsilon(taken, stays.cap_delta)
        detail = f"both together spent more than this cap: raise it to about ε = {lowest:.6g} first"
        raise Conflict("cap-too-low", detail, smallest_epsilon=lowest) from None


def spend(session: Session, dataset_id: str, name: str, amounts: tuple[int, int], actor: str, memo: Document) -> None:
    """Holds and posts what no job of this ledger spent; no sub-account pays. Raises as `accounts.hold_on`.

    Args:
        name: stands for the job.
        amounts: (train, holdout).
    """
    train, holdout = amounts
    accounts.hold_on(session, dataset_id, HoldTerms(name, train, holdout, actor, memo, within=False))
    accounts.post(session, dataset_id=dataset_id, job_id=name, train=train, holdout=holdout, actor=actor, memo=memo)


def close(session: Session, closed: Account, into: str, actor: str, reason: str) -> None:
    """Writes an entry that keeps the cap and closes the ledger. Charges nothing to the other one.

    Args:
        into: the other ledger's data set; or accounts.RETIRED, if nothing was ever held on this one.

    Raises:
        Conflict: `ledger-behind`: the account's row, which determines the charge, differs from the last entry.
    """
    account = accounts.move(session, closed.dataset_id)
    if account is None:
        raise RuntimeError("the account's row is locked by this transaction, and yet it is gone")
    require_agreement(session, account)
    append_cap(session, account, cap_epsilon=account.cap_epsilon, joined_into=into, actor=actor, reason=reason)
