"""The table of predictions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, CheckConstraint, ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from app.db.table_base import Base


class Prediction(Base):
    """A model on a caller's own inputs: work for a worker, kept for a short time, for this caller alone."""

    __tablename__ = "predictions"
    __table_args__ = (
        CheckConstraint("status in ('queued', 'running', 'succeeded', 'failed')", name="status"),
        Index("ix_predictions_due", "status", "notified_at"),
        Index("ix_predictions_expires", "expires_at"),
        Index("ix_predictions_key", "key_id", "status"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"))
    status: Mapped[str]
    records: Mapped[list[Any] | None] = mapped_column(JSON(none_as_null=True))  # until a worker takes them
    top: Mapped[int]
    outputs: Mapped[list[Any] | None] = mapped_column(JSON(none_as_null=True))
    failure: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    attempt: Mapped[int]
    notified_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    lease_until: Mapped[float | None]  # like a job's
    lease_clock: Mapped[str | None]
