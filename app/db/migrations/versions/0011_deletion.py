"""When a data set's content was deleted.

Revision: 0011_deletion, after 0010_sandbox
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011_deletion"
down_revision = "0010_sandbox"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("datasets", sa.Column("content_deleted_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    op.drop_column("datasets", "content_deleted_at")
