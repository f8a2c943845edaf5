"""Ledgers that move from `gdp` to `rdp`: all that was spent is carried to a second one, for good (decision 53).

A second ledger is a row of `datasets`, like a block's (decision 25): chain, heads, checkpoints, verification, budgets
and restored backups work by its id. It has no records of its own: `pays_for` names the row whose records it is of. It
does not exist before the move, and the first one is closed by it: one ledger is open at a time.
"""

from __future__ import annotations

from sqlalchemy.orm import Session

from app.db.models import Account, Dataset
from app.ledger import accounts, joining, memos
from app.ledger.accounts import Opening
from core.contracts.blocks import FIRST
from core.contracts.dataset_spec import DatasetSpec, SplitHoldout
from core.contracts.filters import delta_of_each, may_move
from core.contracts.stored import PartFiles
from core.errors import BudgetError, Conflict
from core.ids import new_id
from core.privacy.filters import Filter, filter_of

SUFFIX = ", any mechanism"  # of a second ledger's label; no block's label has a comma
REASON = "from here on jobs and charges that the gdp filter cannot count are admitted"


def open_first(session: Session, dataset: Dataset, spec: DatasetSpec) -> Account | None:
    """Opens the ledger that a data set or block begins with; None for public data.

    Args:
        spec: with the cap as it is now.
    """
    cap, privacy = spec.privacy.cap, spec.privacy
    if cap is None or cap.delta is None:
        return None
    delta, whole = delta_of_each(privacy.plan, cap.delta), cap.delta if may_move(privacy.plan) else None
    enforced = filter_of(privacy.filter, privacy.order if privacy.filter == "rdp" else None)
    has_holdout = isinstance(spec.holdout, SplitHoldout)
    terms = Opening(enforced, cap.epsilon, delta, has_holdout, dataset.owner_key, whole)
    return accounts.open_on(session, dataset.id, terms)


def second_filter(dataset: Dataset) -> Filter:
    """The filter to which a data set moves. Its order is as old as the data set: it depends on no result."""
    return filter_of("rdp", DatasetSpec.model_validate(dataset.spec).privacy.order)


def move(session: Session, dataset: Dataset, actor: str) -> Account:
    """Moves the open ledger of one data set or block, under the locks of a change of all blocks. Returns the new one.

    What is held is carried as spent; running jobs settle on the first ledger, which admits nothing more.

    Raises:
        Conflict: `wrong-state`: it is closed, or of another plan, or what was spent under `gdp` is more than `rdp`
            allows in all.
    """
    first = accounts.account_of(session, dataset.id)
    if first.joined_into is not None or first.whole_delta is None:
        raise Conflict("wrong-state", accounts.closed_because(first))
    enforced, row = second_filter(dataset), _beside(dataset)
    session.add(row)
    session.flush()
    delta, has_holdout = first.whole_delta - first.cap_delta, first.holdout_budget > 0
    terms = Opening(enforced, first.cap_epsilon, delta, has_holdout, actor, first.whole_delta)
    accounts.open_on(session, row.id, terms)
    amounts = carried(first, enforced)
    if any(amounts):
        try:
            joining.spend(session, row.id, dataset.id, amounts, actor, memos.Joined(joined=dataset.id))
        except BudgetError:
            raise Conflict("wrong-state", TOO_MUCH) from None
    joining.close(session, first, row.id, actor, REASON)
    return accounts.account_of(session, row.id)


TOO_MUCH = (
    "more was spent and held on this data set's exact ledger than one for any mechanism allows under its cap: it "
    "admits full-batch jobs alone"
)


def carried(first: Account, to: Filter) -> tuple[int, int]:
    """What a `gdp` ledger spent and holds, in units of another filter, rounded up; by account, as the split stays."""
    taken = (first.train_spent + first.train_held, first.holdout_spent + first.holdout_held)
    found = [accounts.filter_for(first.filter, first.order).carried(each, to) for each in taken]
    train, holdout = (each or 0 for each in found)
    if any(amount and not each for amount, each in zip(taken, found, strict=True)):
        raise Conflict("wrong-state", "no bound is known for this change of filter")
    return train, holdout


def budget_after(first: Account, to: Filter) -> int:
    """The budget under the filter to which a ledger moves: all of ε, at the rest of δ."""
    delta = first.cap_delta if first.whole_delta is None else first.whole_delta - first.cap_delta
    return to.budget(first.cap_epsilon, delta)


def left_after(first: Account, to: Filter) -> dict[str, int]:
    """What a ledger that moves now could still hold: its budgets under the other filter, less what is carried."""
    budget, (train, holdout) = budget_after(first, to), carried(first, to)
    there = first.joined_into is None
    return {
        "train": max(0, budget - train) if there else 0,
        "holdout": max(0, budget - holdout) if there and first.holdout_budget else 0,
    }


def _beside(dataset: Dataset) -> Dataset:
    label = f"{dataset.label or FIRST}{SUFFIX}"
    whole = dataset.name if dataset.label is None else dataset.name.removesuffix(f"/{dataset.label}")
    return Dataset(
        id=new_id("ds"),
        name=f"{whole}/{label}",
        parent_id=dataset.parent_id or dataset.id,
        label=label,
        pays_for=dataset.id,
        owner_key=dataset.owner_key,
        sensitivity=dataset.sensitivity,
        spec=dataset.spec,
        shape=dataset.shape,
        parts=PartFiles(),
        content_sha256="",
        content_hmac=dataset.content_hmac,
        created_at=dataset.created_at,
        declaration=dataset.declaration,
    )
