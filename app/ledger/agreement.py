"""An account's row agrees with its last entry, or nothing moves.

Triggers refuse a change of balances without its entry (migration 0031). This finds what was changed without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from sqlalchemy import BigInteger, String, bindparam, or_, select
from sqlalchemy.orm import Session

from app.chain import digest
from app.db.trip import Reply, round_trip
from app.ledger import sub_accounts
from app.ledger.behind import refusal
from app.ledger.entries import ACCOUNTS, ENTRIES, AccountLike, balance_of, content
from app.ledger.memos import Memo

# The last entry before a move and the one with a name; `moves`: how many moves the account's row counts already that
# have no entry yet.
LAST_ENTRIES = select(ENTRIES, sub_accounts.OF_KEY.scalar_subquery().label("own")).where(
    ENTRIES.c.dataset_id == bindparam("dataset"),
    or_(
        ENTRIES.c.seq
        == select(ACCOUNTS.c.entries).where(ACCOUNTS.c.dataset_id == bindparam("dataset")).scalar_subquery()
        - bindparam("moves", type_=BigInteger),
        ENTRIES.c.once == bindparam("once", type_=String),
    ),
)


def require_agreement(session: Session, account: AccountLike) -> None:
    """Checks the row before its move against the last entry.

    Args:
        account: the row after a move that holds nothing, whose entry is not written yet.

    Raises:
        Conflict: `ledger-behind`.
    """
    values = {"dataset": account.dataset_id, "moves": 1, "once": None, "key": None}
    with round_trip(session.connection()) as trip:
        last = trip.send(LAST_ENTRIES, values)
    check_agreement(account, account.entries - 1, read_entries(last))


def read_entries(reply: Reply) -> list[SimpleNamespace]:
    """The rows of LAST_ENTRIES; none if they cannot be decoded."""
    try:
        return reply.rows()
    except (TypeError, ValueError):
        return []


def check_agreement(account: AccountLike, number: int, entries: Sequence[SimpleNamespace]) -> None:
    """Compares a row's balances with its last entry.

    Args:
        number: the entry's.
        entries: the rows of LAST_ENTRIES.

    Raises:
        Conflict: `ledger-behind`: they differ.
    """
    last = next((each for each in entries if each.seq == number), None)
    try:
        agrees = (
            last is not None
            and last.hash == account.head == digest(content(last))
            and Memo.of(last.memo).balance == balance_of(account)
        )
    except (TypeError, ValueError, KeyError, AttributeError):  # it cannot be decoded
        agrees = False
    if not agrees:
        raise refusal("the account's row differs from its last entry")
