"""Weights of keys in the order of claims, their largest priority, and their own limit of stored bytes.

Revision: 0026, after 0025
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

STARTS = ("owner_start", "key_start")
CHECKS = {
    "weight": "DEFAULT '1' CONSTRAINT ck_api_keys_weight CHECK (weight between 1 and 100)",
    "max_priority": "DEFAULT '10' CONSTRAINT ck_api_keys_max_priority CHECK (max_priority between -10 and 10)",
}


def upgrade() -> None:
    count = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    integer = "INTEGER" if op.get_context().dialect.name == "sqlite" else "BIGINT"
    op.add_column("api_keys", sa.Column("max_stored_bytes", count, nullable=True))
    for name, rule in CHECKS.items():  # as SQL: SQLite adds a rule only together with its column
        op.execute(f"ALTER TABLE api_keys ADD COLUMN {name} {integer} NOT NULL {rule}")
    for name in STARTS:
        op.add_column("claim_turns", sa.Column(name, count, nullable=False, server_default="0"))
    op.create_index("ix_claim_turns_turn", "claim_turns", ["turn"])
    op.create_index("ix_claim_turns_owner_start", "claim_turns", ["owner_start"])


def downgrade() -> None:
    op.drop_index("ix_claim_turns_owner_start", "claim_turns")
    op.drop_index("ix_claim_turns_turn", "claim_turns")
    for name in STARTS:
        op.drop_column("claim_turns", name)
    for name in (*CHECKS, "max_stored_bytes"):
        op.drop_column("api_keys", name)
