"""The signed terms of data sets: governance and grants, for statements.

Revision: 0044, after 0038
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0044"
down_revision = "0042"
branch_labels = None
depends_on = None


def upgrade() -> None:
    count = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.add_column("datasets", sa.Column("grants_version", count, nullable=False, server_default="0"))
    op.create_table(
        "dataset_terms",
        sa.Column("dataset_id", sa.String(200), sa.ForeignKey("datasets.id"), nullable=False),
        sa.Column("envelope", sa.Text(), nullable=False),
        sa.Column("key_id", sa.String(200), nullable=False),
        sa.Column("declaration", count, nullable=False),
        sa.Column("blocks", count, nullable=False),
        sa.Column("grants_version", count, nullable=False),
        sa.PrimaryKeyConstraint("dataset_id", name=op.f("pk_dataset_terms")),
    )


def downgrade() -> None:
    op.drop_table("dataset_terms")
    op.drop_column("datasets", "grants_version")
