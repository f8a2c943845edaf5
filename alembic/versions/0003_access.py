"""Grants per data set; viewers; keys that expire, rotate and have their own limits.

Revision: 0003, after 0002
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

ROLES_BEFORE = "role in ('admin', 'owner', 'analyst')"
ROLES = "role in ('admin', 'owner', 'analyst', 'viewer')"
KEPT = ("id", "name", "role", "secret_hmac", "created_at", "created_by", "revoked_at")
# Older code knows neither expiry nor viewers, so a downgrade must not revive such keys.
REVOKE_WHAT_IS_UNKNOWN_BELOW = (
    "UPDATE api_keys SET revoked_at = COALESCE(revoked_at, CURRENT_TIMESTAMP) "
    "WHERE role = 'viewer' OR expires_at IS NOT NULL",
    "UPDATE api_keys SET role = 'analyst' WHERE role = 'viewer'",
)


def upgrade() -> None:
    if op.get_context().dialect.name == "sqlite":
        _remake_api_keys(ROLES, _added())
    else:
        op.drop_constraint(op.f("ck_api_keys_role"), "api_keys")
        op.create_check_constraint(op.f("ck_api_keys_role"), "api_keys", ROLES)
        for column in _added():
            op.add_column("api_keys", column)
    op.create_table(
        "grants",
        _text("dataset_id"),
        _text("key_id"),
        _text("access"),
        sa.Column("max_epsilon_per_job", sa.Float(precision=53), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        _text("created_by"),
        sa.CheckConstraint("access in ('view', 'train')", name=op.f("ck_grants_access")),
        sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"], name=op.f("fk_grants_dataset_id_datasets")),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name=op.f("fk_grants_key_id_api_keys")),
        sa.PrimaryKeyConstraint("dataset_id", "key_id", name=op.f("pk_grants")),
    )
    op.create_index("ix_grants_key", "grants", ["key_id", "dataset_id"])
    # Every admission counts a key's queued and running jobs.
    op.drop_index("ix_jobs_key", "jobs")
    op.create_index("ix_jobs_key_status", "jobs", ["key_id", "status", "created_at", "id"])


def downgrade() -> None:
    op.drop_index("ix_jobs_key_status", "jobs")
    op.create_index("ix_jobs_key", "jobs", ["key_id", "created_at", "id"])
    op.drop_table("grants")
    for statement in REVOKE_WHAT_IS_UNKNOWN_BELOW:
        op.execute(statement)
    if op.get_context().dialect.name == "sqlite":
        _remake_api_keys(ROLES_BEFORE, [])
    else:
        op.drop_constraint(op.f("ck_api_keys_role"), "api_keys")
        op.create_check_constraint(op.f("ck_api_keys_role"), "api_keys", ROLES_BEFORE)
        for column in reversed(_added()):
            op.drop_column("api_keys", column.name)


def _remake_api_keys(roles: str, added: list[sa.Column[Any]]) -> None:
    """Recreates the table under its own name, because SQLite cannot change a CHECK. It has no triggers to lose.

    Foreign keys refer to it by name. They are checked at the commit, when the new table holds the rows that they need.
    """
    kept = ", ".join(KEPT)
    op.execute("PRAGMA defer_foreign_keys = ON")
    op.execute(f"CREATE TEMPORARY TABLE kept_keys AS SELECT {kept} FROM api_keys")
    op.drop_table("api_keys")
    op.create_table(
        "api_keys",
        *(_text(name) for name in KEPT[:4]),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        _text("created_by", nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        *added,
        sa.CheckConstraint(roles, name=op.f("ck_api_keys_role")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
    )
    op.execute(f"INSERT INTO api_keys ({kept}) SELECT {kept} FROM kept_keys")
    op.execute("DROP TABLE kept_keys")


def _added() -> list[sa.Column[Any]]:
    return [
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("rotated_at", sa.DateTime(timezone=True), nullable=True),
        _text("previous_hmac", nullable=True),
        sa.Column("previous_until", sa.DateTime(timezone=True), nullable=True),
        _integer("requests_per_minute"),
        _integer("max_queued_jobs"),
        _integer("max_running_jobs"),
    ]


def _text(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.String(length=200), nullable=nullable)


def _integer(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True)
