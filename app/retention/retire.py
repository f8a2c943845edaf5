"""Retires a data set that nothing was ever held on, so that its owner can register the content anew.

A second registration of private content is a second budget, unless the first one can never be spent. So retirement is
final and is an entry of the ledger: it closes the account, on which every hold is conditional, and it is recorded
outside the database, so that a restored backup does not open it again. A registration of the same content waits for
that record (app.datasets.service).
"""

from __future__ import annotations

import secrets
from contextlib import suppress

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.audit import record as audit
from app.datasets.growth import labelled
from app.datasets.repository import has_blocks, uses
from app.db.database import Database
from app.db.models import Account, Dataset, Job, LedgerEntry
from app.grants import service as grants
from app.keys.service import Caller
from app.ledger import accounts, behind, joining
from app.ledger.block_accounts import ledgers_of, paying
from app.ledger.transparency.heads import Heads
from app.retention.service import mark_deleted, remove_content
from app.settings import Settings
from core.errors import Conflict
from core.ids import now

LONGEST_NAME = 80  # of what is kept of the name: the whole has at most 100 characters


def retire(db: Database, settings: Settings, caller: Caller, dataset: str) -> str:
    """Closes a data set for good, deletes its files and frees its name. Returns its id.

    Raises:
        NotFound, Forbidden: only its owner and admins may.
        Conflict: `wrong-state`: something was held on it once, a job uses it, or its ledger is closed. `ledger-behind`:
            the database may have lost what was held.
    """
    heads = Heads.of(settings)
    with db.read() as session:
        dataset_id = grants.require(session, caller, dataset, "own").id
    recorded = behind.read_recorded(heads, dataset_id)
    with db.write() as session:
        grants.require(session, caller, dataset_id, "own")
        # The whole lock: the name is a key, and an admission whose job refers to this row would deadlock with a
        # weaker one once the name changes.
        row = session.get_one(Dataset, dataset_id, with_for_update=True, populate_existing=True)
        if row.retired_at is None:
            if has_blocks(session, dataset_id):
                raise Conflict("wrong-state", "this data set has blocks: retire them one by one, `first` is its own")
            behind.require_current(session, recorded, dataset_id)
            _close(session, dataset_id, caller.id)
            mark_deleted(session, dataset_id)
            _rename(row)
            audit.record(session, "dataset.retired", dataset_id)
    behind.record_soon(db, heads, dataset_id)
    remove_content(db, settings, dataset_id)
    return dataset_id


def retire_block(db: Database, settings: Settings, caller: Caller, dataset: str, label: str) -> str:
    """Closes a block for good: nothing more is admitted on it, and its files go once its last job has ended.

    It frees nothing. What was spent stays spent, and its units stay known: no record may come back in another block,
    and its people's records count for ever.

    Raises:
        NotFound, Forbidden: only its data set's owner and admins may; there is no such block.
        Conflict: `ledger-behind`: the database may have lost its spending. `wrong-state`: its ledger was joined.
    """
    heads = Heads.of(settings)
    with db.read() as session:
        block_id = labelled(session, grants.require(session, caller, dataset, "own").id, label).id
        ledgers = sorted(ledgers_of(session, block_id))
    recorded = {each: behind.read_recorded(heads, each) for each in ledgers}
    with db.write() as session:
        owner = labelled(session, grants.require(session, caller, dataset, "own").id, label)
        # As at an append: the two take turns, and a block that is appended now is compared with this one's units.
        # In the order of ids and before accounts, as admissions lock them.
        for dataset_id in sorted({owner.parent_id or owner.id, *ledgers}):
            session.get_one(Dataset, dataset_id, with_for_update={"key_share": True})
        for dataset_id in ledgers:
            behind.require_current(session, recorded[dataset_id], dataset_id)
            accounts.lock(session, dataset_id)
        account = paying(session, block_id)
        if account.joined_into not in (None, accounts.RETIRED):
            raise Conflict("wrong-state", accounts.closed_because(account))
        if account.joined_into is None:
            joining.close(session, account, accounts.RETIRED, caller.id, "retired by its owner")
            audit.record(session, "block.retired", block_id)
        is_over = False
        with suppress(Conflict):  # else a sweep deletes its content once its last job has ended
            is_over = mark_deleted(session, block_id)
    for dataset_id in ledgers:
        behind.record_soon(db, heads, dataset_id)
    if is_over:
        remove_content(db, settings, block_id)
    return block_id


def _close(session: Session, dataset_id: str, actor: str) -> None:
    """Closes the ledger, if there is one, under the locks that an admission and a join take."""
    accounts.lock(session, dataset_id)
    hold = select(LedgerEntry.seq).where(
        LedgerEntry.dataset_id == dataset_id, LedgerEntry.kind.in_(("hold", "post", "void"))
    )
    used = select(Job.id).where(uses(dataset_id))
    if session.scalar(hold.limit(1)) is not None or session.scalar(used.limit(1)) is not None:
        raise Conflict("wrong-state", "a job was admitted on this data set: change its declaration instead")
    account = session.get(Account, dataset_id, populate_existing=True)
    if account is None:
        return
    if account.joined_into is not None:
        raise Conflict("wrong-state", accounts.closed_because(account))
    joining.close(session, account, accounts.RETIRED, actor, "retired by its owner")


def _rename(dataset: Dataset) -> None:
    """Frees the name for the registration that replaces this one."""
    dataset.retired_at = now()
    name = f"{dataset.name[:LONGEST_NAME]}-retired-{secrets.token_hex(4)}"
    dataset.name, dataset.spec = name, dataset.spec | {"name": name}
