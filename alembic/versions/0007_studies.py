"""Studies: jobs whose work is done by trials, which are jobs of their own that name their study.

Revision: 0007, after 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.add_column("jobs", sa.Column("study", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("jobs", sa.Column("parent_id", sa.String(length=200), nullable=True))
    op.add_column("jobs", sa.Column("trial_number", number, nullable=True))
    op.add_column("jobs", sa.Column("trial", sa.JSON(none_as_null=True), nullable=True))
    op.create_index("ix_jobs_trial", "jobs", ["parent_id", "trial_number"], unique=True)


def downgrade() -> None:
    op.drop_index("ix_jobs_trial", "jobs")
    for name in ("trial", "trial_number", "parent_id", "study"):
        op.drop_column("jobs", name)
