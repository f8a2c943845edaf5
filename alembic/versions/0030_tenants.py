"""Long readings yield to another owner's; a ledger's last verification is kept whole, and may be asked for.

Revision: 0030, after 0029
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.add_column("dataset_readings", sa.Column("slices", COUNT, nullable=False, server_default="0"))
    op.add_column("dataset_readings", sa.Column("turn_ended_at", MOMENT, nullable=True))
    op.add_column("ledger_checks", sa.Column("head", sa.String(length=200), nullable=True))
    op.add_column("ledger_checks", sa.Column("first_bad_entry", COUNT, nullable=True))
    op.add_column("ledger_checks", sa.Column("heads", COUNT, nullable=True))
    op.add_column("ledger_checks", sa.Column("requested_at", MOMENT, nullable=True))


def downgrade() -> None:
    for name in ("requested_at", "heads", "first_bad_entry", "head"):
        op.drop_column("ledger_checks", name)
    for name in ("turn_ended_at", "slices"):
        op.drop_column("dataset_readings", name)
