"""Grants have terms: an end, a purpose, a permit and named persons.

Revision: 0035, after 0034
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None

TERMS = (
    ("ends_at", sa.DateTime(timezone=True)),
    ("purpose", sa.String(200)),
    ("permit", sa.String(200)),
    ("persons", sa.JSON()),
)


def upgrade() -> None:
    for name, kind in TERMS:
        op.add_column("grants", sa.Column(name, kind, nullable=True))


def downgrade() -> None:
    for name, _ in reversed(TERMS):
        op.drop_column("grants", name)
