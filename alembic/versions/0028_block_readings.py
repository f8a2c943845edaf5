"""A file that is read in the background may be a block's.

Revision: 0028, after 0026
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0026"
branch_labels = None
depends_on = None

COLUMNS = ("parent_id", "label")


def upgrade() -> None:
    for name in COLUMNS:
        op.add_column("dataset_readings", sa.Column(name, sa.String(length=200), nullable=True))


def downgrade() -> None:
    waiting = sa.text("SELECT id FROM dataset_readings WHERE parent_id IS NOT NULL AND state = 'reading' LIMIT 1")
    if not op.get_context().as_sql and op.get_bind().scalar(waiting):
        raise RuntimeError("blocks are being read, which older code would take for data sets: wait until they are")
    for name in reversed(COLUMNS):
        op.drop_column("dataset_readings", name)
