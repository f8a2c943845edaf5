"""An egress keeps its papers, not the model again; tries to make one are counted; a list of persons has a version; a
charge has a use.

Archives that were made before are made again, as papers.

Revision: 0042, after 0040
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0042"
down_revision = "0040"
branch_labels = None
depends_on = None

NAME, WHEN = sa.String(200), sa.DateTime(timezone=True)
OPEN = "made_at IS NULL AND problem IS NULL AND deleted_at IS NULL"


def upgrade() -> None:
    count = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.add_column("egresses", sa.Column("tries", count, nullable=False, server_default="0"))
    op.add_column("egresses", sa.Column("next_try_at", WHEN, nullable=True))
    op.add_column("egresses", sa.Column("deleted_at", WHEN, nullable=True))
    op.add_column("egresses", sa.Column("papers_sha256", NAME, nullable=True))
    op.add_column("egresses", sa.Column("papers_bytes", count, nullable=True))
    op.execute(f"CREATE INDEX ix_egresses_open ON egresses (asked_at) WHERE {OPEN}")
    op.execute("update egresses set made_at = null, path = null, sha256 = null, size_bytes = null")
    op.execute("delete from outbox where topic = 'egress'")
    op.add_column("charges", sa.Column("use", sa.JSON(), nullable=True))
    # Purpose and permit bind jobs, so they are terms of `train` grants alone.
    op.execute("update grants set purpose = null, permit = null where access <> 'train'")
    op.add_column("datasets", sa.Column("persons_version", count, nullable=False, server_default="0"))
    op.execute("update datasets set persons_version = 1 where id in (select dataset_id from dataset_persons)")


def downgrade() -> None:
    op.drop_index("ix_egresses_open", "egresses")
    for column in ("papers_bytes", "papers_sha256", "deleted_at", "next_try_at", "tries"):
        op.drop_column("egresses", column)
    op.drop_column("datasets", "persons_version")
    op.drop_column("charges", "use")
