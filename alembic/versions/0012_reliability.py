"""Leases by the database's clock; each worker's clock; findings on each ledger; signed heads.

Revision: 0012, after 0011
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

LEASED = ("jobs", "predictions")
# No machine has this clock, so the service takes running attempts back when it starts after the migration.
END_LEASES = "UPDATE {table} SET lease_until = 0, lease_clock = 'none' WHERE status IN ('running', 'cancelling')"
END_LEASES_BELOW = "UPDATE {table} SET lease_expires_at = CURRENT_TIMESTAMP WHERE status IN ('running', 'cancelling')"


def upgrade() -> None:
    for table in LEASED:
        op.drop_column(table, "lease_expires_at")
        op.add_column(table, _float("lease_until"))
        op.add_column(table, sa.Column("lease_clock", sa.String(length=200), nullable=True))
        op.execute(END_LEASES.format(table=table) + (" AND study IS NULL" if table == "jobs" else ""))
    op.add_column("jobs", sa.Column("ran_s", sa.Float(precision=53), server_default="0", nullable=False))
    op.add_column("api_keys", _integer("max_job_s", nullable=True))
    op.add_column("workers", _float("skew_s"))
    op.add_column("artifacts", sa.Column("damaged_at", sa.DateTime(timezone=True), nullable=True))
    op.create_table(
        "ledger_checks",
        sa.Column("dataset_id", sa.String(length=200), nullable=False),
        sa.Column("behind", sa.Text(), nullable=True),
        sa.Column("noticed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("problem", sa.Text(), nullable=True),
        _integer("entries", nullable=True),
        sa.Column("checked_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("dataset_id", name=op.f("pk_ledger_checks")),
    )
    op.create_table(
        "signed_heads",
        sa.Column("dataset_id", sa.String(length=200), nullable=False),
        _integer("seq"),
        sa.Column("document", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("signed_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["dataset_id"], ["accounts.dataset_id"], name=op.f("fk_signed_heads_dataset_id_accounts")
        ),
        sa.PrimaryKeyConstraint("dataset_id", name=op.f("pk_signed_heads")),
    )


def downgrade() -> None:
    op.drop_table("signed_heads")
    op.drop_table("ledger_checks")
    op.drop_column("artifacts", "damaged_at")
    op.drop_column("workers", "skew_s")
    op.drop_column("api_keys", "max_job_s")
    op.drop_column("jobs", "ran_s")
    for table in LEASED:
        op.drop_column(table, "lease_clock")
        op.drop_column(table, "lease_until")
        op.add_column(table, sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True))
        op.execute(END_LEASES_BELOW.format(table=table) + (" AND study IS NULL" if table == "jobs" else ""))


def _integer(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=nullable)


def _float(name: str) -> sa.Column[float]:
    return sa.Column(name, sa.Float(precision=53), nullable=True)
