"""Keys of people who sign in at an identity provider.

Revision: 0046, after 0045
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0046"
down_revision = "0045"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("issuer", sa.String(255), nullable=True))
    op.add_column("api_keys", sa.Column("subject", sa.String(255), nullable=True))
    op.create_index("ix_api_keys_person", "api_keys", ["issuer", "subject"], unique=True)


def downgrade() -> None:
    op.drop_index("ix_api_keys_person", "api_keys")
    op.drop_column("api_keys", "subject")
    op.drop_column("api_keys", "issuer")
