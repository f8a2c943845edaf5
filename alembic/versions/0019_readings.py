"""Registrations whose files are read in the background.

Revision: 0019, after 0018
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    count = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    text = sa.String(length=200)
    op.create_table(
        "dataset_readings",
        sa.Column("id", text, nullable=False),
        sa.Column("name", text, nullable=False),
        sa.Column("holds_name", text, nullable=True),
        sa.Column("owner_key", text, nullable=False),
        sa.Column("state", text, nullable=False),
        sa.Column("spec", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("sources", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("bytes", count, nullable=False),
        sa.Column("bytes_read", count, nullable=False),
        sa.Column("outcome", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("attempt", count, nullable=False),
        sa.Column("deaths", count, nullable=False),
        sa.Column("lease_until", sa.Float(53), nullable=True),
        sa.Column("lease_clock", text, nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("state in ('reading', 'ready', 'rejected')", name=op.f("ck_dataset_readings_state")),
        sa.ForeignKeyConstraint(["owner_key"], ["api_keys.id"], name=op.f("fk_dataset_readings_owner_key_api_keys")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dataset_readings")),
        sa.UniqueConstraint("holds_name", name=op.f("uq_dataset_readings_holds_name")),
    )
    op.create_index("ix_dataset_readings_due", "dataset_readings", ["state", "created_at"])
    op.create_index("ix_dataset_readings_owner", "dataset_readings", ["owner_key", "created_at"])


def downgrade() -> None:
    op.drop_table("dataset_readings")
