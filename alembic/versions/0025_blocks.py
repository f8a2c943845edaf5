"""Blocks: a data set's row may be a block of another one's, and knows the digests of its units.

Revision: 0025, after 0024
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

COLUMNS = ("parent_id", "label", "units_sha256", "units_key")


def upgrade() -> None:
    for name in COLUMNS:
        op.add_column("datasets", sa.Column(name, sa.String(length=200), nullable=True))
    op.create_index("ix_datasets_label", "datasets", ["parent_id", "label"], unique=True)


def downgrade() -> None:
    if not op.get_context().as_sql and op.get_bind().scalar(
        sa.text("SELECT id FROM datasets WHERE parent_id IS NOT NULL LIMIT 1")
    ):
        raise RuntimeError("there are blocks, which older code would take for data sets: restore a backup instead")
    op.drop_index("ix_datasets_label", "datasets")
    for name in reversed(COLUMNS):
        op.drop_column("datasets", name)
