"""What processes count, for /metrics.

Revision: 0021, after 0020
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "measures",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("labels", sa.String(length=200), nullable=False),
        sa.Column("process", sa.String(length=200), nullable=False),
        sa.Column("value", sa.Float(53), nullable=False),
        sa.Column("written_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", "labels", "process", name="pk_measures"),
    )


def downgrade() -> None:
    op.drop_table("measures")
