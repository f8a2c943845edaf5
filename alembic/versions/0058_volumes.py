"""Where the files of a registration wait, and where an ingest worker reads them.

Revision: 0058, after 0057
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0058"
down_revision = "0057"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("dataset_readings", "workers"):
        op.add_column(table, sa.Column("volume", sa.String(200), nullable=True))


def downgrade() -> None:
    for table in ("workers", "dataset_readings"):
        op.drop_column(table, "volume")
