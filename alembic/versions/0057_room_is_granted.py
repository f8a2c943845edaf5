"""A cluster counts its GPUs, and no crew of workers does; an attempt says how many processes it had room for.

Revision: 0057, after 0056
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0057"
down_revision = "0056"
branch_labels = None
depends_on = None
WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("attempts", sa.Column("ranks", WHOLE, nullable=True))
    op.execute(sa.text("UPDATE attempts SET ranks = json_array_length(gpus) WHERE gpus IS NOT NULL"))
    op.drop_index("ix_attempts_crew", "attempts")
    op.drop_column("attempts", "gpus")
    op.drop_column("attempts", "crew")
    op.drop_column("workers", "crew")


def downgrade() -> None:
    op.add_column("workers", sa.Column("crew", sa.String(length=200), nullable=True))
    op.add_column("attempts", sa.Column("crew", sa.String(length=200), nullable=True))
    op.add_column("attempts", sa.Column("gpus", sa.JSON(none_as_null=True), nullable=True))
    op.create_index("ix_attempts_crew", "attempts", ["crew", "ended_at"])
    op.drop_column("attempts", "ranks")
