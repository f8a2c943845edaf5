"""The first tables, with the ledger's protection: CHECKs, and triggers that keep it append-only.

Revision: 0001, after nothing
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import context, op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = (
    "api_keys",
    "price_cache",
    "datasets",
    "dataset_contents",
    "accounts",
    "ledger_entries",
    "jobs",
    "attempts",
    "blocks",
    "job_events",
    "metrics",
    "artifacts",
    "certificates",
    "outbox",
)


def upgrade() -> None:
    _registry()
    _ledger()
    _jobs()
    _runs()
    _results()
    for statement in POSTGRESQL if op.get_context().dialect.name == "postgresql" else SQLITE:
        op.execute(statement)


def downgrade() -> None:
    # There is no reset: a downgrade must not forget what was spent.
    if not context.is_offline_mode() and op.get_bind().scalar(sa.text("SELECT count(*) FROM ledger_entries")):
        raise RuntimeError("the ledger has entries: downgrading below the first migration would forget what was spent")
    for table in reversed(TABLES):
        op.drop_table(table)
    if op.get_context().dialect.name == "postgresql":
        op.execute("DROP FUNCTION scrimp_refuse()")


# Write protection of the ledger. Refused: changing an entry, deleting or replacing an account, and changing the fields
# that are frozen when an account is opened (filter, order, δ).

SQLITE = [
    *(
        f"CREATE TRIGGER ledger_entries_no_{verb.lower()} BEFORE {verb} ON ledger_entries "
        "BEGIN SELECT RAISE(ABORT, 'ledger_entries is append-only'); END"
        for verb in ("UPDATE", "DELETE")
    ),
    # INSERT OR REPLACE deletes without firing DELETE triggers.
    "CREATE TRIGGER ledger_entries_no_replace BEFORE INSERT ON ledger_entries "
    "WHEN EXISTS (SELECT 1 FROM ledger_entries "
    "WHERE dataset_id = NEW.dataset_id AND (seq = NEW.seq OR once = NEW.once)) "
    "BEGIN SELECT RAISE(ABORT, 'ledger_entries is append-only: this entry is there already'); END",
    "CREATE TRIGGER accounts_no_delete BEFORE DELETE ON accounts "
    "BEGIN SELECT RAISE(ABORT, 'accounts are never deleted'); END",
    "CREATE TRIGGER accounts_no_replace BEFORE INSERT ON accounts "
    "WHEN EXISTS (SELECT 1 FROM accounts WHERE dataset_id = NEW.dataset_id) "
    "BEGIN SELECT RAISE(ABORT, 'accounts are never replaced'); END",
    "CREATE TRIGGER accounts_frozen BEFORE UPDATE ON accounts WHEN OLD.dataset_id IS NOT NEW.dataset_id "
    "OR OLD.filter IS NOT NEW.filter OR OLD.filter_order IS NOT NEW.filter_order OR OLD.cap_delta IS NOT NEW.cap_delta "
    "BEGIN SELECT RAISE(ABORT, 'filter, order and delta of an account are frozen'); END",
]

POSTGRESQL = [
    "CREATE FUNCTION scrimp_refuse() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN RAISE EXCEPTION '%: % is refused', TG_TABLE_NAME, TG_OP; END $$",
    "CREATE TRIGGER ledger_entries_append_only BEFORE UPDATE OR DELETE ON ledger_entries "
    "FOR EACH ROW EXECUTE FUNCTION scrimp_refuse()",
    "CREATE TRIGGER ledger_entries_no_truncate BEFORE TRUNCATE ON ledger_entries "
    "FOR EACH STATEMENT EXECUTE FUNCTION scrimp_refuse()",
    "CREATE TRIGGER accounts_no_delete BEFORE DELETE ON accounts FOR EACH ROW EXECUTE FUNCTION scrimp_refuse()",
    "CREATE TRIGGER accounts_no_truncate BEFORE TRUNCATE ON accounts "
    "FOR EACH STATEMENT EXECUTE FUNCTION scrimp_refuse()",
    "CREATE TRIGGER accounts_frozen BEFORE UPDATE ON accounts FOR EACH ROW "
    "WHEN (OLD.dataset_id IS DISTINCT FROM NEW.dataset_id OR OLD.filter IS DISTINCT FROM NEW.filter "
    "OR OLD.filter_order IS DISTINCT FROM NEW.filter_order OR OLD.cap_delta IS DISTINCT FROM NEW.cap_delta) "
    "EXECUTE FUNCTION scrimp_refuse()",
]


def _registry() -> None:
    op.create_table(
        "api_keys",
        _text("id"),
        _text("name"),
        _text("role"),
        _text("secret_hmac"),
        _time("created_at"),
        _text("created_by", nullable=True),
        _time("revoked_at", nullable=True),
        sa.CheckConstraint("role in ('admin', 'owner', 'analyst')", name=op.f("ck_api_keys_role")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
    )
    op.create_table(
        "price_cache",
        _text("fingerprint"),
        _json("price"),
        _time("created_at"),
        sa.PrimaryKeyConstraint("fingerprint", name=op.f("pk_price_cache")),
    )
    op.create_table(
        "datasets",
        _text("id"),
        _text("name"),
        _text("owner_key"),
        _text("sensitivity"),
        _json("spec"),
        _json("shape"),
        _json("parts"),
        _text("content_sha256"),
        _text("content_hmac"),
        _time("created_at"),
        _reference("datasets", "owner_key", "api_keys.id"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_datasets")),
        sa.UniqueConstraint("name", name=op.f("uq_datasets_name")),
    )
    op.create_table(
        "dataset_contents",
        _integer("id", autoincrement=True),
        _text("dataset_id"),
        _text("part"),
        _text("kind"),
        _text("hmac"),
        _reference("dataset_contents", "dataset_id", "datasets.id"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dataset_contents")),
        sa.UniqueConstraint("dataset_id", "part", "kind", name=op.f("uq_dataset_contents_dataset_id_part_kind")),
    )
    op.create_index("ix_dataset_contents_hmac", "dataset_contents", ["hmac"])


def _ledger() -> None:
    op.create_table(
        "accounts",
        _text("dataset_id"),
        _text("filter"),
        _float("filter_order", nullable=True),
        _float("cap_epsilon"),
        _float("largest_cap_epsilon"),
        _float("cap_delta"),
        *(_integer(f"{account}_{part}") for account in ("train", "holdout") for part in ("budget", "spent", "held")),
        _integer("entries"),
        _text("head"),
        sa.CheckConstraint("train_spent >= 0 and train_held >= 0", name=op.f("ck_accounts_train_not_negative")),
        sa.CheckConstraint("holdout_spent >= 0 and holdout_held >= 0", name=op.f("ck_accounts_holdout_not_negative")),
        sa.CheckConstraint("train_spent + train_held <= train_budget", name=op.f("ck_accounts_train_within_budget")),
        sa.CheckConstraint(
            "holdout_spent + holdout_held <= holdout_budget", name=op.f("ck_accounts_holdout_within_budget")
        ),
        _reference("accounts", "dataset_id", "datasets.id"),
        sa.PrimaryKeyConstraint("dataset_id", name=op.f("pk_accounts")),
    )
    op.create_table(
        "ledger_entries",
        _text("dataset_id"),
        _integer("seq"),
        _text("kind"),
        _text("job_id", nullable=True),
        _integer("train"),
        _integer("holdout"),
        _integer("train_released"),
        _integer("holdout_released"),
        _text("once", nullable=True),
        _text("actor"),
        _json("memo"),
        _time("created_at"),
        _text("prev_hash"),
        _text("hash"),
        sa.CheckConstraint("kind in ('open', 'hold', 'post', 'void', 'cap')", name=op.f("ck_ledger_entries_kind")),
        sa.CheckConstraint("train >= 0 and holdout >= 0", name=op.f("ck_ledger_entries_amounts_not_negative")),
        sa.CheckConstraint(
            "train_released >= 0 and holdout_released >= 0", name=op.f("ck_ledger_entries_releases_not_negative")
        ),
        _reference("ledger_entries", "dataset_id", "accounts.dataset_id"),
        sa.PrimaryKeyConstraint("dataset_id", "seq", name=op.f("pk_ledger_entries")),
        sa.UniqueConstraint("dataset_id", "once", name=op.f("uq_ledger_entries_dataset_id_once")),
    )
    op.create_index("ix_ledger_entries_job", "ledger_entries", ["job_id"])


def _jobs() -> None:
    op.create_table(
        "jobs",
        _text("id"),
        _text("dataset_id"),
        _text("key_id"),
        _text("idempotency_key"),
        _text("request_sha256"),
        _text("name"),
        _text("status"),
        _json("spec"),
        _json("mechanism", nullable=True),
        _json("quote"),
        _json("segments"),
        _integer("steps"),
        _integer("attempt"),
        _time("lease_expires_at", nullable=True),
        _text("worker", nullable=True),
        _time("cancel_requested_at", nullable=True),
        _integer("steps_started"),
        _integer("step"),
        _time("rung_at", nullable=True),
        _json("failure", nullable=True),
        _json("warnings"),
        _integer("events"),
        _time("created_at"),
        _time("started_at", nullable=True),
        _time("finished_at", nullable=True),
        sa.CheckConstraint(
            "status in ('queued','running','pausing','paused','cancelling','cancelled','succeeded','failed')",
            name=op.f("ck_jobs_status"),
        ),
        _reference("jobs", "dataset_id", "datasets.id"),
        _reference("jobs", "key_id", "api_keys.id"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("key_id", "idempotency_key", name=op.f("uq_jobs_key_id_idempotency_key")),
    )
    op.create_index("ix_jobs_status_rung", "jobs", ["status", "rung_at"])
    op.create_index("ix_jobs_dataset_created", "jobs", ["dataset_id", "created_at", "id"])
    op.create_index("ix_jobs_created", "jobs", ["created_at", "id"])
    op.create_index("ix_jobs_key", "jobs", ["key_id", "created_at", "id"])


def _runs() -> None:
    op.create_table(
        "attempts",
        _text("job_id"),
        _integer("number"),
        _text("worker"),
        _text("status"),
        _time("started_at"),
        _time("ended_at", nullable=True),
        _reference("attempts", "job_id", "jobs.id"),
        sa.PrimaryKeyConstraint("job_id", "number", name=op.f("pk_attempts")),
    )
    op.create_table(
        "blocks",
        _integer("id", autoincrement=True),
        _text("job_id"),
        _integer("attempt"),
        _text("salt"),
        _integer("first_step"),
        _integer("last_step"),
        _text("digest", nullable=True),
        _reference("blocks", "job_id", "jobs.id"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_blocks")),
    )
    op.create_index("ix_blocks_job_id", "blocks", ["job_id"])
    op.create_table(
        "job_events",
        _text("job_id"),
        _integer("seq"),
        _text("type"),
        _json("data"),
        _time("created_at"),
        _reference("job_events", "job_id", "jobs.id"),
        sa.PrimaryKeyConstraint("job_id", "seq", name=op.f("pk_job_events")),
    )
    op.create_table(
        "outbox",
        _integer("id", autoincrement=True),
        _text("topic"),
        _text("job_id"),
        _time("created_at"),
        _reference("outbox", "job_id", "jobs.id"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outbox")),
    )


def _results() -> None:
    op.create_table(
        "metrics",
        _text("job_id"),
        _text("name"),
        _integer("step"),
        _float("value"),
        _float("std"),
        _text("measured_on"),
        _text("released_by"),
        _reference("metrics", "job_id", "jobs.id"),
        sa.PrimaryKeyConstraint("job_id", "name", "step", name=op.f("pk_metrics")),
    )
    op.create_table(
        "artifacts",
        _text("job_id"),
        _text("name"),
        _text("sha256"),
        _integer("size_bytes"),
        sa.Column("path", sa.Text(), nullable=False),
        _reference("artifacts", "job_id", "jobs.id"),
        sa.PrimaryKeyConstraint("job_id", "name", name=op.f("pk_artifacts")),
    )
    op.create_table(
        "certificates",
        _text("job_id"),
        _json("body"),
        _text("signature"),
        _time("issued_at"),
        _reference("certificates", "job_id", "jobs.id"),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_certificates")),
    )


def _text(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.String(length=200), nullable=nullable)


def _integer(name: str, **options: Any) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False, **options)


def _float(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.Float(precision=53), nullable=nullable)


def _json(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.JSON(none_as_null=True), nullable=nullable)


def _time(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _reference(table: str, column: str, target: str) -> sa.ForeignKeyConstraint:
    name = f"fk_{table}_{column}_{target.partition('.')[0]}"
    return sa.ForeignKeyConstraint([column], [target], name=op.f(name))
