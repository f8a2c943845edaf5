"""A data set grows by blocks: uploads with the data set's declaration, and with units that no other block has.

A block is a row of `datasets` with a parent, and has an account of its own with the data set's cap. It is accepted only
if none of its units (records, or users) is in another block, retired and deleted ones included. So a unit meets one
filter, whichever blocks jobs read: the data set's guarantee is its cap.

A refusal is told to the owner alone, and leaves nothing behind that others see: no block, no label, no audit entry. A
visible refusal would be an un-noised function of one unit (decision 25).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.budgets.service import copy_to
from app.contracts.blocks import MOST_BLOCKS, UNITS, BlockSpec
from app.contracts.dataset_spec import Cap, DatasetSpec, LastItemHoldout, PublicHoldout
from app.datasets import duplicates, quota, repository, service, storage, unit_files
from app.datasets.parsing import Parsers
from app.datasets.service import Content, New, Registered
from app.db.engine import Database
from app.db.models import Account, Dataset
from app.errors import Conflict, InvalidRequest, NotFound, Unavailable
from app.formats.damage import DataDamagedError
from app.grants import service as grants
from app.ids import new_id
from app.keys.service import Caller
from app.ledger import accounts, behind, blocks, budgets
from app.ledger.heads import Heads
from app.seals import Seals
from app.secrets import secret_id
from app.settings import Settings


@dataclass(frozen=True)
class Growing:
    """A data set that may grow, as it was when a block was sent.

    Attributes:
        family: the ids of its blocks, its own first.
    """

    id: str
    owner_key: str
    name: str
    spec: DatasetSpec
    declaration: int
    shape: dict[str, Any]
    family: tuple[str, ...]


def growing(db: Database, caller: Caller, dataset: str) -> Growing:
    """The data set to which a caller may append.

    Raises:
        NotFound, Forbidden: only its owner and admins may.
        InvalidRequest: it is public, or of a kind that does not grow.
        Conflict: `wrong-state`: it was retired, or its ledger was joined to another one; it was registered by an
            earlier version, or its content was deleted before it had blocks: its units are unknown.
    """
    with db.read() as session:
        row = grants.require(session, caller, dataset, "own")
        _check_grows(session, row)
        members = family(session, row.id)
        spec = DatasetSpec.model_validate(row.spec)
        ids = tuple(each.id for each in members)
        return Growing(row.id, row.owner_key, row.name, spec, row.declaration, row.shape, ids)


def declaration(to: Growing, asked: BlockSpec) -> DatasetSpec:
    """The declaration of a block: its data set's, with its own number of records and its own file.

    Raises:
        InvalidRequest: the hold-out would leave one side without a record.
    """
    service.split_sizes(to.spec, asked.records, "/records")
    privacy = to.spec.privacy.model_copy(update={"records": asked.records})
    return to.spec.model_copy(update={"privacy": privacy, "path": asked.path, "upload": asked.upload})


def family(session: Session, dataset_id: str) -> list[Dataset]:
    """A data set's blocks in the order of their arrival: itself, as the first, and those that were appended."""
    appended = select(Dataset).where(Dataset.parent_id == dataset_id).order_by(Dataset.created_at, Dataset.id)
    first = session.get_one(Dataset, dataset_id, populate_existing=True)
    return [first, *session.scalars(appended.execution_options(populate_existing=True))]


def labelled(session: Session, dataset_id: str, label: str) -> Dataset:
    """A block by its label.

    Raises:
        NotFound: this data set has no such block.
        Conflict: `wrong-state`: it never grew.
    """
    members = family(session, dataset_id)
    if len(members) == 1:
        raise Conflict("wrong-state", "this data set has no blocks: retire the data set, or delete its content")
    found = next((each for each in members if blocks.label_of(each) == label), None)
    if found is None:
        raise NotFound("there is no such block")
    return found


def append(
    db: Database,
    settings: Settings,
    parsers: Parsers,
    caller: Caller,
    to: Growing,
    label: str,
    spec: DatasetSpec,
    folder: Path,
    new_bytes: int,
) -> Registered:
    """Checks and stores a block, and opens its account with the data set's cap.

    Args:
        to: what `growing` answered.
        spec: the data set's declaration, with the block's number of records.
        folder, new_bytes: as `service.register` takes them.

    Raises:
        InvalidRequest: the file cannot be used.
        Conflict: `duplicate-label`. `duplicate-content`: the file has units of another block; told to the owner alone.
            `ledger-behind`: a ledger is behind its record, or the database has lost a data set of this owner.
            `wrong-state`: another block was appended, or the declaration changed, meanwhile. `quota-exceeded`.
        Unavailable: the units of a block cannot be read.
        LimitError: as `service.register`.
    """
    heads = Heads.of(settings)
    if len(to.family) == MOST_BLOCKS:
        raise Conflict("wrong-state", f"a data set has at most {MOST_BLOCKS} blocks: register a new one")
    with db.read() as session:
        check_label(session, to.id, label)
    service.check_files(spec, storage.names(folder))
    spec = spec.model_copy(update={"path": None, "upload": None})
    content = service.read(settings, parsers, spec, folder)
    check_count(spec, content)
    check_width(to, content)
    duplicates.check_forgotten(db, settings, to.owner_key, content.known_as)
    if lost := behind.forgotten(db, heads, to.owner_key):
        raise behind.refusal(f"the database has lost {lost}, which may be a block of it")
    recorded = {each: behind.read_recorded(heads, each) for each in to.family}
    check_units(db, settings, to, content, folder)
    block = service.Block(to.id, label, f"{to.name}/{label}")
    dataset_id = new_id("ds")
    with service.published(settings, dataset_id, content, folder) as kept, db.write() as session:
        repository.take_turns(session)
        quota.reserve(session, settings, to.owner_key, new_bytes)
        # Against changes of the cap, the declaration and the content; admissions wait for the end, and see all of it.
        row = session.get_one(Dataset, to.id, with_for_update={"key_share": True}, populate_existing=True)
        accounts.lock(session, to.id)  # against a join
        _check_grows(session, grants.require(session, caller, to.id, "own"))
        check_label(session, to.id, label)
        if row.declaration != to.declaration or tuple(each.id for each in family(session, to.id)) != to.family:
            raise Conflict("wrong-state", "the data set was changed at this moment: send the block again")
        for each, head in recorded.items():
            behind.require_current(session, head, each)
        new = New(dataset_id, to.owner_key, _capped(spec, blocks.lead(session, to.id)), block)
        made = service.store(session, settings, new, content, kept, folder)
        for found in budgets.all_of(session, to.id):
            copy_to(session, found, accounts.account_of(session, made.dataset.id))
        return made


def check_count(spec: DatasetSpec, content: Content) -> None:
    """Refuses a block with more than twice the declared records: jobs on several blocks pay for sums that round up to
    their bounds, and only bounds without a constant add up.

    Raises:
        InvalidRequest: at `/records`; told to the owner alone.
    """
    declared, found = spec.privacy.records, content.parsed["counts"]["train"]
    if declared is None or found > 2 * service.split_sizes(spec, declared, "/records")[0]:
        detail = f"the file holds more than twice as many as declared: {found} to train on; declare more"
        raise InvalidRequest.at("/records", detail)


def check_width(to: Growing, content: Content) -> None:
    """Refuses a file whose records no model of the data set could read: jobs join the records of all blocks.

    Raises:
        InvalidRequest: at `/file`; told to the owner alone.
    """
    for name in ("features", "outputs", "sparse"):
        if content.parsed[name] != to.shape[name]:
            detail = f"its records have {content.parsed[name]} {name}, those of the data set {to.shape[name]}"
            raise InvalidRequest.at("/file", detail)


def check_units(db: Database, settings: Settings, to: Growing, content: Content, folder: Path) -> None:
    """Refuses a file that has units of another block.

    Raises:
        Conflict: `duplicate-content`, with how many it shares with each.
        Unavailable: the units of a block cannot be read: without them nothing is known.
    """
    from app.formats import units  # noqa: PLC0415 - numpy, for this alone
    from app.formats.digests import common  # noqa: PLC0415

    try:
        file = folder / storage.PARTS / UNITS
        seal = Seals(settings).key_of(file)
        mine = units.load(file, content.parsed["units_sha256"], None if seal is None else seal.key)
        with db.read() as session:
            members = family(session, to.id)
        shared = {}
        for each in members:
            if each.units_key != secret_id(content.chain[-1]):
                raise Unavailable(
                    "the units of a block were hashed under a data key that is no longer the oldest of the key file: "
                    "the operator must put it back"
                )
            theirs = unit_files.load(settings, each.id, each.units_sha256 or "")
            if count := common(mine, theirs):
                shared[blocks.label_of(each)] = count
    except DataDamagedError as error:
        raise Unavailable(f"{error}: without them no block can be compared") from None
    if shared:
        noun = "users" if to.spec.privacy.unit == "user" else "records"
        named = ", ".join(f"{count} of {label!r}" for label, count in shared.items())
        raise Conflict(
            "duplicate-content",
            f"the file has {noun} of other blocks ({named}): a second block would be a second budget for them; leave "
            "them out. Nobody but you is told",
            dataset=to.id,
            shared=shared,
        )


def check_label(session: Session, parent_id: str, label: str) -> None:
    """Raises Conflict if a block of this data set has the label."""
    if label in {blocks.label_of(each) for each in family(session, parent_id)}:
        raise Conflict("duplicate-label", f"a block {label!r} exists already: choose another label", label=label)


def _capped(spec: DatasetSpec, account: Account) -> DatasetSpec:
    """The declaration with the cap as it is now."""
    cap = Cap(epsilon=account.cap_epsilon, delta=account.cap_delta)
    return spec.model_copy(update={"privacy": spec.privacy.model_copy(update={"cap": cap})})


def _check_grows(session: Session, row: Dataset) -> None:
    spec = DatasetSpec.model_validate(row.spec)
    if row.parent_id is not None:
        raise InvalidRequest.at("/path/dataset_id", "this is a block: append to its data set")
    if row.sensitivity == "public":
        raise InvalidRequest.at("/path/dataset_id", "public data have no ledger: register a data set of its own")
    if isinstance(spec.holdout, PublicHoldout | LastItemHoldout):
        raise InvalidRequest.at(
            "/path/dataset_id", "only data sets without a hold-out, or with one that is split off, grow by blocks"
        )
    if row.retired_at is not None:
        raise Conflict("wrong-state", "this data set was retired: register a new one")
    account = accounts.account_of(session, row.id)
    if account.joined_into not in (None, accounts.RETIRED):
        raise Conflict("wrong-state", accounts.closed_because(account))
    if session.scalar(select(Account.dataset_id).where(Account.joined_into == row.id).limit(1)) is not None:
        raise Conflict(
            "wrong-state",
            "another data set with the same records was joined to this ledger, and its records are in no block here: "
            "register a new data set",
        )
    if row.units_sha256 is None or (row.content_deleted_at is not None and len(family(session, row.id)) == 1):
        raise Conflict(
            "wrong-state",
            "the units of this data set are not known, so that no block can be compared with it: it was registered by "
            "an earlier version, or its content was deleted; register a new one",
        )
