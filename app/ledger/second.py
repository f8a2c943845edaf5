"""Ledgers that move from `gdp` to `rdp`: all that was spent is carried to a second one, for good (decisions 53, 62).

A second ledger is a row of `datasets`, like a block's (decision 25): chain, heads, checkpoints, verification, budgets
and restored backups work by its id. It has no records of its own: `pays_for` names the row whose records it is of. It
does not exist before the move, and the first one is closed by it: one ledger is open at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from app.audit import record as audit
from app.db.models import Account, Dataset, SubAccount
from app.ledger import accounts, joining, memos, sub_accounts
from app.ledger.accounts import Opening
from app.ledger.sub_account_rows import copy_to
from core.contracts.blocks import FIRST
from core.contracts.dataset_spec import DatasetSpec, SplitHoldout
from core.contracts.filter_names import delta_of_each, may_move
from core.contracts.stored_documents import PartFiles
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
    delta, whole_delta = delta_of_each(privacy.plan, cap.delta), cap.delta if may_move(privacy.plan) else None
    enforced = filter_of(privacy.filter, privacy.order if privacy.filter == "rdp" else None)
    has_holdout = isinstance(spec.holdout, SplitHoldout)
    terms = Opening(enforced, cap.epsilon, delta, has_holdout, dataset.owner_key, whole_delta)
    return accounts.open_on(session, dataset.id, terms)


def second_filter(dataset: Dataset) -> Filter:
    """The filter to which a data set moves. Its order is as old as the data set: it depends on no result."""
    return filter_of("rdp", DatasetSpec.model_validate(dataset.spec).privacy.order)


def move(session: Session, dataset: Dataset, actor: str, ledger: str | None = None) -> str:
    """Moves the open ledger of one data set or block with its budgets, under the locks of a change of all blocks.

    What is held is carried as spent; running jobs settle on the first ledger, which admits nothing more. A sub-account
    takes over what was spent and held within it, and where that is more than its budget now, all of that: nothing is
    left of it (decision 62).

    Args:
        ledger: the id of the one that a restored backup has forgotten.

    Returns:
        The id of the ledger that pays from now on.

    Raises:
        Conflict: `wrong-state`: it is closed, or of another plan, or what was spent under `gdp` is more than `rdp`
            allows in all.
    """
    account = _open_second(session, dataset, actor, ledger)
    parts = [(share, copy_to(session, share, account)) for share in sub_accounts.all_of(session, dataset.id)]
    _carry(session, (dataset.id, account.dataset_id), actor, parts)
    audit.record(session, "ledger.joined", dataset.id, dataset=account.dataset_id)
    return account.dataset_id


def _open_second(session: Session, dataset: Dataset, actor: str, ledger: str | None) -> Account:
    first = accounts.account_of(session, dataset.id)
    if first.joined_into is not None or first.whole_delta is None:
        raise Conflict("wrong-state", accounts.closed_because(first))
    enforced, row = second_filter(dataset), _beside(dataset, ledger or new_id("ds"))
    session.add(row)
    session.flush()
    delta, has_holdout = first.whole_delta - first.cap_delta, first.holdout_budget > 0
    terms = Opening(enforced, first.cap_epsilon, delta, has_holdout, actor, first.whole_delta)
    return accounts.open_on(session, row.id, terms)


def _carry(
    session: Session, ledgers: tuple[str, str], actor: str, parts: Sequence[tuple[SubAccount, SubAccount]]
) -> None:
    first, second = (accounts.account_of(session, each) for each in ledgers)
    enforced = accounts.filter_for(second.filter, second.order)
    amounts = carried(first, enforced)
    if any(amounts):
        from_filter = accounts.filter_for(first.filter, first.order)
        taken = [(copy, _in_units_of(enforced, from_filter, share)) for share, copy in parts]
        shares = [
            (copy, min(train, copy.train_budget), min(holdout, copy.holdout_budget)) for copy, (train, holdout) in taken
        ]
        within = [memos.CarriedWithin(budget=copy.id, train=each, holdout=other) for copy, each, other in shares]
        memo = memos.Joined(
            joined=first.dataset_id, within=tuple(each for each in within if each.train or each.holdout)
        )
        try:
            joining.spend(session, second.dataset_id, first.dataset_id, amounts, actor, memo)
        except BudgetError:
            raise Conflict("wrong-state", too_much(first, enforced)) from None
        for copy, *share in shares:
            copy.train_spent, copy.holdout_spent = share
        session.flush()
    joining.close(session, first, second.dataset_id, actor, REASON)


def too_much(first: Account, to: Filter, amounts: tuple[int, int] = (0, 0)) -> str:
    """Says which account lacks how much for a move, and what would do.

    Args:
        amounts: what a job or charge that is the reason for the move needs.
    """
    train, holdout = (have + need for have, need in zip(carried(first, to), amounts, strict=True))
    name, amount = ("training", train) if train >= holdout else ("hold-out", holdout)
    lowest = to.epsilon(amount, _delta_after(first))
    share = f"{-(-100 * amount // budget_after(first, to))} % of the {name} account of {first.dataset_id}"
    if not any(amounts):
        return (
            f"more was spent and held on this data set's exact ledger than one for any mechanism allows: {share}. "
            f"Raise the cap to about ε = {lowest:.6g} first; full-batch jobs are still admitted"
        )
    return (
        "this is the first job or charge here that the exact ledger cannot count, and with all that was spent already "
        f"it takes {share} under the filter `rdp`. The ledger stays as it is: raise the cap to about ε = {lowest:.6g}, "
        "or ask for less, or for full-batch jobs"
    )


def carried(first: Account, to: Filter) -> tuple[int, int]:
    """What a `gdp` ledger spent and holds, in units of another filter, rounded up; by account, as the split stays."""
    return _in_units_of(to, accounts.filter_for(first.filter, first.order), first)


def _in_units_of(to: Filter, from_filter: Filter, source: Account | SubAccount) -> tuple[int, int]:
    taken = (source.train_spent + source.train_held, source.holdout_spent + source.holdout_held)
    amounts = [from_filter.carried(each, to) for each in taken]
    if None in amounts:
        raise Conflict("wrong-state", "no bound is known for this change of filter")
    train, holdout = (each or 0 for each in amounts)
    return train, holdout


def budget_after(first: Account, to: Filter) -> int:
    """The budget under the filter to which a ledger moves: all of ε, at the rest of δ."""
    return to.budget(first.cap_epsilon, _delta_after(first))


def _delta_after(first: Account) -> float:
    return first.cap_delta if first.whole_delta is None else first.whole_delta - first.cap_delta


def left_after(first: Account, to: Filter) -> dict[str, int]:
    """What a ledger that moves now could still hold: its budgets under the other filter, less what is carried."""
    budget, (train, holdout) = budget_after(first, to), carried(first, to)
    is_open = first.joined_into is None
    return {
        "train": max(0, budget - train) if is_open else 0,
        "holdout": max(0, budget - holdout) if is_open and first.holdout_budget else 0,
    }


def _beside(dataset: Dataset, ledger: str) -> Dataset:
    label = f"{dataset.label or FIRST}{SUFFIX}"
    name = dataset.name if dataset.label is None else dataset.name.removesuffix(f"/{dataset.label}")
    return Dataset(
        id=ledger,
        name=f"{name}/{label}",
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
