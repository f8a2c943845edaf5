"""Sub-accounts of a data set's cap, their keys, and requests for them.

Revision: 0024, after 0023
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

PARTS = ("train", "holdout")


def upgrade() -> None:
    count = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    amounts = [
        sa.Column(f"{part}_{what}", count, nullable=False) for part in PARTS for what in ("budget", "spent", "held")
    ]
    signs = [
        sa.CheckConstraint(f"{part}_spent >= 0 and {part}_held >= 0", name=op.f(f"ck_sub_accounts_{part}_not_negative"))
        for part in PARTS
    ]
    bounds = [
        sa.CheckConstraint(
            f"{part}_spent + {part}_held <= {part}_budget", name=op.f(f"ck_sub_accounts_{part}_within_budget")
        )
        for part in PARTS
    ]
    op.create_table(
        "sub_accounts",
        _text("dataset_id"),
        _text("name"),
        _text("id"),
        sa.Column("epsilon", sa.Float(precision=53), nullable=False),
        *amounts,
        sa.Column("version", count, nullable=False),
        _time("changed_at"),
        _text("changed_by"),
        _time("closed_at", nullable=True),
        *signs,
        *bounds,
        sa.ForeignKeyConstraint(
            ["dataset_id"], ["accounts.dataset_id"], name=op.f("fk_sub_accounts_dataset_id_accounts")
        ),
        sa.PrimaryKeyConstraint("dataset_id", "name", name=op.f("pk_sub_accounts")),
        sa.UniqueConstraint("id", name=op.f("uq_sub_accounts_id")),
    )
    op.create_table(
        "sub_account_keys",
        *(_text(name) for name in ("dataset_id", "key_id", "name")),
        sa.ForeignKeyConstraint(
            ["dataset_id", "name"],
            ["sub_accounts.dataset_id", "sub_accounts.name"],
            name=op.f("fk_sub_account_keys_dataset_id_sub_accounts"),
        ),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name=op.f("fk_sub_account_keys_key_id_api_keys")),
        sa.PrimaryKeyConstraint("dataset_id", "key_id", name=op.f("pk_sub_account_keys")),
    )
    op.create_index("ix_sub_account_keys_name", "sub_account_keys", ["dataset_id", "name"])
    _requests()


def _requests() -> None:
    op.create_table(
        "budget_requests",
        *(_text(name) for name in ("id", "dataset_id", "key_id")),
        sa.Column("epsilon", sa.Float(precision=53), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        _text("status"),
        _time("created_at"),
        _time("expires_at"),
        _time("decided_at", nullable=True),
        sa.Column("decided_by", sa.String(length=200), nullable=True),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.CheckConstraint("status in ('open', 'approved', 'denied')", name=op.f("ck_budget_requests_status")),
        sa.ForeignKeyConstraint(
            ["dataset_id"], ["accounts.dataset_id"], name=op.f("fk_budget_requests_dataset_id_accounts")
        ),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name=op.f("fk_budget_requests_key_id_api_keys")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_budget_requests")),
    )
    op.create_index("ix_budget_requests_dataset_created", "budget_requests", ["dataset_id", "created_at", "id"])


def downgrade() -> None:
    # Their holds and spending are named in entries that nothing can change: made anew, the rows would differ from them.
    if not op.get_context().as_sql and op.get_bind().scalar(sa.text("SELECT name FROM sub_accounts LIMIT 1")):
        raise RuntimeError(
            "there are budgets within caps, which older code would not hold to: restore a backup instead"
        )
    for table in ("budget_requests", "sub_account_keys", "sub_accounts"):
        op.drop_table(table)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.String(length=200), nullable=False)


def _time(name: str, *, nullable: bool = False) -> sa.Column[sa.DateTime]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)
