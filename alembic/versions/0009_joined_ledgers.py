"""Content is compared within one owner at registration, and across owners by the relay; ledgers can be joined.

Revision: 0009, after 0008
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

OWNERS = (
    "UPDATE dataset_contents SET owner_key = "
    "(SELECT owner_key FROM datasets WHERE datasets.id = dataset_contents.dataset_id)"
)
CLOSED = "SELECT dataset_id FROM accounts WHERE joined_into IS NOT NULL LIMIT 1"


def upgrade() -> None:
    op.add_column("accounts", sa.Column("joined_into", sa.String(length=200), nullable=True))
    op.add_column("dataset_contents", sa.Column("owner_key", sa.String(length=200), nullable=True))
    op.add_column("dataset_contents", sa.Column("compared", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.execute(OWNERS)
    op.create_index("ix_dataset_contents_owner", "dataset_contents", ["owner_key", "hmac"])
    op.create_index("ix_dataset_contents_compared", "dataset_contents", ["compared"])


def downgrade() -> None:
    if not op.get_context().as_sql and op.get_bind().scalar(sa.text(CLOSED)) is not None:
        # Older code would admit jobs on the closed ledger again.
        raise RuntimeError("a ledger was joined to another one; a downgrade would reopen it, so it is refused")
    op.drop_index("ix_dataset_contents_compared", "dataset_contents")
    op.drop_index("ix_dataset_contents_owner", "dataset_contents")
    op.drop_column("dataset_contents", "compared")
    op.drop_column("dataset_contents", "owner_key")
    op.drop_column("accounts", "joined_into")
