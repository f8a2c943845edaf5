"""Owners retire data sets that nothing was held on, and replace declarations; jobs keep the version of their price.

Revision: 0016, after 0015
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

USED = "SELECT id FROM datasets WHERE retired_at IS NOT NULL OR declaration > 1 LIMIT 1"


def upgrade() -> None:
    count = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.add_column("datasets", sa.Column("retired_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("datasets", sa.Column("declaration", count, nullable=False, server_default="1"))
    op.add_column("jobs", sa.Column("declaration", count, nullable=False, server_default="1"))
    op.create_table(
        "declarations",
        sa.Column("dataset_id", sa.String(length=200), nullable=False),
        sa.Column("version", count, autoincrement=False, nullable=False),
        sa.Column("spec", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("shape", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("replaced_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"], name=op.f("fk_declarations_dataset_id_datasets")),
        sa.PrimaryKeyConstraint("dataset_id", "version", name=op.f("pk_declarations")),
    )


def downgrade() -> None:
    if not op.get_context().as_sql and op.get_bind().scalar(sa.text(USED)) is not None:
        # Older code would run jobs with numbers that they were not priced with, and count retired content twice.
        raise RuntimeError("a data set was retired or declared anew; older code cannot know, so this is refused")
    op.drop_table("declarations")
    op.drop_column("jobs", "declaration")
    op.drop_column("datasets", "declaration")
    op.drop_column("datasets", "retired_at")
