"""One attempt may hold several GPUs of a machine; a job's threads are fixed with its first ready attempt.

Revision: 0029, after 0028
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("threads", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True))
    op.add_column("workers", sa.Column("crew", sa.String(length=200), nullable=True))
    op.add_column("attempts", sa.Column("crew", sa.String(length=200), nullable=True))
    op.add_column("attempts", sa.Column("gpus", sa.JSON(none_as_null=True), nullable=True))
    op.create_index("ix_attempts_crew", "attempts", ["crew", "ended_at"])


def downgrade() -> None:
    op.drop_index("ix_attempts_crew", "attempts")
    op.drop_column("attempts", "gpus")
    op.drop_column("attempts", "crew")
    op.drop_column("workers", "crew")
    op.drop_column("jobs", "threads")
