"""From where the last verification of each ledger went on.

Revision: 0048, after 0046
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0048"
down_revision = "0046"
branch_labels = None
depends_on = None


def upgrade() -> None:
    count = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.add_column("ledger_checks", sa.Column("went_on_after", count, nullable=True))
    op.add_column("ledger_checks", sa.Column("in_full_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    for name in ("in_full_at", "went_on_after"):
        op.drop_column("ledger_checks", name)
