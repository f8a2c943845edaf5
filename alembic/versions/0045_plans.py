"""Ledgers that move from one filter to another.

Revision: 0045, after 0044
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0045"
down_revision = "0044"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("datasets", sa.Column("pays_for", sa.String(200), nullable=True))
    op.create_index("ix_datasets_pays_for", "datasets", ["pays_for"], unique=True)
    op.add_column("accounts", sa.Column("whole_delta", sa.Float(), nullable=True))


def downgrade() -> None:
    op.drop_column("accounts", "whole_delta")
    op.drop_index("ix_datasets_pays_for", table_name="datasets")
    op.drop_column("datasets", "pays_for")
