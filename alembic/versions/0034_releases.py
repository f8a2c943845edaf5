"""Workers say which release they run, and jobs which one began them: its workers take them first.

Revision: 0034, after 0033
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("release", sa.String(length=200), nullable=True))
    op.add_column("workers", sa.Column("release", sa.String(length=200), nullable=True))
    op.add_column("workers", sa.Column("finishes", sa.Boolean(), nullable=True))


def downgrade() -> None:
    op.drop_column("workers", "finishes")
    op.drop_column("workers", "release")
    op.drop_column("jobs", "release")
