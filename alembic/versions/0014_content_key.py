"""The data key under which a content's hash was computed.

Revision: 0014, after 0013
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("dataset_contents", sa.Column("key_id", sa.String(length=200), nullable=True))


def downgrade() -> None:
    op.drop_column("dataset_contents", "key_id")
