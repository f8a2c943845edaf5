"""What a data set's statement says beside its ledgers, signed: who answers for the data, and who may use them for what.

    name, unit, blocks, governance, grants ──▶ `Terms`, signed ──▶ dataset_terms ──▶ statements (app.ledger.evidence)

The relay signs them as certificates are signed (app.ledger.transparency.attestations). The subject of each block's
ledger is its first entry, so that terms fit one ledger alone. Nothing here is computed from data.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import AwareDatetime, ConfigDict
from sqlalchemy import String, and_, bindparam, func, select
from sqlalchemy.orm import Session, aliased

from app.db.database import Database
from app.db.models import Account, Dataset, DatasetTerms, Grant, LedgerEntry
from app.ledger import repository
from app.ledger.block_accounts import family_of, label_of
from app.ledger.signer import Signer, sign_and_store
from app.ledger.transparency import attestations
from core.contracts.base import Document, Unit
from core.contracts.governance import Governance, Permit, Purpose
from core.errors import TransientError
from core.ids import rfc3339, whole_second

logger = logging.getLogger(__name__)
PREDICATE_TYPE = "https://scrimp.example.org/dataset-terms/v1"
BLOCK = aliased(Dataset)


class StatedBlock(Document):
    """A ledger of the data set: its own, or a block's."""

    id: str
    label: str


class StatedGrant(Document):
    """What a key may do, for what, and until when. The key's name and the persons who use it are not stated."""

    key: str
    access: Literal["view", "train", "charge"]
    purpose: Purpose | None
    permit: Permit | None
    ends_at: AwareDatetime | None

    @property
    def in_words(self) -> str:
        """The grant in one line."""
        words = [f"{self.key} may {self.access}", *([f"for {self.purpose}"] if self.purpose else [])]
        words += [f"permit {self.permit}"] if self.permit else []
        return ", ".join([*words, f"until {rfc3339(self.ends_at)}" if self.ends_at else "without an end"])


class Terms(Document):
    """What is signed of a data set at a time.

    Attributes:
        blocks: all of them, its own ledger first.
        governance: null where its owner declared none.
        grants: of other keys than its owner's, oldest first; ended ones too, until they are removed.
    """

    version: Literal[1] = 1
    dataset: str
    name: str
    unit: Unit
    blocks: tuple[StatedBlock, ...]
    governance: Governance | None
    grants: tuple[StatedGrant, ...]
    signed_at: str


class _Declared(Document):
    model_config = ConfigDict(extra="ignore")

    governance: Governance | None = None


_BLOCKS = select(func.count()).where(BLOCK.parent_id == Dataset.id).correlate(Dataset).scalar_subquery()
# What terms change with: equal numbers, equal terms.
STATES = (
    select(Dataset.id, Dataset.declaration, Dataset.grants_version, _BLOCKS.label("blocks"))
    .join(Account, Account.dataset_id == Dataset.id)
    .where(Dataset.parent_id.is_(None))
)
CURRENT = and_(
    DatasetTerms.dataset_id == Dataset.id,
    DatasetTerms.declaration == Dataset.declaration,
    DatasetTerms.blocks == _BLOCKS,
    DatasetTerms.grants_version == Dataset.grants_version,
)
CHANGED = STATES.outerjoin(DatasetTerms, and_(CURRENT, DatasetTerms.key_id == bindparam("key_id", type_=String))).where(
    DatasetTerms.dataset_id.is_(None)
)


def sign_due(db: Database, key: Signer, turn: Callable[[Sequence[str]], Iterable[str]] = iter) -> int:
    """Signs the terms that changed, or that another key signed; for the relay. Returns how many.

    One statement looks for them; the terms of an idle service cost nothing more. Those that change each time while they
    are signed wait for the next call.

    Args:
        turn: of the data sets that are due, those to sign for now; by default all.
    """
    key_id = attestations.key_id(key.public_key())
    with db.quick_read() as connection:
        waiting = list(connection.scalars(CHANGED, {"key_id": key_id}))
    signed = 0
    for dataset_id in turn(waiting):
        try:
            sign(db, dataset_id, key)
            signed += 1
        except TransientError as error:
            logger.warning("the terms of %s are not signed yet: %s", dataset_id, error)
    return signed


def sign(db: Database, dataset_id: str, key: Signer) -> None:
    """Signs and keeps the terms of a data set as they are.

    Raises:
        Unavailable, TransientError: as `sign_and_store`.
    """

    def draft() -> _Unsigned:
        with db.read() as session:
            return _drafted(session, dataset_id)

    sign_and_store(db, draft, key)


@dataclass(frozen=True)
class _Unsigned:
    """Terms that were read, and the numbers that change with them."""

    state: tuple[str, int, int, int]
    statement: attestations.Statement

    def signed(self, key: Signer) -> DatasetTerms:
        dataset_id, declaration, grants_version, blocks = self.state
        return DatasetTerms(
            dataset_id=dataset_id,
            envelope=attestations.seal(self.statement, key).model_dump_json(by_alias=True),
            key_id=attestations.key_id(key.public_key()),
            declaration=declaration,
            blocks=blocks,
            grants_version=grants_version,
        )

    def store(self, session: Session, signed: DatasetTerms) -> bool:
        # Locked: newer terms that another relay signs are not replaced by these.
        session.get_one(Dataset, signed.dataset_id, with_for_update={"key_share": True})
        if _state(session, signed.dataset_id) != self.state:
            return False
        session.merge(signed)
        attestations.keep(session, attestations.Envelope.model_validate_json(signed.envelope))
        return True


def _state(session: Session, dataset_id: str) -> tuple[str, int, int, int]:
    return tuple(session.execute(STATES.where(Dataset.id == dataset_id)).one())


def _drafted(session: Session, dataset_id: str) -> _Unsigned:
    dataset = session.get_one(Dataset, dataset_id)
    openings = (
        select(Dataset, LedgerEntry.hash)
        .join(LedgerEntry, and_(LedgerEntry.dataset_id == Dataset.id, LedgerEntry.seq == 1))
        .where(Dataset.id.in_(family_of(session, dataset_id)))
        .order_by(Dataset.parent_id.is_not(None), Dataset.created_at, Dataset.id)
    )
    opened = [(StatedBlock(id=row.id, label=label_of(row)), entry) for row, entry in session.execute(openings)]
    grants = select(Grant).where(Grant.dataset_id == dataset_id).order_by(Grant.created_at, Grant.key_id)
    terms = Terms(
        dataset=dataset.id,
        name=dataset.name,
        unit=repository.unit_of(dataset),
        blocks=tuple(block for block, _ in opened),
        governance=_Declared.model_validate(dataset.spec).governance,
        grants=tuple(
            StatedGrant(
                key=each.key_id, access=each.access, purpose=each.purpose, permit=each.permit, ends_at=each.ends_at
            )
            for each in session.scalars(grants)
        ),
        signed_at=rfc3339(whole_second()) or "",
    )
    subjects = {f"ledger {block.id}": entry for block, entry in opened}
    statement = attestations.about(subjects, PREDICATE_TYPE, terms.model_dump(mode="json"))
    return _Unsigned(_state(session, dataset_id), statement)


def envelope_of(session: Session, dataset_id: str) -> str | None:
    """The signed terms of a data set, or of a block's data set, as JSON text; None if none are signed yet."""
    dataset = session.get_one(Dataset, dataset_id)
    row = session.get(DatasetTerms, dataset.parent_id or dataset.id)
    return None if row is None else row.envelope


def terms_in(envelope: str) -> Terms:
    """The terms in an envelope of ours."""
    sealed = attestations.Envelope.model_validate_json(envelope)
    return Terms.model_validate(attestations.Statement.model_validate_json(base64.b64decode(sealed.payload)).predicate)
