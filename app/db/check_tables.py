"""The tables of what was found on ledgers and signed about them."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Text
from sqlalchemy.orm import Mapped, mapped_column

from app.db.table_base import Base


class LedgerCheck(Base):
    """The last findings on a data set's ledger, including ledgers that this database does not know."""

    __tablename__ = "ledger_checks"

    dataset_id: Mapped[str] = mapped_column(primary_key=True)
    # How it is behind the head recorded outside the database, by the last survey; null: it is not.
    behind: Mapped[str | None] = mapped_column(Text)
    noticed_at: Mapped[datetime | None]
    # The finding of the last verification; null: no fault, or no verification yet.
    problem: Mapped[str | None] = mapped_column(Text)
    entries: Mapped[int | None]
    checked_at: Mapped[datetime | None]
    head: Mapped[str | None]  # the account's, when it was verified
    first_bad_entry: Mapped[int | None]
    heads: Mapped[int | None]  # how many signed or recorded ones were compared
    requested_at: Mapped[datetime | None]  # when a verification was asked for that has not begun
    # How many entries were taken over from an earlier verification; 0: all were read.
    went_on_after: Mapped[int | None]
    in_full_at: Mapped[datetime | None]  # when the verification in full began that it is, or goes back to


class LedgerCheckpoint(Base):
    """The newest signed checkpoint of a data set's ledger, as a note, for its owner to keep elsewhere."""

    __tablename__ = "ledger_checkpoints"

    dataset_id: Mapped[str] = mapped_column(ForeignKey("accounts.dataset_id"), primary_key=True)
    size: Mapped[int]  # entries
    note: Mapped[str] = mapped_column(Text)
    signed_at: Mapped[datetime]


class DatasetTerms(Base):
    """The newest signed terms of a data set (app.ledger.signed_terms), and what they change with."""

    __tablename__ = "dataset_terms"

    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"), primary_key=True)
    envelope: Mapped[str] = mapped_column(Text)  # DSSE, as JSON
    key_id: Mapped[str]  # which key signed
    declaration: Mapped[int]
    blocks: Mapped[int]  # how many were appended
    grants_version: Mapped[int]


class LedgerTile(Base):
    """The root of 256 consecutive entries in a ledger's tree: a cache that a verification recomputes."""

    __tablename__ = "ledger_tiles"

    dataset_id: Mapped[str] = mapped_column(ForeignKey("accounts.dataset_id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    root: Mapped[str]


class SignedBatch(Base):
    """A log of what was signed (app.ledger.transparency.dates): its checkpoint, as a note with its cosignatures."""

    __tablename__ = "signed_batches"

    id: Mapped[str] = mapped_column(primary_key=True)
    size: Mapped[int]
    note: Mapped[str] = mapped_column(Text)
    signed_at: Mapped[datetime]
    cosigned: Mapped[bool] = mapped_column(index=True)  # by every witness that the service knew then


class SignedDigest(Base):
    """The SHA-256 of a signature and of what it is over. `batch`, `place`: where it stands; null: in no log yet."""

    __tablename__ = "signed_digests"

    digest: Mapped[str] = mapped_column(primary_key=True)
    batch: Mapped[str | None] = mapped_column(ForeignKey("signed_batches.id"), index=True)
    place: Mapped[int | None]
