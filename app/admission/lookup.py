"""What rows and ledgers say of the data that a job reads: its public facts, its blocks, what is left.

`look_up` is one read with all that most admissions need: the data set, the key's grant, the account, an earlier job of
this Idempotency-Key. It answers what app.grants and `facts_for` answer one by one; a contract test compares them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, bindparam, exists, func, or_, select
from sqlalchemy.orm import Session

from app.admission.facts import BlockFacts, DatasetFacts
from app.datasets.repository import check_there, has_blocks
from app.db.models import Account, Dataset, Job, table_of
from app.grants import service as grants
from app.grants.service import DATA, GIVEN, LOOKED_AT, Access, access_in, chosen, given_to
from app.keys.service import Caller
from app.ledger import sub_accounts
from app.ledger.accounts import account_of, remaining_of
from app.ledger.block_accounts import label_of
from app.ledger.second import left_after, second_filter
from app.lifecycle.queue.presence import MOST_GPUS
from core.contracts.blocks import ALL, FIRST, BlockChoice
from core.contracts.dataset_spec import DatasetSpec
from core.errors import Conflict, InvalidRequest
from core.privacy.filters import Filter
from core.privacy.prices import Units
from core.privacy.slot_numbers import slots_of

ACCOUNTS, BEFORE, APPENDED = table_of(Account), table_of(Job).alias("before"), DATA.alias("appended")
SECOND = DATA.alias("second")
# The ledger that pays: the one that a data set, or block, moved to, or else its own.
PAYING = func.coalesce(
    select(SECOND.c.id).where(SECOND.c.pays_for == DATA.c.id).correlate(DATA).scalar_subquery(), DATA.c.id
)
ACCOUNT: Select[Any] = (
    select(ACCOUNTS)
    .select_from(ACCOUNTS.join(DATA, ACCOUNTS.c.dataset_id == PAYING))
    .where(DATA.c.id == bindparam("dataset"))
)
# An open ledger of a data set whose first block is closed: all open ones count in one currency.
OPEN: Select[Any] = (
    select(ACCOUNTS)
    .select_from(ACCOUNTS.join(DATA, ACCOUNTS.c.dataset_id == DATA.c.id))
    .where(or_(DATA.c.id == bindparam("dataset"), DATA.c.parent_id == bindparam("dataset")))
    .where(ACCOUNTS.c.joined_into.is_(None))
    .order_by(DATA.c.id)
    .limit(1)
)
LOOK_UP: Select[Any] = (
    select(
        *(DATA.c.id, DATA.c.name, DATA.c.spec, DATA.c.shape, DATA.c.declaration),
        or_(DATA.c.parent_id.is_not(None), exists().where(APPENDED.c.parent_id == DATA.c.id)).label("in_blocks"),
        *LOOKED_AT,
        *(ACCOUNTS.c.filter, ACCOUNTS.c.filter_order, ACCOUNTS.c.cap_delta),
        *(BEFORE.c.id.label("job"), BEFORE.c.request_sha256),
        MOST_GPUS.scalar_subquery().label("most_gpus"),
    )
    .select_from(
        DATA.outerjoin(GIVEN, given_to(bindparam("key")))
        .outerjoin(ACCOUNTS, ACCOUNTS.c.dataset_id == DATA.c.id)
        .outerjoin(BEFORE, and_(BEFORE.c.key_id == bindparam("key"), BEFORE.c.idempotency_key == bindparam("once")))
    )
    .where(or_(DATA.c.id == bindparam("dataset"), DATA.c.name == bindparam("dataset")))
)


@dataclass(frozen=True)
class LookedUp:
    """What an admission begins with.

    Attributes:
        access: the key's, which may be less than it needs.
        facts: the data set's; None if it grew by blocks, or is one: what a job reads of it takes more statements.
        before: an earlier job of this Idempotency-Key, with its request's digest as `request_sha256`.
        most_gpus: that a living worker runs one job on.
    """

    access: Access
    facts: DatasetFacts | None
    before: tuple[str, str] | None
    most_gpus: int


def look_up(
    connection: Connection, caller: Caller, dataset: str, idempotency_key: str, lease_s: float
) -> LookedUp | None:
    """Looks a data set up by its id or name; None if this key sees none.

    Args:
        lease_s: a worker that has not reported for so long is not alive.
    """
    parameters = {"key": caller.id, "dataset": dataset, "once": idempotency_key, "lease_s": lease_s}
    seen = [
        (row, access)
        for row in connection.execute(LOOK_UP, parameters)
        if (access := access_in(caller, row)) is not None
    ]
    if not seen:
        return None
    row, access = chosen(seen, dataset)
    facts = None if row.in_blocks else facts_of(row, row if row.filter is not None else None)
    return LookedUp(access, facts, None if row.job is None else (row.job, row.request_sha256), row.most_gpus)


def facts_for(
    session: Session, caller: Caller, dataset: Dataset, choice: BlockChoice, *, samples: bool = False
) -> DatasetFacts:
    """Reads the public facts of what a job reads: its data set, or the blocks that it names; for "all", all open ones.

    Args:
        samples: the job samples its batches, which may move the ledger (decision 53).

    Raises:
        InvalidRequest: it names a block that is not there or not open.
        Conflict: `content-deleted`: nothing is left to train on.
    """
    facts, block_choice = dataset_facts(session, dataset, samples=samples), None if choice == ALL else choice
    to = second_filter(dataset) if facts.moves else None
    blocks = blocks_of(session, dataset, caller.id, block_choice, to)
    if blocks is None:  # it never grew
        check_there(dataset)
        return without_blocks(facts, choice)
    if not blocks:
        _check_any(session, caller, dataset)
    if block_choice is None:
        return facts.on(blocks)
    by_label = {each.label: each for each in blocks}
    for place, label in enumerate(block_choice):
        if label not in by_label or label in block_choice[:place]:
            every = blocks_of(session, dataset, caller.id) or []
            still = ", ".join(each.label for each in every)
            problem = "is named twice" if label in by_label else f"is not open; open are {still}"
            raise InvalidRequest.at(f"/blocks/{place}", f"block {label!r} {problem}")
    return facts.on(by_label[label] for label in block_choice)


def _check_any(session: Session, caller: Caller, dataset: Dataset) -> None:
    """Raises Conflict if no block of a data set is open."""
    if not blocks_of(session, dataset, caller.id):
        raise Conflict("content-deleted", f"every block of {dataset.name!r} was retired or deleted")


def without_blocks(facts: DatasetFacts, choice: BlockChoice) -> DatasetFacts:
    """Returns the facts of a data set that never grew, if a job names no block of it.

    Raises:
        InvalidRequest: it does.
    """
    if choice not in (ALL, [FIRST]) or (choice != ALL and not facts.is_private):
        raise InvalidRequest.at("/blocks", "this data set has no blocks: leave `blocks` out")
    return facts


def side_facts(session: Session, caller: Caller, side: str | None) -> DatasetFacts | None:
    """Reads the facts of the public data set with the optimizer's side information; the key must be allowed to train
    on it.

    Raises:
        NotFound, Forbidden: as for the job's own data set.
    """
    if side is None:
        return None
    dataset, _ = grants.find(session, caller, side, "train")
    return dataset_facts(session, dataset)


def dataset_facts(session: Session, dataset: Dataset, *, samples: bool = False) -> DatasetFacts:
    """Reads the public facts of a data set. Arguments as in `facts_for`."""
    account = session.execute(ACCOUNT, {"dataset": dataset.id}).one_or_none()
    if account is not None and account.joined_into is not None:
        account = session.execute(OPEN, {"dataset": dataset.id}).one_or_none() or account
    facts = facts_of(dataset, account)
    if samples and account is not None and facts.filter == "gdp" and facts.spec.privacy.plan == "mixed":
        delta = account.whole_delta - account.cap_delta
        return replace(facts, filter="rdp", order=facts.spec.privacy.order, cap_delta=delta, moves=True)
    if account is not None and account.dataset_id != dataset.id:
        return replace(facts, pays_on=account.dataset_id)
    return facts


def facts_of(dataset: Dataset | Row[Any], account: Row[Any] | None) -> DatasetFacts:
    """The public facts in a data set's columns and its account's filter, order and δ."""
    return DatasetFacts(
        id=dataset.id,
        name=dataset.name,
        spec=DatasetSpec.model_validate(dataset.spec),
        records_train=dataset.shape.records_train,
        records_holdout=dataset.shape.records_holdout,
        features=dataset.shape.features,
        outputs=dataset.shape.outputs,
        filter=account.filter if account else None,
        order=account.filter_order if account else None,
        cap_delta=account.cap_delta if account else None,
        declaration=dataset.declaration,
        stated_slots=dataset.shape.slots,
    )


def remaining(session: Session, dataset_ids: Iterable[str], key_id: str) -> Units | None:
    """Returns the units that a key may still hold on both accounts of each of several data sets, within the cap and its
    own budget; None on public data."""
    rows = []
    for dataset_id in dataset_ids:
        account = session.get(Account, dataset_id)
        if account is None:
            return None
        rows.append(sub_accounts.with_own(remaining_of(account), sub_accounts.of_key(session, dataset_id, key_id)))
    return _least(rows)


def left_for(session: Session, facts: DatasetFacts, key_id: str) -> Units | None:
    """As `remaining`, on all that a job reads; of a ledger that moves before it, what is left after that."""
    if not facts.moves:
        return remaining(session, facts.reads, key_id)
    if facts.blocks:
        return _least([each.left.model_dump() for each in facts.blocks])
    dataset = session.get_one(Dataset, facts.id)
    return _least([left_after(account_of(session, facts.id), second_filter(dataset))])


def left_within(session: Session, dataset_ids: Iterable[str], key_id: str) -> Units | None:
    """Returns the units left of a key's own budget within the cap, on each of several data sets; None if the cap alone
    bounds it."""
    shares = (sub_accounts.of_key(session, each, key_id) for each in dataset_ids)
    return _least([sub_accounts.remaining_of(each) for each in shares if each is not None])


def _least(remainders: list[dict[str, int]]) -> Units | None:
    return (
        Units(**{part: min(each[part] for each in remainders) for part in sub_accounts.PARTS}) if remainders else None
    )


def blocks_of(
    session: Session,
    dataset: Dataset,
    key_id: str,
    labels: Collection[str] | None = None,
    to: Filter | None = None,
) -> list[BlockFacts] | None:
    """Reads the blocks of a data set that are open and have their content, in the order of their arrival; None if
    it never grew. The statements are as many for any number of blocks, and the rows are those of the blocks read.

    Args:
        labels: of those to read; None: all.
        to: the filter to which all of them will move.
    """
    if not has_blocks(session, dataset.id):
        return None
    rows = (
        select(Dataset, Account)
        .join(Account, Account.dataset_id == PAYING)
        .where(or_(Dataset.id == dataset.id, Dataset.parent_id == dataset.id), Dataset.pays_for.is_(None))
        .where(Account.joined_into.is_(None), Dataset.content_deleted_at.is_(None))
        .order_by(Dataset.parent_id.is_not(None), Dataset.created_at, Dataset.id)
    )
    if labels is not None:
        rows = rows.where(func.coalesce(Dataset.label, FIRST).in_(labels))
    rows_with_accounts = [(block, account) for block, account in session.execute(rows)]
    shares = sub_accounts.of_key_on(session, [account.dataset_id for _, account in rows_with_accounts], key_id)
    per_unit = DatasetSpec.model_validate(dataset.spec).privacy.max_records_per_user or 1
    return [
        BlockFacts(
            id=account.dataset_id,
            label=label_of(block),
            records_train=block.shape.records_train,
            records_holdout=block.shape.records_holdout,
            slots=slots_of(block.shape.slots, block.shape.records_train, per_unit),
            left=Units.model_validate(
                sub_accounts.with_own(remaining_of(account), shares.get(account.dataset_id))
                if to is None
                else left_after(account, to)
            ),
        )
        for block, account in rows_with_accounts
    ]
