"""Appends blocks: checks and stores a file at once, or keeps a large one for the background (app.datasets.reader).

Either way the same steps: the file is parsed under the data set's declaration, compared with all blocks (`examine`),
and stored in one transaction in which the data set is as it was compared (`enter`).
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.orm import Session

from app.audit import record as audit
from app.budgets.service import copy_to
from app.datasets import blocks, duplicates, quota, readings, repository, service, storage
from app.datasets.blocks import Changed, Growing
from app.datasets.declaring import Declared
from app.datasets.parsing import Parsers
from app.datasets.service import Content, New
from app.datasets.sources import Arrived
from app.db.engine import Database
from app.db.models import Account, Dataset, DatasetReading
from app.grants import service as grants
from app.keys.service import Caller
from app.ledger import accounts, behind, budgets
from app.ledger.blocks import lead
from app.ledger.transparency.heads import Head, Heads
from app.settings import Settings
from app.storage.parts import Published
from core.contracts.dataset_spec import Cap, DatasetSpec
from core.ids import new_id

Recorded = dict[str, Head | None]  # by data set: what was recorded outside the database


def append(
    db: Database,
    settings: Settings,
    parsers: Parsers,
    caller: Caller,
    to: Growing,
    label: str,
    arrived: Arrived,
    folder: Path,
) -> Declared:
    """Checks and stores a block, and opens its account with the data set's cap.

    Args:
        to: what `blocks.growing` answered.
        arrived: with the data set's declaration, and the block's number of records.
        folder: as `service.register` takes it.

    Raises:
        InvalidRequest: the file cannot be used.
        Conflict: `quota-exceeded`; as `examine` and `enter`.
        Unavailable: the units of a block cannot be read.
        LimitError: as `service.register`.
    """
    with db.read() as session:
        blocks.check_room(session, to.id, label)
    service.check_files(arrived.spec, storage.names(folder))
    spec = arrived.spec.model_copy(update={"path": None, "upload": None})
    earlier, after = (
        duplicates.compares_earlier_hashes(db, settings, to.owner_key),
        blocks.after(db, settings, to, folder),
    )
    content = service.read(settings, parsers, spec, folder, after=after, earlier_hashes=earlier)
    recorded = examine(db, settings, to, spec, content)
    dataset_id = new_id("ds")
    with service.published(settings, dataset_id, content) as kept, db.write() as session:
        repository.take_turns(session)
        quota.reserve(session, settings, to.owner_key, arrived.new_bytes, arrived.new_bytes)
        grants.require(session, caller, to.id, "own")
        new = New(dataset_id, to.owner_key, spec, to.block(label))
        return enter(session, settings, to, new, content, kept, recorded)


def accept(
    db: Database, settings: Settings, caller: Caller, to: Growing, label: str, arrived: Arrived, folder: Path
) -> DatasetReading:
    """Keeps a large block's file, to be read in the background in its owner's name.

    Raises:
        InvalidRequest: the file is missing.
        Conflict: `duplicate-label`, `quota-exceeded`; `wrong-state`: there are too many blocks.
    """
    service.check_files(arrived.spec, arrived.sources.keys())
    with db.write() as session:
        repository.take_turns(session)
        quota.reserve(session, settings, to.owner_key, arrived.new_bytes, arrived.new_bytes)
        grants.require(session, caller, to.id, "own")
        blocks.check_room(session, to.id, label)
        spec = arrived.spec.model_copy(update={"path": None, "upload": None})
        row = readings.begin(session, settings, to.owner_key, spec, arrived, folder, to.block(label))
        audit.record(session, "block.reading", row.id)  # whatever is in the file
        return row


def examine(db: Database, settings: Settings, to: Growing, spec: DatasetSpec, content: Content) -> Recorded:
    """Compares what was read with the data set and all its blocks. Returns the heads recorded outside the database.

    Raises:
        InvalidRequest: it has more records than slots, or records of another width.
        Conflict: `duplicate-content`: the file has units of another block; told to the owner alone. `ledger-behind`: a
            ledger is behind its record, or the database has lost a data set of this owner.
        Unavailable: the units of a block cannot be read.
    """
    heads = Heads.of(settings)
    blocks.check_count(spec, content)
    blocks.check_width(to, content)
    duplicates.check_forgotten(db, settings, to.owner_key, content.known_as)
    if lost := behind.forgotten(db, heads, to.owner_key):
        raise behind.refusal(f"the database has lost {lost}, which may be a block of it")
    recorded = {each: behind.read_recorded(heads, each) for each in to.family}
    blocks.check_units(db, settings, to, content)
    return recorded


def enter(
    session: Session,
    settings: Settings,
    to: Growing,
    new: New,
    content: Content,
    kept: Published,
    recorded: Recorded,
) -> Declared:
    """Writes the block, its account with the cap as it is now, and its budgets. `repository.take_turns` comes first.

    Args:
        recorded: what `examine` answered about `to`.

    Raises:
        Changed: another block was appended, or the declaration changed, since; as `blocks.check_after`.
        Conflict: `duplicate-label`; `wrong-state`: the data set does not grow any more; `ledger-behind`.
    """
    # Against changes of the cap, the declaration and the content; admissions wait for the end, and see all of it.
    row = session.get_one(Dataset, to.id, with_for_update={"key_share": True}, populate_existing=True)
    accounts.lock(session, to.id)  # against a join
    blocks.check_grows(session, row)
    if new.block is not None:
        blocks.check_room(session, to.id, new.block.label, new.dataset_id)
    if row.declaration != to.declaration or tuple(each.id for each in blocks.family(session, to.id)) != to.family:
        raise Changed()
    blocks.check_after(session, to, content)
    for each, head in recorded.items():
        behind.require_current(session, head, each)
    of = New(new.dataset_id, new.owner_key, _capped(new.spec, lead(session, to.id)), new.block)
    made = service.store(session, settings, of, content, kept)
    for found in budgets.newest_of(session, list(to.family)):
        copy_to(session, found, accounts.account_of(session, made.dataset.id))
    return made


def _capped(spec: DatasetSpec, account: Account) -> DatasetSpec:
    """The declaration with the cap as it is now."""
    cap = Cap(epsilon=account.cap_epsilon, delta=account.cap_delta)
    return spec.model_copy(update={"privacy": spec.privacy.model_copy(update={"cap": cap})})
