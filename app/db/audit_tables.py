"""The tables of the audit log."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from app.db.table_base import Base


class AuditEntry(Base):
    """Who did what, written in the action's transaction. Sealed into the chain once; triggers refuse
    all other changes."""

    __tablename__ = "audit_entries"
    __table_args__ = (
        UniqueConstraint("seq"),
        CheckConstraint("outcome in ('done', 'refused', 'failed')", name="outcome"),
        CheckConstraint("(seq is null) = (hash is null) and (seq is null) = (prev_hash is null)", name="sealed"),
        Index("ix_audit_entries_actor", "actor", "id"),
        Index("ix_audit_entries_target", "target", "id"),
        Index("ix_audit_entries_action", "action", "id"),
    )

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    at: Mapped[datetime]
    action: Mapped[str]
    actor: Mapped[str | None]  # a key's id; null if nobody was known, or the service itself acted
    target: Mapped[str | None]
    address: Mapped[str | None]
    user_agent: Mapped[str | None]
    outcome: Mapped[str]
    details: Mapped[dict[str, Any]]
    seq: Mapped[int | None]  # 1, 2, … without gaps, in the order of sealing
    prev_hash: Mapped[str | None]
    hash: Mapped[str | None]


class AuditHead(Base):
    """The end of the audit log's chain: one row, locked while sealing, so that the chain cannot fork."""

    __tablename__ = "audit_head"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    seq: Mapped[int]
    hash: Mapped[str]
