"""Indexes for what jobs took: a month's days of what keys spent, and the jobs that ended in it, without their rows.

Revision: 0056, after 0055
"""

from __future__ import annotations

from alembic import op

revision = "0056"
down_revision = "0055"
branch_labels = None
depends_on = None
DAY = ("ix_spent_by_key_day", "spent_by_key")
FINISHED, BEFORE = ("ix_jobs_finished", "jobs"), ["finished_at", "dataset_id", "status", "parent_id"]


def upgrade() -> None:
    op.create_index(*DAY, ["day"])
    op.drop_index(*FINISHED)
    op.create_index(*FINISHED, [*BEFORE, "key_id", "id"])


def downgrade() -> None:
    op.drop_index(*FINISHED)
    op.create_index(*FINISHED, BEFORE)
    op.drop_index(*DAY)
