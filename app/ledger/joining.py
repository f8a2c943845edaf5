"""Two ledgers of the same records become one: the one is closed, and all that it spent is charged to the other.

The guarantee of a data set is that of one registration. Where an admin knows that two of them have records in common,
the records' own guarantee is kept by one ledger: from the join on every admission goes through it, and what the other
has spent or still holds stands in it as a charge. That the charge fits is the ledger's own condition, so that spent +
held ≤ budget holds for both together, for what was released before the join too: one total, that only grows.

What is charged, x, to both accounts of the one that stays, with s the larger of what the closed one's two accounts have
spent and held (a record is in one of its parts, whichever that is, and the two data sets may be split differently):

    gdp → gdp      x = s                  both count μ²
    rdp → rdp      x = s, α_stays ≤ α     a Rényi divergence does not fall with its order: a charge at α covers α_stays
    gdp → rdp      x = α s/2              a Gaussian mechanism with μ has divergence α μ²/2, and they add up

Other pairs are joined the other way round. What is held and then not spent stays charged.
"""

from __future__ import annotations

import math
from fractions import Fraction

from sqlalchemy.orm import Session

from app.db.models import Account, Dataset
from app.errors import BudgetError, Conflict, InvalidRequest
from app.ledger import accounts
from app.ledger.entries import append_cap

PER_NANO = Fraction(1_000_000_000, 1_000_000_000_000)  # units of rdp (1e-9) in one of gdp (1e-12)


def join(session: Session, *, dataset_id: str, into: str, actor: str, reason: str) -> int:
    """Closes a data set's ledger and charges what it spent and holds to another's. In the caller's transaction.

    Args:
        dataset_id: whose ledger is closed. Jobs that run there go on and settle there; none is admitted any more.
        into: whose ledger stays.

    Returns:
        What was charged, on each account of the one that stays, in its units.

    Raises:
        InvalidRequest: both are the same one.
        NotFound: one of them has no ledger.
        Conflict: `wrong-state`: one is closed already, they protect different units, or can only be joined the other
            way round. `cap-too-low`: both together spent more than the cap; `smallest_epsilon` would do.
            `ledger-behind`: the row of one of them is not what its last entry says.
    """
    if dataset_id == into:
        raise InvalidRequest.at("/into", "a ledger is joined to another one")
    for each in sorted((dataset_id, into)):  # two joins at once take both locks in one order
        accounts.lock(session, each)
    closed, stays = accounts.account_of(session, dataset_id), accounts.account_of(session, into)
    _check(session, closed, stays)
    amount = carried(closed, stays)
    if amount:
        _charge(session, stays, amount, closed.dataset_id, actor)
    close(session, closed, into, actor, reason)
    return amount


def carried(closed: Account, stays: Account) -> int:
    """What the closed ledger's spending is worth in the units of the one that stays, rounded up.

    Raises:
        Conflict: nothing that is known bounds it: they can be joined the other way round.
    """
    amount = max(closed.train_spent + closed.train_held, closed.holdout_spent + closed.holdout_held)
    match closed.filter, stays.filter:
        case "gdp", "gdp":
            return amount
        case "rdp", "rdp" if (stays.order or math.inf) <= (closed.order or 0.0):
            return amount
        case "gdp", "rdp":
            return math.ceil(Fraction(stays.order or math.inf) * amount / 2 * PER_NANO)
        case _:
            raise Conflict("wrong-state", "these filters can be joined the other way round: close the other ledger")


def _check(session: Session, closed: Account, stays: Account) -> None:
    for each in (closed, stays):
        if each.joined_into is not None:
            raise Conflict("wrong-state", f"the ledger of {each.dataset_id} is closed: it was joined to another one")
    units = {session.get_one(Dataset, each.dataset_id).spec["privacy"]["unit"] for each in (closed, stays)}
    if len(units) > 1:
        raise Conflict("wrong-state", "one ledger protects records and the other users: their charges do not add up")


def _charge(session: Session, stays: Account, amount: int, closed: str, actor: str) -> None:
    amounts = {"train": amount, "holdout": amount if stays.holdout_budget else 0}
    memo = {"joined": closed}
    try:
        accounts.hold(session, dataset_id=stays.dataset_id, job_id=closed, **amounts, actor=actor, memo=memo)
    except BudgetError:
        taken = max(stays.train_spent + stays.train_held, stays.holdout_spent + stays.holdout_held) + amount
        least = accounts.filter_for(stays.filter, stays.order).epsilon(taken, stays.cap_delta)
        detail = f"both together spent more than this cap: about ε = {least:.6g} would do; raise it first"
        raise Conflict("cap-too-low", detail, smallest_epsilon=least) from None
    accounts.post(session, dataset_id=stays.dataset_id, job_id=closed, **amounts, actor=actor, memo=memo)


def close(session: Session, closed: Account, into: str, actor: str, reason: str) -> None:
    """An entry that leaves the cap as it is and says that nothing more is admitted. Charges nothing to the other one.

    Raises:
        Conflict: `ledger-behind`: the account's row, by which it is charged, is not what the last entry says.
    """
    account = accounts.move(session, closed.dataset_id, joined_into=into)
    if account is None:
        raise RuntimeError("the account's row is locked by this transaction, and is gone")
    accounts.require_agreement(session, account)
    append_cap(session, account, actor=actor, reason=reason)
