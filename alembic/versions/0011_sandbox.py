"""How a worker's attempts are confined.

Revision: 0011, after 0010
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("sandbox", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("workers", "sandbox")
