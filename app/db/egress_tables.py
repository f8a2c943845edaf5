"""The tables of egresses, and of the persons who approve them and larger caps."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from app.db.table_base import Base, Documents
from core.contracts.approvals import Act


class DatasetPerson(Base):
    """A key of a person who decides with others on a data set: by its primary key a key belongs to one person."""

    __tablename__ = "dataset_persons"

    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"), primary_key=True)
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"), primary_key=True)
    person: Mapped[str]


class Approval(Base):
    """An act that takes effect when two persons have agreed."""

    __tablename__ = "approvals"
    __table_args__ = (
        CheckConstraint("status in ('open', 'agreed', 'denied')", name="status"),
        Index("ix_approvals_dataset_created", "dataset_id", "created_at", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"))
    act: Mapped[Act] = mapped_column(Documents(Act))  # type: ignore[arg-type]  # a union
    asked_by: Mapped[str] = mapped_column(ForeignKey("api_keys.id"))
    status: Mapped[str]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]  # nobody may agree after this
    decided_at: Mapped[datetime | None]
    decided_by: Mapped[str | None]


class Agreement(Base):
    """One person's word: by its primary key each person has one."""

    __tablename__ = "agreements"

    approval_id: Mapped[str] = mapped_column(ForeignKey("approvals.id"), primary_key=True)
    person: Mapped[str] = mapped_column(primary_key=True)
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"))
    at: Mapped[datetime]


class Egress(Base):
    """A signed folder of a job: asked for, approved where two persons are needed, then made by the relay.

    Stored are its papers, all files but the model's, which lie with the job: a download puts both into one archive.
    """

    __tablename__ = "egresses"
    __table_args__ = (UniqueConstraint("job_id", "number"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    number: Mapped[int]  # among the job's egresses, from 1
    recipient: Mapped[str]
    reason: Mapped[str] = mapped_column(Text)
    asked_by: Mapped[str] = mapped_column(ForeignKey("api_keys.id"))
    asked_at: Mapped[datetime]
    approval_id: Mapped[str | None] = mapped_column(ForeignKey("approvals.id"))  # null: one person was enough
    made_at: Mapped[datetime | None]
    problem: Mapped[str | None]  # why it cannot be made
    path: Mapped[str | None] = mapped_column(Text)  # the papers, a ZIP archive under the storage root
    sha256: Mapped[str | None]  # of the whole archive, as it is sent
    size_bytes: Mapped[int | None]
    tries: Mapped[int] = mapped_column(default=0, server_default="0")  # to make it; the last one ends it
    next_try_at: Mapped[datetime | None]  # null: at once
    deleted_at: Mapped[datetime | None]  # when the job's files, and these papers, were deleted
    papers_sha256: Mapped[str | None]
    papers_bytes: Mapped[int | None]
