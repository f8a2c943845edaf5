"""The GPU, driver and cuDNN of workers, and of the jobs that ran on them.

Revision: 0050, after 0048
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0050"
down_revision = "0048"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("jobs", "workers"):
        op.add_column(table, sa.Column("card", sa.String(200), nullable=True))


def downgrade() -> None:
    for table in ("workers", "jobs"):
        op.drop_column(table, "card")
