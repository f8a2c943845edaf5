"""The requests and responses of the ledger's routes: the shapes of the REST contract. An entry's memo is shown
as it is stored: its hash covers that JSON."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import StringConstraints

from app.db.models import Account, LedgerEntry
from app.db.row_view import Page
from app.ledger.accounts import remaining_of
from app.ledger.entries import content
from app.ledger.transparency.attestations import Envelope
from core import leaves
from core.contracts.base import Deferred, Document, Epsilon, EpsilonValue

COLLUSION = "The cap holds even if all keys share what they learn."


class Balance(Deferred):
    """What is left of a budget, in the filter's units. Shares are parts of the budget, which add up."""

    budget: Annotated[int, leaves.DECLARED_CAPS]
    spent: Annotated[int, leaves.SPENDING]
    held: Annotated[int, leaves.SPENDING]
    remaining: Annotated[int, leaves.SPENDING]
    share_spent: Annotated[float, leaves.SPENDING]
    share_held: Annotated[float, leaves.SPENDING]


class AccountView(Balance):
    """One account. Amounts are integers in `unit`; shares are parts of the budget, which add up."""

    filter: Annotated[str, leaves.DECLARED_CAPS]
    order: Annotated[float | None, leaves.DECLARED_CAPS]
    unit: Annotated[str, leaves.DECLARED_CAPS]

    @classmethod
    def of(cls, account: Account, name: str, unit: str) -> AccountView:
        """Shows one of an account's two balances."""
        budget, spent, held_units = (getattr(account, f"{name}_{part}") for part in ("budget", "spent", "held"))
        return cls(
            filter=account.filter,
            order=account.order,
            unit=unit,
            budget=budget,
            spent=spent,
            held=held_units,
            remaining=remaining_of(account)[name],
            share_spent=spent / budget,
            share_held=held_units / budget,
        )


class AccountsView(Deferred):
    """Both accounts; `holdout` is null without a private hold-out."""

    train: AccountView
    holdout: AccountView | None


class Comparison(Deferred):
    """Other accountants' figures for the settled jobs. None of them is enforced.

    `basic` is Σ εᵢ(δ/k) over the k jobs' planned ε's. `pld_if_fixed_in_advance` is valid only if all jobs were fixed
    before the first one's results were seen.
    """

    basic: Epsilon
    rdp_best_order: Epsilon
    pld_if_fixed_in_advance: Epsilon


class BlockBalance(Deferred):
    """A block's balances, as parts of its budget: of the account that has the larger one. `id` names its ledger."""

    label: str
    id: str
    epsilon_spent: float
    share_spent: float
    share_held: float
    closed: bool


class LedgerView(Deferred):
    """A data set's ledger: what is enforced, with other accountants' figures beside it.

    `epsilon_spent` is spent so far; the guarantee is the cap. After one job it is the job's own ε, after k jobs
    the smaller of the filter's conversion (`epsilon_filter`) and Σ εᵢ(δ/k) over the jobs' planned ε's, all at the cap's
    δ. In lists of data sets, which compose nothing, it is the filter's after more than one job. What adds up is each
    account's `share_spent`. The figures are the larger of the two accounts (their parts of the data are disjoint),
    `epsilon_remaining` the smaller of what is left.

    `largest_cap`: if a raise of the cap could depend on released results, the guarantee is the largest cap ever
    granted. `comparison` is null if it takes more time or memory than is allowed, or if a part of the spending is known
    as an amount alone (a restored backup, another system's charge). `closed`: an admin has joined it to the ledger of
    another data set with the same records; nothing more is admitted. `cap_version` names the cap as it is: a
    change of it sends this as `If-Match`.

    `blocks`: those of a data set that has grown, each with a budget of its own; else null. The spent ε's are then the
    worst block's, `accounts` and `epsilon_remaining` those of `remaining_block`, the open block with the most left (a
    job leaves out blocks that are closed or cannot pay), and `entries` and `head` those of the first block.
    """

    cap: Annotated[Epsilon, leaves.DECLARED_CAPS]
    largest_cap: Annotated[Epsilon, leaves.DECLARED_CAPS]
    accounts: Annotated[AccountsView, leaves.DECLARED_CAPS]
    epsilon_spent: Annotated[Epsilon, leaves.SPENDING]
    epsilon_spent_and_held: Annotated[Epsilon, leaves.SPENDING]
    epsilon_filter: Annotated[Epsilon, leaves.SPENDING]
    epsilon_remaining: Annotated[Epsilon, leaves.SPENDING]
    comparison: Annotated[Comparison | None, leaves.COMPARISONS]
    entries: Annotated[int, leaves.ENTRIES]
    head: Annotated[str, leaves.ENTRIES]
    cap_version: Annotated[str, leaves.SHARES]
    closed: Annotated[bool, leaves.DECLARED_CAPS] = False
    collusion: Annotated[str, leaves.SHARES] = COLLUSION
    blocks: Annotated[list[BlockBalance] | None, leaves.BLOCKS] = None
    remaining_block: Annotated[str | None, leaves.SPENDING] = None


class EntryView(Deferred):
    """One entry. `hash` is the SHA-256 of all other members, as canonical JSON."""

    version: Annotated[int, leaves.ENTRIES]
    dataset_id: Annotated[str, leaves.ENTRIES]
    seq: Annotated[int, leaves.ENTRIES]
    kind: Annotated[str, leaves.ENTRIES]
    job_id: Annotated[str | None, leaves.ENTRIES]
    train: Annotated[int, leaves.SPENDING]
    holdout: Annotated[int, leaves.SPENDING]
    train_released: Annotated[int, leaves.SPENDING]
    holdout_released: Annotated[int, leaves.SPENDING]
    once: Annotated[str | None, leaves.ENTRIES]
    actor: Annotated[str, leaves.ENTRIES]
    memo: Annotated[dict[str, Any], leaves.SPENDING]
    created_at: Annotated[str, leaves.ENTRIES]
    prev_hash: Annotated[str, leaves.ENTRIES]
    hash: Annotated[str, leaves.ENTRIES]

    @classmethod
    def of(cls, entry: LedgerEntry) -> EntryView:
        """Shows an entry's canonical content and its hash."""
        return cls(**content(entry), hash=entry.hash)


class EntryList(Page[EntryView]):
    """A page of ledger entries; `next` is the cursor of the next page, null on the last."""


class CheckpointView(Deferred):
    """The newest signed checkpoint of `dataset`: its first `size` entries have `root` (base64) as their tree's root.

    `checkpoint` is the whole signed note, with the cosignatures of witnesses. `terms`: a signed DSSE envelope with the
    data set's name, unit, blocks, governance and grants (key ids, purposes, permits, ends), as statements have it; null
    until the relay has signed it.
    """

    dataset: str
    size: int
    root: str
    checkpoint: str
    terms: Envelope | None


class StatedDataset(Deferred):
    """The data set of a statement; `unit` is what is protected."""

    id: str
    name: str
    unit: str


class StatedLedger(Deferred):
    """A block's ledger in a statement: every entry that its signed `checkpoint` covers."""

    id: str
    label: str
    checkpoint: str
    entries: list[EntryView]


class StatementView(Deferred):
    """A data set's statement. `version` 4 is of a data set with two filters. `terms`: as a checkpoint has them.
    `ledgers`: the data set's own, then of all blocks, retired ones included."""

    version: int
    dataset: StatedDataset
    terms: Envelope
    ledgers: list[StatedLedger]


class ProofView(Deferred):
    """A proof about the tree of the first `size` entries. `path`: hashes in base64, as RFC 6962 orders them.

    With `entry`: the entry with this `hash` is in the tree. With `since`: the tree begins with the entries of the tree
    of that size.
    """

    dataset: str
    size: int
    entry: int | None = None
    hash: str | None = None
    since: int | None = None
    path: list[str]


class Join(Document):
    """Which ledger stays, by its data set's id or name, and why."""

    into: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    reason: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000)]


class CapChange(Document):
    """A new cap; δ stays. A raise should not depend on released results."""

    epsilon: EpsilonValue
    reason: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000)]
