"""Answers about data sets, ledgers, budgets and charges. Written by scripts/write_specs.py."""

from __future__ import annotations

from typing import Any

from scrimp import behaviour
from scrimp.behaviour import Resource


class Account(Resource):
    """One account. Amounts are integers in `unit`; shares are parts of the budget, which add up."""

    budget: int
    spent: int
    held: int
    remaining: int
    share_spent: float
    share_held: float
    filter: str
    order: float | None = None
    unit: str


class Approval(Resource):
    """An act that takes effect once two persons have agreed. An open one expires after two weeks."""

    id: str
    dataset: str
    act: dict[str, Any]
    asked_by: str
    status: str
    agreements: list[dict[str, Any]] = []
    created_at: str | None = None
    expires_at: str | None = None
    decided_at: str | None = None
    decided_by: str | None = None


class BlockBalance(Resource):
    """A block's balances, as parts of its budget: of the account that has the larger one. `id` names its ledger."""

    label: str
    id: str
    epsilon_spent: float
    share_spent: float
    share_held: float
    closed: bool


class BudgetPart(Resource):
    """A sub-account's balances on one account, in the filter's units. `remaining` is bounded by the cap too."""

    budget: int
    spent: int
    held: int
    remaining: int
    share_spent: float
    share_held: float
    share_of_cap: float


class Epsilon(Resource):
    """A privacy loss. It is never printed without its meaning."""

    value: float
    delta: float
    accountant: str
    unit: str = "example"
    relation: str = "add_or_remove_one"


class Budget(Resource):
    """A sub-account: what some keys may use of a data set's cap. It bounds their jobs, studies and charges together.

    `id` names it in the ledger's entries (`memo.budget`), where every key that sees the data set reads it.
    `epsilon` is what the budget was made from; amounts of `unit` add up, ε's do not. Sub-accounts may exceed the cap
    together: the cap still bounds them all. `keys` is null for callers who are not the owner. `version` is in the
    `ETag` and counts changes by the owner, not spending. `closed`: no key uses it any more; what it spent stays.
    """

    dataset: str
    id: str
    name: str
    epsilon: Epsilon
    epsilon_spent: Epsilon
    unit: str
    accounts: dict[str, BudgetPart | None]
    keys: list[str] | None = None
    version: int
    changed_at: str
    changed_by: str
    closed: bool
    collusion: str = "The cap holds even if all keys share what they learn."


class BudgetRequest(Resource):
    """A request for a sub-account. `budget` is the one that it is about, and `budget_version` its version now (0: it
    does not exist yet). Both together are the `ETag`: `"{budget}.{budget_version}"`.
    """

    id: str
    dataset: str
    key: str
    epsilon: float
    reason: str
    status: str
    created_at: str
    expires_at: str
    decided_at: str | None = None
    decided_by: str | None = None
    answer: str | None = None
    budget: str
    budget_version: int


class Charge(Resource):
    """A charge of another system. Amounts are in the account's `unit`; shares are parts of its budget.

    `attested_by` is the key that vouches for `mechanism`: this service cannot check what another system does.
    """

    id: str
    dataset: str
    account: str
    status: str
    mechanism: dict[str, Any]
    attested: str
    attested_by: str
    use: dict[str, Any] | None = None
    unit: str
    train: int
    holdout: int
    share_train: float
    share_holdout: float
    reason: str | None = None
    created_at: str
    settled_at: str | None = None


class Read(Resource):
    """What a file holds: functions of private data, answered to the owner who sent it. Kept for a day if it was read in
    the background, and otherwise not stored.

    `records`: those in the data file. `dropped`: rows with undeclared ids, and records of users with too many. `units`:
    the protected ones (records, or users) that were kept. `train`, `holdout`: those of each part.
    """

    records: int
    dropped: int
    units: int
    train: int
    holdout: int


class PartSlots(behaviour.PartSlots):
    """The places of one part.

    Attributes:
        units: N, at most this many units (records, or users) are registered.
        rows: at most this many records; k · N unless the owner declares fewer, where a unit has up to k records.

    >>> PartSlots(units=100, rows=300) + PartSlots(units=20, rows=60)
    PartSlots(units=120, rows=360)
    """

    units: int
    rows: int


class Slots(behaviour.Slots):
    """The places of a private data set. `holdout`: None where there is no private hold-out, or nothing bounds it."""

    train: PartSlots
    holdout: PartSlots | None = None


class Shape(Resource):
    """Public sizes: jobs are planned with them. On private data they come from the declared count and fraction.

    `slots`: at most so many units, and records, of each part are registered. It is null for public data, and for data
    registered before there were slots: their jobs compute twice the declared number and 64.
    """

    records_train: int
    records_holdout: int
    features: int
    outputs: int
    sparse: bool
    slots: Slots | None = None


class CheckedDataset(Resource):
    """What a registration would answer. Nothing is stored.

    `privacy` holds the resolved cap and order; `shape` the public sizes that jobs would be planned with. An exact count
    of records becomes public once it is declared; `suggested_records` is a rounded one. `suggested_slots` have a margin
    over what the file holds (null for public data); better ones are known without it.
    """

    name: str
    privacy: dict[str, Any]
    shape: dict[str, Any]
    read: Read
    suggested_records: int
    suggested_slots: Slots | None = None
    warnings: list[str] = []


class Ledger(behaviour.Ledger):
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

    cap: Epsilon
    largest_cap: Epsilon
    accounts: dict[str, Account | None]
    epsilon_spent: Epsilon
    epsilon_spent_and_held: Epsilon
    epsilon_filter: Epsilon
    epsilon_remaining: Epsilon
    comparison: dict[str, Epsilon | None] | None = None
    entries: int
    head: str
    cap_version: str
    closed: bool = False
    collusion: str = "The cap holds even if all keys share what they learn."
    blocks: list[BlockBalance] | None = None
    remaining_block: str | None = None


class Reading(Resource):
    """How a file is read in the background, until a day after the end.

    `bytes_read` of `bytes` are read. `problem`: why it was rejected, as a registration is answered that is refused
    at once, without values of cells. `read` and `warnings`: as a registration answers them; null before the end. These
    three are for the owner alone, and null for admins.
    """

    bytes: int
    bytes_read: int
    problem: dict[str, Any] | None = None
    read: Read | None = None
    warnings: list[str] | None = None
    ended_at: str | None = None


class DataBlock(behaviour.DataBlock):
    """A block of a data set. All of it is public.

    `id` is its ledger's: `/v1/datasets/{id}/ledger` shows entries and proofs. `state`: "retired": nothing more is
    admitted on it. "behind": the database has lost some of its spending. `content_deleted_at`: when its files were
    deleted.
    """

    id: str
    label: str
    dataset: str
    shape: Shape
    ledger: Ledger | None = None
    state: str
    created_at: str
    content_deleted_at: str | None = None
    warnings: list[str] | None = None
    read: Read | None = None
    reading: Reading | None = None


class Dataset(behaviour.Dataset):
    """A data set. Everything but `content_sha256` is public.

    `privacy` holds the resolved cap (its δ) and order. `ledger` is null on public data, where no privacy is claimed.
    `content_sha256`, a function of the data without noise, is null for everyone but the data set's owner and admins.
    `state` is "behind" if the database has lost spent entries: nothing is admitted until it is restored. It is
    "retired" if its owner took it back before anything was held on it. `declaration` is the version of the
    declaration; jobs keep the version that they were priced with. `content_deleted_at`: when its files were deleted;
    its ledger stays. `access` is what the calling key may do; `max_epsilon_per_job` is the owner's policy for it (null:
    the cap alone). `reading`: what its owner is told, for a day, of a file that was read in the background.
    `governance`: who answers for the data, and what jobs must say of their use.
    """

    id: str
    name: str
    owner: str
    format: str
    task: dict[str, Any]
    features: dict[str, Any]
    privacy: dict[str, Any]
    holdout: dict[str, Any] | None = None
    shape: Shape
    content_hmac: str | None = None
    content_sha256: str | None = None
    ledger: Ledger | None = None
    created_at: str
    access: str
    max_epsilon_per_job: float | None = None
    state: str
    content_deleted_at: str | None = None
    declaration: int
    reading: Reading | None = None
    governance: dict[str, Any] | None = None
    warnings: list[str] | None = None


class ErasureNote(Resource):
    """What was erased of a data set, the models that were made with it, and what that means for one person."""

    dataset: str
    name: str
    unit: str
    erased: list[dict[str, Any]] = []
    models: list[dict[str, Any]] = []
    meaning: list[str] = []


class GrantTerms(Resource):
    """Replaces the key's earlier grant with all its terms.

    `max_epsilon_per_job`: the owner's policy for this key; a job that costs more is refused (409 `policy-exceeded`),
    and nothing is consumed. It bounds each job, not their sum. Null: the cap alone. From `ends_at` on the grant gives
    nothing. `purpose` and `permit`, of `train`, are filled into every job under it, which may name no others. `persons`
    use the key.
    """

    ends_at: str | None = None
    purpose: str | None = None
    permit: str | None = None
    persons: list[str] = []
    access: str
    max_epsilon_per_job: float | None = None


class Grant(Resource):
    """A grant, with the name and role of its key."""

    dataset_id: str
    key_id: str
    key_name: str
    key_role: str
    access: str
    max_epsilon_per_job: float | None = None
    ends_at: str | None = None
    purpose: str | None = None
    permit: str | None = None
    persons: list[str] = []
    created_at: str
    created_by: str
    replaced: GrantTerms | None = None


class SpentPart(Resource):
    """What was spent on an account, and its share of the budgets of all blocks together."""

    amount: int
    share: float


class KeySpending(Resource):
    """What the jobs and charges of a key spent, whoever posted them.

    `key_name` is null for callers who may not read it. `budgets`: the budgets within the cap that the caller sees and
    the key shares. `charges` counts jobs (a study is one) and charges of other systems, each once, however many blocks
    it read. `holdout` is null without a private hold-out.
    """

    key_id: str
    key_name: str | None = None
    budgets: list[str] = []
    charges: int
    train: SpentPart
    holdout: SpentPart | None = None


class LedgerEntry(Resource):
    """One entry. `hash` is the SHA-256 of all other members, as canonical JSON."""

    version: int
    dataset_id: str
    seq: int
    kind: str
    job_id: str | None = None
    train: int
    holdout: int
    train_released: int
    holdout_released: int
    once: str | None = None
    actor: str
    memo: dict[str, Any]
    created_at: str
    prev_hash: str
    hash: str


class Persons(Resource):
    """The persons of whom two decide together on a data set, each with that person's keys; empty: one is enough."""

    persons: dict[str, Any]


class ReadingProgress(Resource):
    """How far a data set's file is read. `reading` is null for who is not told of it, and a day after the end."""

    state: str
    reading: Reading | None = None


class RegisteredDataset(Dataset):
    """The response to the owner who registers. `read` and `warnings` describe the file's content and
    are not stored.
    """

    read: Read | None = None
    warnings: list[str] = []


class RedeclaredDataset(RegisteredDataset):
    """The response to the owner who declares anew: an exact count becomes public, and `suggested_records` is a rounded
    one. With `dry_run`, the data set as it stays. `read` and `suggested_records` are null where the data set has grown
    and its own block is gone, and for an admin who is not its owner. `slots` are those of the new version;
    `default_slots` it would have without declared ones. Both are public numbers.
    """

    content_hmac: str
    state: str = "ready"
    declaration: int = 1
    suggested_records: int | None = None
    slots: Slots | None = None
    default_slots: Slots | None = None


class Spending(Resource):
    """Who spent what, the largest share first. Amounts are in `unit`, which add up.

    `blocks`: the labels of the blocks that are summed, retired ones too; null for a data set that never grew, and where
    a block is named by its id.
    """

    dataset: str
    unit: str
    blocks: list[str] | None = None
    items: list[KeySpending] = []


class Upload(Resource):
    """An upload in pieces. `offset` bytes of `size` have arrived; at `expires_at` it is deleted if no more arrive."""

    id: str
    size: int
    offset: int
    expires_at: str | None = None


class Verification(Resource):
    """The last verification: the relay makes one in full each day, and goes on from it when one is asked for; null if
    it has made none.

    `entries` and `head` are the ledger's now, `checked_entries` and `checked_head` those that were verified at
    `checked_at`: if the two differ, `stale` is true. `first_bad_entry` is null if the chain fits, even if the account's
    row is wrong. `problem` names the fault. `queued`: a verification was asked for and has not begun.

    `went_on_after`: how many entries it took over from an earlier verification, and did not read again; 0: it read all
    of them. `in_full_at`: when the last verification that read all of them began. Both are null if the release before
    made it.
    """

    valid: bool | None = None
    entries: int
    head: str
    first_bad_entry: int | None = None
    problem: str | None = None
    heads: int
    checked_at: str | None = None
    checked_entries: int | None = None
    checked_head: str | None = None
    went_on_after: int | None = None
    in_full_at: str | None = None
    stale: bool
    queued: bool
