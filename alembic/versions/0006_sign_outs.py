"""Sign-outs that end sessions on the server; the keys that sign certificates; an index of the audit log by action.

Revision: 0006, after 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    count = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.add_column("api_keys", sa.Column("sign_outs", count, nullable=False, server_default="0"))
    op.create_table(
        "signing_keys",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("public_key", sa.String(length=200), nullable=False),
        sa.Column("first_used_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_signing_keys")),
    )
    op.create_index("ix_audit_entries_action", "audit_entries", ["action", "id"])


def downgrade() -> None:
    op.drop_index("ix_audit_entries_action", "audit_entries")
    op.drop_table("signing_keys")
    op.drop_column("api_keys", "sign_outs")
