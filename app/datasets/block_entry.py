"""Compares a block with its data set, and writes it."""

from __future__ import annotations

from sqlalchemy.orm import Session

from app.datasets import duplicates, growth
from app.datasets.declaring import Declared
from app.datasets.growth import Changed, Growing
from app.datasets.moving import follow
from app.datasets.parsed import Content
from app.datasets.storing import New, store
from app.db.database import Database
from app.db.models import Account, Dataset
from app.ledger import accounts, behind
from app.ledger.block_accounts import family_of, lead
from app.ledger.transparency.heads import Head, Heads
from app.settings import Settings
from app.storage.parts import Published
from core.contracts.dataset_spec import Cap, DatasetSpec

Recorded = dict[str, Head | None]  # by data set: what was recorded outside the database


def examine(db: Database, settings: Settings, to: Growing, spec: DatasetSpec, content: Content) -> Recorded:
    """Compares what was read with the data set and all its blocks. Returns the heads recorded outside the database.

    Raises:
        InvalidRequest: it has more records than slots, or records of another width.
        Conflict: `duplicate-content`: the file has units of another block; told to the owner alone. `ledger-behind`: a
            ledger is behind its record, or the database has lost a data set of this owner.
        Unavailable: the units of a block cannot be read.
    """
    heads = Heads.of(settings)
    growth.check_count(spec, content)
    growth.check_width(to, content)
    duplicates.check_forgotten(db, settings, to.owner_key, content.known_as)
    if lost := behind.forgotten(db, heads, to.owner_key):
        raise behind.refusal(f"the database has lost {lost}, which may be a block of it")
    with db.read() as session:
        ledgers = family_of(session, to.id)
    recorded = {each: behind.read_recorded(heads, each) for each in ledgers}
    growth.check_units(db, settings, to, content)
    return recorded


def enter(
    session: Session,
    settings: Settings,
    to: Growing,
    new: New,
    content: Content,
    published_parts: Published,
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
    growth.check_grows(session, row)
    if new.block is not None:
        growth.check_room(session, to.id, new.block.label, new.dataset_id)
    if row.declaration != to.declaration or tuple(each.id for each in growth.family(session, to.id)) != to.family:
        raise Changed()
    growth.check_after(session, to, content)
    for dataset_id, head in recorded.items():
        behind.require_current(session, head, dataset_id)
    block = New(new.dataset_id, new.owner_key, _capped(new.spec, lead(session, to.id)), new.block)
    stored = store(session, settings, block, content, published_parts)
    follow(session, to.id, stored.dataset, new.owner_key)
    return stored


def _capped(spec: DatasetSpec, account: Account) -> DatasetSpec:
    """The declaration with the cap as it is now."""
    cap = Cap(epsilon=account.cap_epsilon, delta=account.whole_delta or account.cap_delta)
    return spec.model_copy(update={"privacy": spec.privacy.model_copy(update={"cap": cap})})
