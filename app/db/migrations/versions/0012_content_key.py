"""Under which data key a content's hash is.

Revision: 0012_content_key, after 0011_deletion
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012_content_key"
down_revision = "0011_deletion"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("dataset_contents", sa.Column("key_id", sa.String(length=200), nullable=True))


def downgrade() -> None:
    op.drop_column("dataset_contents", "key_id")
