"""One line of the ledger: its canonical content, its hash, and the only way to write it.

    h_0 = SHA-256("scrimp/ledger/v1:" ‖ data set's id)                       the genesis hash
    h_k = SHA-256(canonical JSON of entry k without `hash`, with prev_hash = h_{k−1})

The API shows an entry's canonical content and its hash, so that a reader recomputes the chain from the responses alone:
`json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False)`, UTF-8, SHA-256.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

from sqlalchemy import BindParameter, bindparam, update
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from app.chain import EntryLike, canonical_json, digest
from app.db.models import Account, LedgerEntry, table_of
from app.db.statement_batch import Together, Values, row_of, values_of
from app.ledger.memos import Balance, Balances, CapSet
from core.contracts.base import Document
from core.errors import PrivacyError
from core.ids import rfc3339, whole_second

Kind = Literal["open", "hold", "post", "void", "cap"]

# Every column of an entry but `hash` itself.
COLUMNS = (
    "dataset_id",
    "seq",
    "kind",
    "job_id",
    "train",
    "holdout",
    "train_released",
    "holdout_released",
    "once",
    "actor",
    "memo",
    "created_at",
    "prev_hash",
)
ACCOUNTS, ENTRIES = table_of(Account), table_of(LedgerEntry)
AccountLike = Account | SimpleNamespace  # the ORM's row, or one of a trip


def _writing(*caps: str) -> Together:
    """Writes an entry and moves the chain's head to it, with these columns of the cap."""
    moved: dict[str, BindParameter[object]] = {name: bindparam(f"new_{name}") for name in caps}
    of = update(ACCOUNTS).where(ACCOUNTS.c.dataset_id == bindparam("of"))
    last = of.values(head=bindparam("to"), **moved).returning(ACCOUNTS.c.dataset_id)
    return Together(last, row_of(ENTRIES, *COLUMNS, "hash"))


CAPS = ("cap_epsilon", "largest_cap_epsilon", "joined_into")
WRITE, WRITE_CAP = _writing(), _writing(*CAPS)


@dataclass(frozen=True)
class Move:
    """What an entry says of a move.

    Attributes:
        amounts: (train, holdout), in the filter's units.
        once: a name that this data set's ledger accepts once.
        memo: further facts to keep: a document of app.ledger.memos. The balances after the move are added as `balance`.
        released: (train, holdout) that return from the hold.
        budget: the sub-account that a hold was taken from.
    """

    kind: Kind
    job_id: str | None
    amounts: tuple[int, int]
    once: str | None
    actor: str
    memo: Document
    released: tuple[int, int] = (0, 0)
    budget: str | None = None


def genesis(dataset_id: str) -> str:
    """The hash before the first entry. It depends on the data set, so that a chain cannot be moved to another."""
    return hashlib.sha256(b"scrimp/ledger/v1:" + dataset_id.encode()).hexdigest()


def content(entry: EntryLike) -> dict[str, Any]:
    """An entry's content as JSON: everything but its own hash."""
    document = {name: getattr(entry, name) for name in COLUMNS}
    document["created_at"] = rfc3339(document["created_at"])
    return {"version": 1, **document}


def balance_of(account: AccountLike) -> Balances:
    """Both accounts' balances after an entry, as the entry states them."""
    return Balances(
        train=Balance(budget=account.train_budget, spent=account.train_spent, held=account.train_held),
        holdout=Balance(budget=account.holdout_budget, spent=account.holdout_spent, held=account.holdout_held),
    )


def new_entry(account: AccountLike, move: Move) -> Values:
    """The row of a move's entry, with its hash.

    Args:
        account: the row AFTER the move. The statement that moves it counts `entries` up and holds the row's lock, so
            no two entries can take the same `seq`.

    Raises:
        PrivacyError: the memo is not finite JSON.
    """
    try:
        text = canonical_json(_stated(move.memo, balance_of(account), move.budget))
    except (TypeError, ValueError):
        raise PrivacyError("the memo of a ledger entry must be finite JSON") from None
    row = {
        "dataset_id": account.dataset_id,
        "seq": account.entries,
        "kind": move.kind,
        "job_id": move.job_id,
        "train": move.amounts[0],
        "holdout": move.amounts[1],
        "train_released": move.released[0],
        "holdout_released": move.released[1],
        "once": move.once,
        "actor": move.actor,
        "memo": json.loads(text),  # as the database will return it
        "created_at": whole_second(),
        "prev_hash": account.head,
    }
    return row | {"hash": digest(content(SimpleNamespace(**row)))}


def values_to_write(entry: Values) -> Values:
    """The parameters of WRITE for an entry's row."""
    return {"of": entry["dataset_id"], "to": entry["hash"], **values_of(ENTRIES, entry)}


def append(session: Session, account: Account, move: Move, caps: Values | None = None) -> LedgerEntry:
    """Writes a move's entry and advances the chain's head, in the caller's transaction. Arguments as in `new_entry`.

    Args:
        caps: the columns of the cap that change with the entry that states them.

    Raises:
        PrivacyError: the memo is not finite JSON.
    """
    row = new_entry(account, move)
    session.flush()  # what the caller changed on the account
    changed = {"head": row["hash"], **(caps or {})}
    of_caps = {f"new_{name}": new for name, new in (caps or {}).items()}
    (WRITE_CAP if caps else WRITE).execute(session.connection(), {**values_to_write(row), **of_caps}).one()
    for name, new in changed.items():
        set_committed_value(account, name, new)
    return LedgerEntry(**row)


def _stated(memo: Document, balance: Balances, budget: str | None) -> Values:
    """An entry's memo as JSON."""
    paid = {} if budget is None else {"budget": budget}
    return memo.model_dump(mode="json") | paid | {"balance": balance.model_dump()}


def append_cap(
    session: Session, account: Account, *, cap_epsilon: float, joined_into: str | None, actor: str, reason: str
) -> LedgerEntry:
    """Writes the entry of a cap, and with it the account's cap and closing: triggers refuse one without the other.

    Args:
        account: as `append` takes it, with the budgets of this cap.
        joined_into: closes the ledger.
    """
    memo = CapSet(cap_epsilon=cap_epsilon, cap_delta=account.cap_delta, reason=reason, joined_into=joined_into)
    amounts = (account.train_budget, account.holdout_budget)
    largest = max(account.largest_cap_epsilon, cap_epsilon)
    caps = {"cap_epsilon": cap_epsilon, "largest_cap_epsilon": largest, "joined_into": joined_into}
    return append(session, account, Move("cap", None, amounts, None, actor, memo), caps)


def cap_version(account: Account) -> str:
    """Names the cap as it is: another cap, δ or state of the ledger has another name, and spending changes nothing."""
    terms = [account.cap_epsilon, account.cap_delta, account.largest_cap_epsilon, account.joined_into]
    return hashlib.sha256(canonical_json(terms)).hexdigest()[:16]
