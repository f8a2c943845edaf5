"""A data set of the plan "mixed" moves to `rdp` before the first job or charge that its `gdp` ledger cannot count.

All its blocks move in one transaction: a job pays the same on each. The move stays, also if the job is refused after
it. It is a function of ledgers and requests, so of nothing private.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.datasets.growth import family
from app.db.database import Database
from app.db.models import Dataset
from app.keys.service import Caller
from app.ledger import accounts, behind, block_accounts, second, sub_accounts
from app.ledger.sub_account_rows import copy_to
from app.ledger.transparency.heads import Heads
from core.contracts.dataset_spec import DatasetSpec
from core.errors import Conflict
from core.privacy.filters import Filter
from core.privacy.prices import Units


def move(db: Database, heads: Heads, caller: Caller, dataset_id: str, charge: Units) -> None:
    """Moves all open blocks of a data set, if a charge then fits on one of them; nothing if they have moved already.

    Raises:
        Conflict: `wrong-state`: more was spent than `rdp` allows in all, or the charge would not fit; `ledger-behind`.
    """
    with db.read() as session:
        ledgers = block_accounts.family_of(session, dataset_id)
    recorded = {each: behind.read_recorded(heads, each) for each in ledgers}
    with db.write() as session:
        for member_id in block_accounts.lock_family(session, dataset_id):
            behind.require_current(session, recorded.get(member_id), member_id)
        members = family(session, dataset_id)
        open_members = [row for row in members if _is_open(session, row)]
        if not open_members:
            return
        to = second.second_filter(open_members[0])
        if DatasetSpec.model_validate(open_members[0].spec).privacy.max_records_per_user is not None:
            _require_retired_fit(session, members, to)
        left = [second.left_after(accounts.account_of(session, row.id), to) for row in open_members]
        if not any(Units.model_validate(each).covers(charge) for each in left):
            _, richest = max((each["train"], row.id) for each, row in zip(left, open_members, strict=True))
            account = accounts.account_of(session, richest)
            raise Conflict("wrong-state", second.too_much(account, to, (charge.train, charge.holdout)))
        moved = [second.move(session, row, caller.id) for row in open_members]
    for member_id in moved:
        behind.record_soon(db, heads, member_id)


def have_moved(db: Database, ledgers: Sequence[str]) -> bool:
    """True if one of these ledgers has moved to another one."""
    with db.read() as session:
        return session.scalar(select(Dataset.id).where(Dataset.pays_for.in_(ledgers)).limit(1)) is not None


def follow(session: Session, dataset_id: str, block: Dataset, actor: str) -> None:
    """Lets a new block be where its data set is: moved if that has moved, and with its budgets."""
    members = block_accounts.family_of(session, dataset_id)
    if any(session.get_one(Dataset, each).pays_for is not None for each in members):
        second.move(session, block, actor)
    for share in sub_accounts.newest_of(session, members):
        copy_to(session, share, block_accounts.paying(session, block.id))


def _require_retired_fit(session: Session, members: list[Dataset], to: Filter) -> None:
    """Checks that what closed blocks paid is within their budgets in the other currency too: a person of several
    blocks is covered by the largest that one of them paid (decision 37), and that must be counted in one currency.

    Raises:
        Conflict: `wrong-state`.
    """
    for row in members:
        account = accounts.account_of(session, row.id)
        is_retired = account.joined_into == accounts.RETIRED
        if is_retired and max(second.carried(account, to)) > second.budget_after(account, to):
            raise Conflict("wrong-state", second.too_much(account, to))


def _is_open(session: Session, row: Dataset) -> bool:
    return accounts.account_of(session, row.id).joined_into is None
