"""When each key's and owner's job was last claimed: keys and owners take turns.

Revision: 0010, after 0009
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "claim_turns",
        sa.Column("owner_key", sa.String(length=200), nullable=False),
        sa.Column("key_id", sa.String(length=200), nullable=False),
        sa.Column("turn", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.ForeignKeyConstraint(["owner_key"], ["api_keys.id"], name=op.f("fk_claim_turns_owner_key_api_keys")),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name=op.f("fk_claim_turns_key_id_api_keys")),
        sa.PrimaryKeyConstraint("owner_key", "key_id", name=op.f("pk_claim_turns")),
    )


def downgrade() -> None:
    op.drop_table("claim_turns")
