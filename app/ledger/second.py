"""A cap divided between two filters: a `gdp` ledger and an `rdp` one of the same records (decision 53).

The second ledger is a row of `datasets`, like a block's (decision 25): chain, heads, checkpoints, verification, budgets
and restored backups work by its id. It has no records of its own: `pays_for` names the row whose records it is of. A
job or a charge pays on one of the two, by what it does and not by what is left: a public choice that its caller knows.
"""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.models import Account, Dataset
from app.ledger import accounts, memos
from app.ledger.accounts import Opening
from core.contracts.blocks import FIRST
from core.contracts.dataset_spec import DatasetSpec, SplitHoldout
from core.contracts.filters import FilterName, divided
from core.contracts.stored import PartFiles
from core.ids import new_id

# Of a second ledger's label. No block's label has a comma.
SUFFIX = ", any mechanism"


def open_ledgers(session: Session, dataset: Dataset, spec: DatasetSpec) -> Account | None:
    """Opens the ledger of a data set or block, and by its plan a second one. Returns the first; None for public data.

    Args:
        spec: with the cap as it is now.
    """
    cap, privacy = spec.privacy.cap, spec.privacy
    if cap is None or cap.delta is None:
        return None
    has_holdout, parts = isinstance(spec.holdout, SplitHoldout), divided(privacy.plan, cap.epsilon, cap.delta)

    def terms(name: FilterName, part: tuple[float, float]) -> Opening:
        enforced = accounts.filter_for(name, privacy.order if name == "rdp" else None)
        return Opening(enforced, *part, has_holdout, dataset.owner_key)

    if parts is None:
        return accounts.open_on(session, dataset.id, terms(privacy.filter, (cap.epsilon, cap.delta)))
    of = memos.PartOf(epsilon=cap.epsilon, delta=cap.delta, share=parts.share, records_of=dataset.id)
    first = accounts.open_on(session, dataset.id, replace(terms("gdp", parts.gdp), part_of=of))
    beside, rest = _beside(dataset), of.model_copy(update={"share": 1.0 - parts.share})
    session.add(beside)
    session.flush()
    accounts.open_on(session, beside.id, replace(terms("rdp", parts.rdp), part_of=rest))
    return first


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


def records_of(session: Session, ledger: str) -> Dataset:
    """The data set or block whose records a ledger is of."""
    row = session.get_one(Dataset, ledger)
    return row if row.pays_for is None else session.get_one(Dataset, row.pays_for)


def ledgers_of(session: Session, dataset_id: str) -> list[str]:
    """The ledgers of the records of one data set or block: its own, and a second one if there is one."""
    return [dataset_id, *session.scalars(select(Dataset.id).where(Dataset.pays_for == dataset_id))]


def whole_cap(session: Session, account: Account) -> tuple[float, float] | None:
    """(ε, δ) of the cap that a ledger has a part of, as it is now; None if it has all of its cap."""
    if account.share is None:
        return None
    ids = ledgers_of(session, records_of(session, account.dataset_id).id)
    parts = [accounts.account_of(session, each) for each in ids]
    return sum(each.cap_epsilon for each in parts), sum(each.cap_delta for each in parts)


def part_of_cap(account: Account, epsilon: float) -> float:
    """A ledger's part of an ε of its data set. The parts add up to it exactly: see `divided`."""
    if account.share is None:
        return epsilon
    return epsilon * account.share if account.filter == "gdp" else epsilon - epsilon * (1.0 - account.share)
