"""What the ledger's routes answer and take: the shapes of the REST contract."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, StringConstraints

from app.contracts.base import Document, Epsilon, EpsilonValue
from app.db.models import Account, LedgerEntry
from app.ledger.accounts import remaining_of
from app.ledger.entries import content


class AccountView(BaseModel):
    """One account. Amounts are integers in `unit`."""

    filter: str
    order: float | None
    unit: str
    budget: int
    spent: int
    held: int
    remaining: int

    @classmethod
    def of(cls, account: Account, name: str, unit: str) -> AccountView:
        budget, spent, held = (getattr(account, f"{name}_{part}") for part in ("budget", "spent", "held"))
        return cls(
            filter=account.filter,
            order=account.order,
            unit=unit,
            budget=budget,
            spent=spent,
            held=held,
            remaining=remaining_of(account)[name],
        )


class AccountsView(BaseModel):
    train: AccountView
    holdout: AccountView | None


class Comparison(BaseModel):
    """What other ways of counting say of the settled jobs. None of them is enforced.

    `pld_if_fixed_in_advance` holds only as if all jobs had been fixed before the first one's results were seen.
    """

    basic: Epsilon
    rdp_best_order: Epsilon
    pld_if_fixed_in_advance: Epsilon


class LedgerView(BaseModel):
    """A data set's ledger: what is enforced, and beside it what other accountants would say.

    `epsilon_spent` is the larger of the two accounts (their parts of the data are disjoint), `epsilon_remaining` the
    smaller.
    `largest_cap`: where a raise of the cap could depend on what was released, the guarantee is that of the largest cap
    ever granted. `comparison` is null where it takes more time or memory than is allowed, or where a part of what was
    spent is known as an amount alone (a restored backup). `closed`: an admin has joined it to the ledger of another
    data set, which has the same records; nothing more is admitted.
    """

    cap: Epsilon
    largest_cap: Epsilon
    accounts: AccountsView
    epsilon_spent: Epsilon
    epsilon_spent_and_held: Epsilon
    epsilon_remaining: Epsilon
    comparison: Comparison | None
    entries: int
    head: str
    closed: bool = False


class EntryView(BaseModel):
    """One entry. Everything but `hash` is what `hash` is the SHA-256 of, as canonical JSON."""

    version: int
    dataset_id: str
    seq: int
    kind: str
    job_id: str | None
    train: int
    holdout: int
    train_released: int
    holdout_released: int
    once: str | None
    actor: str
    memo: dict[str, Any]
    created_at: str
    prev_hash: str
    hash: str

    @classmethod
    def of(cls, entry: LedgerEntry) -> EntryView:
        return cls(**content(entry), hash=entry.hash)


class EntryList(BaseModel):
    items: list[EntryView]
    next: str | None


class VerificationView(BaseModel):
    """`first_bad_entry` is null where the chain fits, also where only the account's row is off. `problem` says what."""

    valid: bool
    entries: int
    head: str
    first_bad_entry: int | None
    problem: str | None
    heads: int  # signed or recorded ones that were looked for in the chain


class HeadView(BaseModel):
    """The chain of `dataset` has `seq` entries, and the last one's hash is `head`."""

    version: int
    dataset: str
    seq: int
    head: str
    signed_at: str


class SignedHeadView(BaseModel):
    """`signature` is Ed25519 over the canonical JSON of `ledger_head`."""

    ledger_head: HeadView
    signature: str
    public_key: str
    algorithm: str


class Join(Document):
    """Which ledger stays, by its data set's id or name, and why."""

    into: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    reason: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000)]


class CapChange(Document):
    """A new cap; δ stays. Raising it is a decision that should not depend on what was released."""

    epsilon: EpsilonValue
    reason: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000)]
