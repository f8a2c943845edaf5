"""Persons of a data set, approvals that need two of them, and egresses of jobs.

Revision: 0038, after 0037
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None

NAME, WHEN = sa.String(200), sa.DateTime(timezone=True)


def upgrade() -> None:
    count = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "dataset_persons",
        sa.Column("dataset_id", NAME, sa.ForeignKey("datasets.id"), nullable=False),
        sa.Column("key_id", NAME, sa.ForeignKey("api_keys.id"), nullable=False),
        sa.Column("person", NAME, nullable=False),
        sa.PrimaryKeyConstraint("dataset_id", "key_id", name=op.f("pk_dataset_persons")),
    )
    op.create_table(
        "approvals",
        sa.Column("id", NAME, nullable=False),
        sa.Column("dataset_id", NAME, sa.ForeignKey("datasets.id"), nullable=False),
        sa.Column("act", sa.JSON(), nullable=False),
        sa.Column("asked_by", NAME, sa.ForeignKey("api_keys.id"), nullable=False),
        sa.Column("status", NAME, nullable=False),
        sa.Column("created_at", WHEN, nullable=False),
        sa.Column("expires_at", WHEN, nullable=False),
        sa.Column("decided_at", WHEN, nullable=True),
        sa.Column("decided_by", NAME, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_approvals")),
        sa.CheckConstraint("status in ('open', 'agreed', 'denied')", name=op.f("ck_approvals_status")),
    )
    op.create_index("ix_approvals_dataset_created", "approvals", ["dataset_id", "created_at", "id"])
    op.create_table(
        "agreements",
        sa.Column("approval_id", NAME, sa.ForeignKey("approvals.id"), nullable=False),
        sa.Column("person", NAME, nullable=False),
        sa.Column("key_id", NAME, sa.ForeignKey("api_keys.id"), nullable=False),
        sa.Column("at", WHEN, nullable=False),
        sa.PrimaryKeyConstraint("approval_id", "person", name=op.f("pk_agreements")),
    )
    op.create_table(
        "egresses",
        sa.Column("id", NAME, nullable=False),
        sa.Column("job_id", NAME, sa.ForeignKey("jobs.id"), nullable=False),
        sa.Column("number", count, nullable=False),
        sa.Column("recipient", NAME, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("asked_by", NAME, sa.ForeignKey("api_keys.id"), nullable=False),
        sa.Column("asked_at", WHEN, nullable=False),
        sa.Column("approval_id", NAME, sa.ForeignKey("approvals.id"), nullable=True),
        sa.Column("made_at", WHEN, nullable=True),
        sa.Column("problem", NAME, nullable=True),
        sa.Column("path", sa.Text(), nullable=True),
        sa.Column("sha256", NAME, nullable=True),
        sa.Column("size_bytes", count, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_egresses")),
        sa.UniqueConstraint("job_id", "number", name=op.f("uq_egresses_job_id_number")),
    )


def downgrade() -> None:
    for table in ("egresses", "agreements", "approvals", "dataset_persons"):
        op.drop_table(table)
