"""The table of other systems' charges."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from app.db.table_base import Base, Documents
from core.contracts.governance import Use


class Charge(Base):
    """What another system computes from a data set, reserved and settled on its ledger."""

    __tablename__ = "charges"
    __table_args__ = (
        CheckConstraint("status in ('held', 'posted', 'voided')", name="status"),
        CheckConstraint("account in ('train', 'holdout', 'both')", name="account"),
        CheckConstraint("train >= 0 and holdout >= 0", name="amounts_not_negative"),
        UniqueConstraint("key_id", "idempotency_key"),
        Index("ix_charges_dataset_created", "dataset_id", "created_at", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)  # also the `job_id` of its ledger entries
    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"))
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"))
    idempotency_key: Mapped[str]
    request_sha256: Mapped[str]
    account: Mapped[str]
    status: Mapped[str]
    mechanism: Mapped[dict[str, Any]]
    attested: Mapped[str] = mapped_column(Text)
    train: Mapped[int]
    holdout: Mapped[int]
    reason: Mapped[str | None] = mapped_column(Text)  # why it was voided
    created_at: Mapped[datetime]
    settled_at: Mapped[datetime | None]
    use: Mapped[Use | None] = mapped_column(Documents(Use))  # its purpose and permit
