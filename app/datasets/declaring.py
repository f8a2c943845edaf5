"""A new version of a data set's declaration. Jobs keep the version that they were priced with
(app.db.declared_version).

The stored records, the split and the account never change. A count is checked against the stored records as at the
registration: it fits the slots. Only the owner learns the outcome.

The declaration of a data set that has grown is that of all its blocks, but for `records`, which counts its own block's.
It outlives that block: where `first` is gone, all but `records` may still change, and nothing is counted.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.audit import record as audit
from app.datasets.for_owner import ForOwner
from app.datasets.parsing import Parsers
from app.datasets.recounting import counted, counts_of, sizes_of, warnings_of
from app.datasets.repository import check_there
from app.datasets.sizes import default_slots_of, slots_warnings
from app.db.database import Database
from app.db.models import Account, Dataset, Declaration
from app.grants import service as grants
from app.keys.service import Caller
from app.ledger import accounts, behind
from app.ledger.block_accounts import family_of, ledgers_of
from app.ledger.transparency.heads import Heads
from app.settings import Settings
from core.contracts.dataset_spec import DatasetSpec
from core.contracts.redeclaration import Redeclaration, amended
from core.contracts.slots import Slots
from core.contracts.stored_documents import Counts
from core.errors import Conflict, InvalidRequest
from core.ids import now


@dataclass(frozen=True)
class Findings:
    """What the records say about a declaration.

    Attributes:
        counts: None where the records are gone.
    """

    counts: Counts | None
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Declared:
    """A data set and its account, with what its content says."""

    dataset: Dataset
    account: Account | None
    findings: ForOwner[Findings]


@dataclass(frozen=True)
class Redeclared(Declared):
    """A data set under its new declaration.

    Attributes:
        slots: of the new declaration; None of public data, and of one that was registered before there were slots.
        default_slots: those that it would have if none were declared.
    """

    slots: Slots | None
    default_slots: Slots | None


def redeclare(
    db: Database, settings: Settings, parsers: Parsers, caller: Caller, dataset: str, redeclaration: Redeclaration
) -> Redeclared:
    """Replaces a declaration by its next version; with `dry_run`, only tells what it would say.

    Returns:
        The data set, with what its stored records say about the new version; without counts where they are gone.

    Raises:
        NotFound, Forbidden: only its owner and admins may.
        InvalidRequest: nothing changes, or stored records do not fit the new version, or `records` are gone.
        Conflict: `content-deleted`; `wrong-state`: its ledger is closed, or another version came first. Of a data set
            that has grown, these are about all of its blocks. `ledger-behind`: the database may have lost a version
            that jobs were priced with.
        LimitError: counting took more memory or time than is allowed, or other files are being read (503).
    """
    heads = Heads.of(settings)
    with db.read() as session:
        dataset_row = grants.require(session, caller, dataset, "own")
        is_there = _is_open(session, dataset_row)
        version, spec, shape = dataset_row.declaration, DatasetSpec.model_validate(dataset_row.spec), dataset_row.shape
        stored, dataset_id, owner_key = dataset_row.parts, dataset_row.id, dataset_row.owner_key
        recorded = {each: behind.read_recorded(heads, each) for each in ledgers_of(session, dataset_id)}
    with db.read() as session:
        for member_id, head in recorded.items():
            behind.require_current(session, head, member_id)
    wanted = amended(spec, redeclaration)
    if wanted == spec and not (redeclaration.dry_run or (redeclaration.counts and shape.slots is None)):
        raise InvalidRequest.at("", "this is what is declared already: nothing would change")
    counts, warnings = None, list[str]()
    if is_there:
        recount = counted(settings, parsers, dataset_id, stored)
        counts = counts_of(wanted, recount)
        try:
            sizes = sizes_of(wanted, shape, recount if redeclaration.counts else None)
        except InvalidRequest as refused:
            raise ForOwner(owner_key, refused).told_to(caller) or refused_without_count(refused) from None
        warnings = [*warnings_of(wanted, counts), *slots_warnings(wanted, sizes)]
    elif redeclaration.counts:
        member = "slots" if redeclaration.records is None else "records"
        detail = f"the block `first`, whose records this counts, was retired or deleted: leave `{member}` out"
        raise InvalidRequest.at(f"/{member}", detail)
    else:
        sizes = shape.model_copy(update={"outputs": wanted.task.outputs})
    with db.write() as session:
        row = session.get_one(Dataset, dataset_id, with_for_update={"key_share": True}, populate_existing=True)
        now_there = _is_open(session, grants.require(session, caller, dataset_id, "own"))
        for member_id, head in recorded.items():
            behind.require_current(session, head, member_id)
        if row.declaration != version or now_there != is_there:
            raise Conflict("wrong-state", "the data set was changed at this moment: look at it and ask again")
        if not redeclaration.dry_run:
            old = {"spec": row.spec, "shape": row.shape}
            session.add(Declaration(dataset_id=row.id, version=version, replaced_at=now(), **old))
            row.spec, row.shape, row.declaration = wanted.model_dump(mode="json"), sizes, version + 1
            audit.record(session, "dataset.redeclared", row.id)
        session.flush()
        account = session.get(Account, dataset_id)
        findings = ForOwner(row.owner_key, Findings(counts, tuple(warnings)))
        return Redeclared(row, account, findings, sizes.slots, default_slots_of(wanted))


def refused_without_count(refused: InvalidRequest) -> InvalidRequest:
    """The same refusal for an admin who is not the owner: where, and not by how many records."""
    (first, *_) = refused.members["errors"]
    return InvalidRequest.at(first["pointer"], "this does not fit the stored records: the owner alone is told why")


def _is_open(session: Session, dataset: Dataset) -> bool:
    """True if the data set's own content is there and its ledger open; False if only other blocks' are.

    Raises:
        Conflict: `content-deleted`, `wrong-state`: nothing of it is.
    """
    try:
        _check_open(session, dataset)
    except Conflict:
        relatives = (each for each in family_of(session, dataset.id) if each != dataset.id)
        for other in relatives:
            with suppress(Conflict):
                _check_open(session, session.get_one(Dataset, other, populate_existing=True))
                return False
        raise
    return True


def _check_open(session: Session, block: Dataset) -> None:
    check_there(block)
    account = session.get(Account, ledgers_of(session, block.id)[-1], populate_existing=True)
    if account is not None and account.joined_into is not None:
        raise Conflict("wrong-state", accounts.closed_because(account))
