"""An index of the jobs that run: each claim counts them by key and data set.

Revision: 0059, after 0058
"""

from __future__ import annotations

from alembic import op

revision = "0059"
down_revision = "0058"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "CREATE INDEX ix_jobs_running ON jobs (dataset_id, key_id) "
        "WHERE NOT (status NOT IN ('running', 'pausing', 'cancelling')) AND study IS NULL"
    )


def downgrade() -> None:
    op.drop_index("ix_jobs_running", "jobs")
