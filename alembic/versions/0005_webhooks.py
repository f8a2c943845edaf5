"""Webhooks, their deliveries, and the events that deliveries come from.

Revision: 0005, after 0004
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "webhooks",
        _text("id"),
        _text("key_id"),
        _text("dataset_id", nullable=True),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("events", sa.JSON(), nullable=False),
        _text("description"),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        _text("disabled_because", nullable=True),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("previous_secret", sa.Text(), nullable=True),
        _time("previous_until", nullable=True),
        _time("failing_since", nullable=True),
        _time("created_at"),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name=op.f("fk_webhooks_key_id_api_keys")),
        sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"], name=op.f("fk_webhooks_dataset_id_datasets")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhooks")),
    )
    op.create_index("ix_webhooks_key", "webhooks", ["key_id"])
    op.create_table(
        "webhook_events",
        _integer("id", autoincrement=True),
        _text("job_id"),
        _integer("seq"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_webhook_events_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_events")),
    )
    op.create_table(
        "webhook_deliveries",
        _text("id"),
        _text("webhook_id"),
        _text("dataset_id", nullable=True),
        _text("type"),
        sa.Column("payload", sa.JSON(none_as_null=True), nullable=False),
        _text("status"),
        _integer("attempts"),
        _integer("claim"),
        _time("next_at"),
        _integer("status_code", nullable=True),
        _text("error", nullable=True),
        _time("created_at"),
        _time("ended_at", nullable=True),
        sa.CheckConstraint(
            "status in ('pending', 'delivered', 'failed', 'dropped')", name=op.f("ck_webhook_deliveries_status")
        ),
        sa.ForeignKeyConstraint(
            ["webhook_id"], ["webhooks.id"], name=op.f("fk_webhook_deliveries_webhook_id_webhooks")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_deliveries")),
    )
    op.create_index("ix_webhook_deliveries_due", "webhook_deliveries", ["status", "next_at"])
    op.create_index("ix_webhook_deliveries_webhook", "webhook_deliveries", ["webhook_id", "created_at", "id"])


def downgrade() -> None:
    for table in ("webhook_deliveries", "webhook_events", "webhooks"):
        op.drop_table(table)


def _text(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.String(length=200), nullable=nullable)


def _integer(name: str, *, nullable: bool = False, **options: Any) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=nullable, **options)


def _time(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)
