"""An account's row agrees with its last entry, or nothing moves.

Triggers refuse a change of balances without its entry (migration 0031). This finds what was changed without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import BigInteger, Row, String, bindparam, or_, select
from sqlalchemy.orm import Session

from app.chain import digest
from app.ledger import budgets
from app.ledger.behind import refusal
from app.ledger.entries import ENTRIES, AccountLike, balance_of, content
from app.ledger.memos import Memo

LAST_ENTRIES = select(ENTRIES, budgets.OF_KEY.scalar_subquery().label("own")).where(
    ENTRIES.c.dataset_id == bindparam("dataset"),
    or_(ENTRIES.c.seq == bindparam("number", type_=BigInteger), ENTRIES.c.once == bindparam("once", type_=String)),
)


def require_agreement(session: Session, account: AccountLike) -> None:
    """Checks the row before its move against the last entry.

    Args:
        account: the row after a move that holds nothing, whose entry is not written yet.

    Raises:
        Conflict: `ledger-behind`.
    """
    check_agreement(account, last_entries(session, account), 0, 0)


def last_entries(
    session: Session, account: AccountLike, *, once: str | None = None, key: str | None = None
) -> Sequence[Row[Any]]:
    """The last entry before a move and the one with the name `once`, each with the key's sub-account as `own`. Nothing
    if they cannot be decoded."""
    asked = {"dataset": account.dataset_id, "number": account.entries - 1, "once": once, "key": key}
    try:
        return session.connection().execute(LAST_ENTRIES, asked).all()
    except (TypeError, ValueError):
        return ()


def check_agreement(account: AccountLike, found: Sequence[Row[Any]], train: int, holdout: int) -> None:
    """Raises Conflict if the row before its move, which held these amounts, differs from the last entry."""
    before = balance_of(account).without(train, holdout)
    last = next((each for each in found if each.seq == account.entries - 1), None)
    try:
        agrees = (
            last is not None
            and last.hash == account.head == digest(content(last))
            and Memo.of(last.memo).balance == before
        )
    except (TypeError, ValueError, KeyError, AttributeError):  # it cannot be decoded
        agrees = False
    if not agrees:
        raise refusal("the account's row differs from its last entry")
