"""What workers compute on; on which kind of device a job and its attempts run.

Revision: 0017, after 0016
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("devices", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("jobs", sa.Column("device", sa.String(length=200), nullable=True))
    op.add_column("jobs", sa.Column("fitted_rows", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True))
    op.add_column("attempts", sa.Column("device", sa.String(length=200), nullable=True))
    # Until now every attempt ran on the processor: a job that was begun there is repeated there.
    op.execute("UPDATE attempts SET device = 'cpu'")
    op.execute("UPDATE jobs SET device = 'cpu' WHERE attempt > 0")


def downgrade() -> None:
    op.drop_column("attempts", "device")
    op.drop_column("jobs", "fitted_rows")
    op.drop_column("jobs", "device")
    op.drop_column("workers", "devices")
