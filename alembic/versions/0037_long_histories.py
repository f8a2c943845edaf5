"""Indices for views of a long history: a page, a count or the largest posts read what they show.

`ix_jobs_trial` is of trials alone: SQLite took it to find the jobs that are no trials, and then sorted all of them.

Revision: 0037, after 0036
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None

TOP = "parent_id IS NULL"
TRIALS = ("ix_jobs_trial", "jobs", ["parent_id", "trial_number"])
INDICES = (
    ("ix_jobs_name", "jobs", ["name", "id"], TOP),
    ("ix_jobs_top_status", "jobs", ["status", "created_at", "id"], TOP),
    ("ix_jobs_top_dataset", "jobs", ["dataset_id", "status"], TOP),
    ("ix_attempts_status", "attempts", ["status"], None),
    ("ix_ledger_entries_of_job", "ledger_entries", ["dataset_id", "job_id", "seq"], None),
    ("ix_ledger_entries_train", "ledger_entries", ["dataset_id", "train", "seq"], "kind = 'post'"),
    ("ix_ledger_entries_holdout", "ledger_entries", ["dataset_id", "holdout", "seq"], "kind = 'post'"),
    ("ix_ledger_entries_caps", "ledger_entries", ["dataset_id", "seq"], "kind IN ('open', 'cap')"),
)


def upgrade() -> None:
    op.drop_index("ix_jobs_trial", "jobs")
    _create(*TRIALS, "parent_id IS NOT NULL", unique=True)
    for index in INDICES:
        _create(*index)


def downgrade() -> None:
    for name, table, _columns, _where in reversed(INDICES):
        op.drop_index(name, table)
    op.drop_index("ix_jobs_trial", "jobs")
    op.create_index(*TRIALS, unique=True)


def _create(name: str, table: str, columns: list[str], where: str | None, *, unique: bool = False) -> None:
    if where is None:
        op.create_index(name, table, columns, unique=unique)
        return
    condition = sa.text(where)
    op.create_index(name, table, columns, unique=unique, sqlite_where=condition, postgresql_where=condition)
