"""Signed checkpoints instead of signed heads, and the roots of whole tiles of a ledger's tree.

The signed heads go: the first checkpoint is compared with the head that is recorded outside the database.

Revision: 0023, after 0022
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_table("signed_heads")
    op.create_table(
        "ledger_checkpoints",
        _dataset(),
        sa.Column("size", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("signed_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("dataset_id", name=op.f("pk_ledger_checkpoints")),
        _of_account("ledger_checkpoints"),
    )
    op.create_table(
        "ledger_tiles",
        _dataset(),
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False, autoincrement=False),
        sa.Column("root", sa.String(length=200), nullable=False),
        sa.PrimaryKeyConstraint("dataset_id", "number", name=op.f("pk_ledger_tiles")),
        _of_account("ledger_tiles"),
    )


def downgrade() -> None:
    op.drop_table("ledger_tiles")
    op.drop_table("ledger_checkpoints")
    op.create_table(
        "signed_heads",
        _dataset(),
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("document", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("signed_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("dataset_id", name=op.f("pk_signed_heads")),
        _of_account("signed_heads"),
    )


def _dataset() -> sa.Column[str]:
    return sa.Column("dataset_id", sa.String(length=200), nullable=False)


def _of_account(table: str) -> sa.ForeignKeyConstraint:
    name = op.f(f"fk_{table}_dataset_id_accounts")
    return sa.ForeignKeyConstraint(["dataset_id"], ["accounts.dataset_id"], name=name)
