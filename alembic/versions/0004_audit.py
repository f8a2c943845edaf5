"""The audit log, which the database itself keeps append-only.

Revision: 0004, after 0003
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import context, op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

GENESIS = "59a571f83f7cfde658b47a776116add0776f3fd59e41b70dd03d804ac2403416"  # SHA-256 of "scrimp/audit/v1"
SAID = ("id", "at", "action", "actor", "target", "address", "user_agent", "outcome", "details")

# Refused: deleting or replacing an entry, changing a sealed entry, changing an unsealed entry other than by sealing it,
# inserting a sealed entry; and moving the chain's head back.
SQLITE = [
    "CREATE TRIGGER audit_entries_no_delete BEFORE DELETE ON audit_entries "
    "BEGIN SELECT RAISE(ABORT, 'audit_entries is append-only'); END",
    "CREATE TRIGGER audit_entries_seal_only BEFORE UPDATE ON audit_entries WHEN OLD.seq IS NOT NULL "
    f"OR NEW.seq IS NULL OR {' OR '.join(f'OLD.{name} IS NOT NEW.{name}' for name in SAID)} "
    "BEGIN SELECT RAISE(ABORT, 'an entry of audit_entries is sealed once and never changed'); END",
    # INSERT OR REPLACE deletes without firing DELETE triggers.
    "CREATE TRIGGER audit_entries_no_replace BEFORE INSERT ON audit_entries "
    "WHEN NEW.seq IS NOT NULL OR EXISTS (SELECT 1 FROM audit_entries WHERE id = NEW.id) "
    "BEGIN SELECT RAISE(ABORT, 'audit_entries is append-only'); END",
    "CREATE TRIGGER audit_head_no_delete BEFORE DELETE ON audit_head "
    "BEGIN SELECT RAISE(ABORT, 'audit_head is never deleted'); END",
    "CREATE TRIGGER audit_head_no_replace BEFORE INSERT ON audit_head "
    "WHEN EXISTS (SELECT 1 FROM audit_head) BEGIN SELECT RAISE(ABORT, 'audit_head has one row'); END",
    "CREATE TRIGGER audit_head_forward BEFORE UPDATE ON audit_head WHEN NEW.seq <= OLD.seq "
    "BEGIN SELECT RAISE(ABORT, 'audit_head only goes forward'); END",
]

POSTGRESQL = [
    "CREATE TRIGGER audit_entries_no_delete BEFORE DELETE ON audit_entries "
    "FOR EACH ROW EXECUTE FUNCTION scrimp_refuse()",
    "CREATE TRIGGER audit_entries_no_truncate BEFORE TRUNCATE ON audit_entries "
    "FOR EACH STATEMENT EXECUTE FUNCTION scrimp_refuse()",
    "CREATE TRIGGER audit_entries_seal_only BEFORE UPDATE ON audit_entries FOR EACH ROW WHEN (OLD.seq IS NOT NULL "
    f"OR NEW.seq IS NULL OR {' OR '.join(f'OLD.{name}::text IS DISTINCT FROM NEW.{name}::text' for name in SAID)}) "
    "EXECUTE FUNCTION scrimp_refuse()",
    "CREATE TRIGGER audit_entries_unsealed BEFORE INSERT ON audit_entries FOR EACH ROW WHEN (NEW.seq IS NOT NULL) "
    "EXECUTE FUNCTION scrimp_refuse()",
    "CREATE TRIGGER audit_head_no_delete BEFORE DELETE ON audit_head FOR EACH ROW EXECUTE FUNCTION scrimp_refuse()",
    "CREATE TRIGGER audit_head_no_truncate BEFORE TRUNCATE ON audit_head "
    "FOR EACH STATEMENT EXECUTE FUNCTION scrimp_refuse()",
    "CREATE TRIGGER audit_head_forward BEFORE UPDATE ON audit_head FOR EACH ROW WHEN (NEW.seq <= OLD.seq) "
    "EXECUTE FUNCTION scrimp_refuse()",
]


def upgrade() -> None:
    op.create_table(
        "audit_entries",
        _integer("id", autoincrement=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        _text("action"),
        *(_text(name, nullable=True) for name in ("actor", "target", "address", "user_agent")),
        _text("outcome"),
        sa.Column("details", sa.JSON(none_as_null=True), nullable=False),
        _integer("seq", nullable=True),
        _text("prev_hash", nullable=True),
        _text("hash", nullable=True),
        sa.CheckConstraint("outcome in ('done', 'refused', 'failed')", name=op.f("ck_audit_entries_outcome")),
        sa.CheckConstraint(
            "(seq is null) = (hash is null) and (seq is null) = (prev_hash is null)",
            name=op.f("ck_audit_entries_sealed"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_entries")),
        sa.UniqueConstraint("seq", name=op.f("uq_audit_entries_seq")),
    )
    op.create_index("ix_audit_entries_actor", "audit_entries", ["actor", "id"])
    op.create_index("ix_audit_entries_target", "audit_entries", ["target", "id"])
    op.create_table(
        "audit_head",
        _integer("id", autoincrement=False),
        _integer("seq"),
        _text("hash"),
        sa.CheckConstraint("id = 1", name=op.f("ck_audit_head_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_head")),
    )
    op.execute(f"INSERT INTO audit_head (id, seq, hash) VALUES (1, 0, '{GENESIS}')")
    for statement in POSTGRESQL if op.get_context().dialect.name == "postgresql" else SQLITE:
        op.execute(statement)


def downgrade() -> None:
    if not context.is_offline_mode() and op.get_bind().scalar(sa.text("SELECT count(*) FROM audit_entries")):
        raise RuntimeError("the audit log has entries: downgrading below its migration would forget who did what")
    op.drop_table("audit_head")
    op.drop_table("audit_entries")


def _text(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.String(length=200), nullable=nullable)


def _integer(name: str, *, nullable: bool = False, **options: Any) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=nullable, **options)
