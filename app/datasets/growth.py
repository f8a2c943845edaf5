"""A data set grows by blocks: uploads with the data set's declaration.

A block is a row of `datasets` with a parent, and has an account of its own with the data set's cap. A record, or a
user's sequence, is in one block, retired and deleted ones included: a file that shares one is refused. People with up
to k records may come back: k counts those of all blocks (docs/theorems.md, "People who return"). Either way the block
that spent most bounds the loss of each unit, whichever blocks jobs read: the data set's guarantee is its cap.

A refusal is told to the owner alone, and leaves nothing behind that others see: no block, no label, no audit entry. A
visible refusal would be an un-noised function of one unit (decision 25).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.datasets import unit_files
from app.datasets.parsed import After, Content
from app.datasets.sizes import ON_TOP, check_fits, declared_slots
from app.datasets.storing import Block
from app.db.database import Database
from app.db.models import Account, Dataset, DatasetReading
from app.grants import service as grants
from app.keys.service import Caller
from app.ledger import accounts, block_accounts, repository
from app.ledger.block_accounts import ledgers_of, paying
from app.secrets import load_secrets, secret_id
from app.settings import Settings
from app.storage.seals import Seals
from core.contracts.blocks import MOST_BLOCKS, UNITS, BlockSpec
from core.contracts.dataset_spec import DatasetSpec, LastItemHoldout, PublicHoldout
from core.contracts.stored_documents import Shape
from core.errors import Conflict, Forbidden, InvalidRequest, NotFound, Unavailable
from core.parts.damage import DataDamagedError


class Changed(Conflict):
    """Another block, or another declaration, came between the comparison and the transaction."""

    def __init__(self) -> None:
        super().__init__("wrong-state", "the data set was changed at this moment: send the block again")


class Stale(Changed):
    """What the file was read after has changed: it has to be read again."""


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
    shape: Shape
    family: tuple[str, ...]

    def block(self, label: str) -> Block:
        """A block to be, under this label."""
        return Block(self.id, label, f"{self.name}/{label}")


OWNER_ALONE = "only the key that registered this data set may append to it, as a refusal tells of its other blocks"


def growing(db: Database, caller: Caller, dataset: str) -> Growing:
    """The data set to which a caller may append.

    Only its owner may: that a file is refused, and for which records, tells of the people in the other blocks.

    Raises:
        NotFound, Forbidden: the caller is not its owner.
        InvalidRequest: it is public, or of a kind that does not grow.
        Conflict: `wrong-state`: it was retired, or its ledger was joined to another one; it was registered by an
            earlier version, or its content was deleted before it had blocks: its units are unknown.
    """
    with db.read() as session:
        row = grants.require(session, caller, dataset, "own")
        if caller.id != row.owner_key:
            raise Forbidden(OWNER_ALONE)
        return _growing(session, row)


def still_growing(db: Database, dataset_id: str) -> Growing:
    """A data set to which its owner has sent a block, as it is now. Raises as `growing`."""
    with db.read() as session:
        return _growing(session, session.get_one(Dataset, dataset_id))


def _growing(session: Session, row: Dataset) -> Growing:
    check_grows(session, row)
    spec, members = DatasetSpec.model_validate(row.spec), family(session, row.id)
    return Growing(
        row.id, row.owner_key, row.name, spec, row.declaration, row.shape, tuple(each.id for each in members)
    )


def declaration(to: Growing, block_spec: BlockSpec) -> DatasetSpec:
    """The declaration of a block: its data set's, with its own number of records, slots and file.

    Raises:
        InvalidRequest: as `declared_slots`.
    """
    privacy = to.spec.privacy.model_copy(update={"records": block_spec.records, "slots": block_spec.slots})
    files = {name: getattr(block_spec, name) for name in ("path", "upload", "edges_path", "edges_upload")}
    spec = to.spec.model_copy(update={"privacy": privacy} | files)
    declared_slots(spec, ON_TOP)
    return spec


def family(session: Session, dataset_id: str) -> list[Dataset]:
    """A data set's blocks in the order of their arrival: itself, as the first, and those that were appended."""
    members_query = (Dataset.parent_id == dataset_id, Dataset.pays_for.is_(None))
    appended = select(Dataset).where(*members_query).order_by(Dataset.created_at, Dataset.id)
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
    member = next((each for each in members if block_accounts.label_of(each) == label), None)
    if member is None:
        raise NotFound("there is no such block")
    return member


def check_count(spec: DatasetSpec, content: Content) -> None:
    """Refuses a block with more records than its slots, which those of several blocks add up to.

    Raises:
        InvalidRequest: as `check_fits`; told to the owner alone.
    """
    slots = declared_slots(spec, ON_TOP)
    if slots is None:
        raise TypeError("blocks of private data have slots")
    check_fits(spec, slots, content.parsed.stored, ON_TOP)


def check_width(to: Growing, content: Content) -> None:
    """Refuses a file whose records no model of the data set could read: jobs join the records of all blocks.

    Raises:
        InvalidRequest: at `/file`; told to the owner alone.
    """
    names, shape = ("features", "outputs", "sparse"), to.shape
    wanted = (shape.features, shape.outputs, shape.sparse)
    for name, width, needed in zip(names, content.parsed.widths, wanted, strict=True):
        if width != needed:
            detail = f"its records have {width} {name}, those of the data set {needed}"
            raise InvalidRequest.at("/file", detail)


def after(db: Database, settings: Settings, to: Growing, folder: Path) -> After:
    """What a file of this data set comes after: with the people of all earlier blocks, if they may come back.

    Public facts decide: a bound on a person's records, files that count them, and no charge of another system, which
    need not shrink with a person's records.

    Args:
        folder: a staging folder, for copies.

    Raises:
        Unavailable: the units of a block cannot be read.
    """
    from core.parts import unit_digests  # noqa: PLC0415 - numpy, for this alone

    if to.spec.privacy.max_records_per_user is None:
        return After()
    with db.read() as session:
        if _is_charged_by_others(session, to.family):
            return After(to.family)
        members = family(session, to.id)[: len(to.family)]
    try:
        if not all(
            unit_digests.is_of_people(unit_files.find(settings, each.id, each.units_sha256 or "")) for each in members
        ):
            return After(to.family)  # of an earlier version
        _check_keys(members, load_secrets(settings, "data_hmac_key"))
        people = (unit_files.on_disk(settings, each.id, each.units_sha256 or "", folder) for each in members)
        return After(to.family, tuple(people))
    except DataDamagedError as error:
        raise Unavailable(f"{error}: without them no block can be compared") from None


def check_after(session: Session, to: Growing, content: Content) -> None:
    """Checks, in the transaction that enters a block, that what it was read after is still all that counts.

    Raises:
        Stale: another block came first, whose people count and have the numbers of this block's; or another system's
            charge.
    """
    came_after = content.after
    if came_after.family not in ((), to.family) or (came_after.people and _is_charged_by_others(session, to.family)):
        raise Stale()


def _is_charged_by_others(session: Session, members: Sequence[str]) -> bool:
    ledgers = [ledger for each in members for ledger in ledgers_of(session, each)]
    return any(repository.has_other_spending(session, each) for each in ledgers)


def _check_keys(members: Iterable[Dataset], chain: Sequence[bytes]) -> None:
    if any(each.units_key != secret_id(chain[-1]) for each in members):
        raise Unavailable(
            "the units of a block were hashed under a data key that is no longer the oldest of the key file: "
            "the operator must put it back"
        )


def check_units(db: Database, settings: Settings, to: Growing, content: Content) -> None:
    """Refuses a file that has units of another block; where people may come back, they are counted instead.

    Raises:
        Conflict: `duplicate-content`, with how many it shares with each.
        Unavailable: the units of a block cannot be read: without them nothing is known.
    """
    from core.parts import unit_digests  # noqa: PLC0415 - numpy, for this alone

    if content.after.people:
        return
    sha256 = content.parsed.units_sha256
    if sha256 is None:
        raise TypeError("blocks of private data have units")
    try:
        unit_file = Seals(settings).readable(content.folder / UNITS)
        mine = unit_digests.Saved(unit_file, sha256)
        with db.read() as session:
            members = family(session, to.id)
        _check_keys(members, content.chain)
        shared = {}
        for member in members:
            sha256 = member.units_sha256 or ""
            if count := unit_digests.shared(
                mine, unit_digests.Saved(unit_files.find(settings, member.id, sha256), sha256)
            ):
                shared[block_accounts.label_of(member)] = count
    except DataDamagedError as error:
        raise Unavailable(f"{error}: without them no block can be compared") from None
    if shared:
        is_users = to.spec.privacy.unit == "user"
        noun = "users" if is_users else "records"
        so = "all records of a user must be in one block here: split users, not months; " if is_users else ""
        listed = ", ".join(f"{count} of {label!r}" for label, count in shared.items())
        raise Conflict(
            "duplicate-content",
            f"the file has {noun} of other blocks ({listed}): a second block would be a second budget for them; "
            f"{so}leave them out. Nobody but you is told",
            dataset=to.id,
            shared=shared,
        )


def check_room(session: Session, parent_id: str, label: str, dataset_id: str | None = None) -> None:
    """Checks that a data set may have one more block, of this label.

    Args:
        dataset_id: the block that asks: its own reading holds the label for it.

    Raises:
        Conflict: `duplicate-label`: a block has the label, or will have it once its file is read. `wrong-state`: there
            are too many.
    """
    members = family(session, parent_id)
    if len(members) >= MOST_BLOCKS:
        raise Conflict("wrong-state", f"a data set has at most {MOST_BLOCKS} blocks: register a new one")
    reading_labels = select(DatasetReading.label).where(
        DatasetReading.parent_id == parent_id,
        DatasetReading.state == "reading",
        DatasetReading.id != (dataset_id or ""),
    )
    if label in {*(block_accounts.label_of(each) for each in members), *session.scalars(reading_labels)}:
        raise Conflict("duplicate-label", f"a block {label!r} exists already: choose another label", label=label)


def check_grows(session: Session, row: Dataset) -> None:
    """Checks that a data set may grow.

    Raises:
        InvalidRequest, Conflict: as `growing`.
    """
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
    account = paying(session, row.id)
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
