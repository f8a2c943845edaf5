"""Predictions of finished models on callers' own inputs, queued for a worker.

Revision: 0008, after 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    count = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "predictions",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("job_id", sa.String(length=200), nullable=False),
        sa.Column("key_id", sa.String(length=200), nullable=False),
        sa.Column("status", sa.String(length=200), nullable=False),
        sa.Column("records", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("top", count, nullable=False),
        sa.Column("outputs", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("failure", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("attempt", count, nullable=False),
        sa.Column("rung_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "status in ('queued', 'running', 'succeeded', 'failed')", name=op.f("ck_predictions_status")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_predictions_job_id_jobs")),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name=op.f("fk_predictions_key_id_api_keys")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_predictions")),
    )
    op.create_index("ix_predictions_due", "predictions", ["status", "rung_at"])
    op.create_index("ix_predictions_expires", "predictions", ["expires_at"])
    op.create_index("ix_predictions_key", "predictions", ["key_id", "status"])


def downgrade() -> None:
    op.drop_table("predictions")
