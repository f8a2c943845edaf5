"""A released AUC has the histogram that it was computed from.

Revision: 0032, after 0031
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("metrics", sa.Column("histogram", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("metrics", "histogram")
