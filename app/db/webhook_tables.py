"""The tables of webhooks, of the events that wait for them, and of their deliveries."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, CheckConstraint, ForeignKey, Index, Text
from sqlalchemy.orm import Mapped, mapped_column

from app.db.table_base import Base


class Webhook(Base):
    """An address to which a key wants events sent."""

    __tablename__ = "webhooks"
    __table_args__ = (Index("ix_webhooks_key", "key_id"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"))
    dataset_id: Mapped[str | None] = mapped_column(ForeignKey("datasets.id"))  # null: all that the key may see
    url: Mapped[str] = mapped_column(Text)
    events: Mapped[list[Any]] = mapped_column(JSON)
    description: Mapped[str]
    enabled: Mapped[bool]
    disabled_because: Mapped[str | None]
    secret: Mapped[str] = mapped_column(Text)  # encrypted, like the previous one
    previous_secret: Mapped[str | None] = mapped_column(Text)
    previous_until: Mapped[datetime | None]
    failing_since: Mapped[datetime | None]
    created_at: Mapped[datetime]


class WebhookEvent(Base):
    """An event that the relay turns into deliveries, written in the event's transaction: an outbox."""

    __tablename__ = "webhook_events"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    seq: Mapped[int]


class WebhookDelivery(Base):
    """One message to one webhook, and the outcome of its attempts."""

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        CheckConstraint("status in ('pending', 'delivered', 'failed', 'dropped')", name="status"),
        Index("ix_webhook_deliveries_due", "status", "next_at"),
        Index("ix_webhook_deliveries_webhook", "webhook_id", "created_at", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)  # the message's webhook-id, the same in every attempt
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhooks.id"))
    dataset_id: Mapped[str | None]  # the event's data set; null for a test
    type: Mapped[str]
    payload: Mapped[dict[str, Any]]
    status: Mapped[str]
    attempts: Mapped[int] = mapped_column(default=0)
    claim: Mapped[int] = mapped_column(default=0)  # the fencing token: grows with every claim
    next_at: Mapped[datetime]  # of the next attempt; during an attempt, when its lease ends
    status_code: Mapped[int | None]
    error: Mapped[str | None]
    created_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
