"""Workers are notified: the retired word for it leaves the columns.

Revision: 0015, after 0014
"""

from __future__ import annotations

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

TABLES = ("jobs", "predictions")


def upgrade() -> None:
    op.drop_index("ix_jobs_status_rung", "jobs")
    for table in TABLES:
        op.execute(f"ALTER TABLE {table} RENAME COLUMN rung_at TO notified_at")
    op.create_index("ix_jobs_status_notified", "jobs", ["status", "notified_at"])
    op.execute("UPDATE outbox SET topic = 'notify' WHERE topic = 'ring'")


def downgrade() -> None:
    op.execute("UPDATE outbox SET topic = 'ring' WHERE topic = 'notify'")
    op.drop_index("ix_jobs_status_notified", "jobs")
    for table in TABLES:
        op.execute(f"ALTER TABLE {table} RENAME COLUMN notified_at TO rung_at")
    op.create_index("ix_jobs_status_rung", "jobs", ["status", "rung_at"])
