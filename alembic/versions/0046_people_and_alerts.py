"""Keys of people who sign in at an identity provider; announced thresholds of budgets.

Revision: 0046, after 0045
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0046"
down_revision = "0045"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("issuer", sa.String(255), nullable=True))
    op.add_column("api_keys", sa.Column("subject", sa.String(255), nullable=True))
    op.create_index("ix_api_keys_person", "api_keys", ["issuer", "subject"], unique=True)
    count = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "budget_alerts",
        sa.Column("dataset_id", sa.String(200), sa.ForeignKey("accounts.dataset_id"), nullable=False),
        sa.Column("budget_id", sa.String(200), nullable=False),
        sa.Column("account", sa.String(200), nullable=False),
        sa.Column("threshold", count, nullable=False),
        sa.Column("size", count, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint(
            "dataset_id", "budget_id", "account", "threshold", "size", name=op.f("pk_budget_alerts")
        ),
    )


def downgrade() -> None:
    op.drop_table("budget_alerts")
    op.drop_index("ix_api_keys_person", "api_keys")
    op.drop_column("api_keys", "subject")
    op.drop_column("api_keys", "issuer")
