"""Other systems' charges, and grants to make them.

Revision: 0018, after 0017
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

ACCESS, ACCESS_BEFORE = "access in ('view', 'train', 'charge')", "access in ('view', 'train')"
HELD = "SELECT id FROM charges WHERE status = 'held' LIMIT 1"


def upgrade() -> None:
    count = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    _check_grants(ACCESS)
    op.create_table(
        "charges",
        *(_text(name) for name in ("id", "dataset_id", "key_id", "idempotency_key", "request_sha256")),
        _text("account"),
        _text("status"),
        sa.Column("mechanism", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("attested", sa.Text(), nullable=False),
        sa.Column("train", count, nullable=False),
        sa.Column("holdout", count, nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("settled_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("status in ('held', 'posted', 'voided')", name=op.f("ck_charges_status")),
        sa.CheckConstraint("account in ('train', 'holdout', 'both')", name=op.f("ck_charges_account")),
        sa.CheckConstraint("train >= 0 and holdout >= 0", name=op.f("ck_charges_amounts_not_negative")),
        sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"], name=op.f("fk_charges_dataset_id_datasets")),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name=op.f("fk_charges_key_id_api_keys")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_charges")),
        sa.UniqueConstraint("key_id", "idempotency_key", name=op.f("uq_charges_key_id_idempotency_key")),
    )
    op.create_index("ix_charges_dataset_created", "charges", ["dataset_id", "created_at", "id"])


def downgrade() -> None:
    if not op.get_context().as_sql and op.get_bind().scalar(sa.text(HELD)) is not None:
        raise RuntimeError("a charge is held; older code could not settle it: post or void it first")
    op.drop_table("charges")
    op.execute("DELETE FROM grants WHERE access = 'charge'")
    _check_grants(ACCESS_BEFORE)


def _check_grants(condition: str) -> None:
    """Replaces the CHECK of a grant's access. SQLite cannot, so its table is made again."""
    if op.get_context().dialect.name != "sqlite":
        op.drop_constraint(op.f("ck_grants_access"), "grants")
        op.create_check_constraint(op.f("ck_grants_access"), "grants", condition)
        return
    names = "dataset_id, key_id, access, max_epsilon_per_job, created_at, created_by"
    op.drop_index("ix_grants_key", "grants")
    op.rename_table("grants", "grants_before")
    op.create_table(
        "grants",
        *(_text(name) for name in ("dataset_id", "key_id", "access")),
        sa.Column("max_epsilon_per_job", sa.Float(precision=53), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        _text("created_by"),
        sa.CheckConstraint(condition, name=op.f("ck_grants_access")),
        sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"], name=op.f("fk_grants_dataset_id_datasets")),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name=op.f("fk_grants_key_id_api_keys")),
        sa.PrimaryKeyConstraint("dataset_id", "key_id", name=op.f("pk_grants")),
    )
    op.execute(f"INSERT INTO grants ({names}) SELECT {names} FROM grants_before")
    op.drop_table("grants_before")
    op.create_index("ix_grants_key", "grants", ["key_id", "dataset_id"])


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.String(length=200), nullable=False)
