"""Digests of what the service signed, for logs that witnesses cosign; those of certificates and terms until now too.

Revision: 0051, after 0050
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import context, op

revision = "0051"
down_revision = "0050"
branch_labels = None
depends_on = None
BATCH = 500


def upgrade() -> None:
    count = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "signed_batches",
        sa.Column("id", sa.String(200), nullable=False),
        sa.Column("size", count, nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("signed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("cosigned", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_signed_batches")),
    )
    digests = op.create_table(
        "signed_digests",
        sa.Column("digest", sa.String(200), nullable=False),
        sa.Column("batch", sa.String(200), sa.ForeignKey("signed_batches.id"), nullable=True),
        sa.Column("place", count, nullable=True),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_signed_digests")),
    )
    op.create_index(op.f("ix_signed_batches_cosigned"), "signed_batches", ["cosigned"])
    op.create_index(op.f("ix_signed_digests_batch"), "signed_digests", ["batch"])
    found = [] if context.is_offline_mode() else sorted(set(_digests()))  # printed statements have no rows to read
    for first in range(0, len(found), BATCH):
        op.bulk_insert(digests, [{"digest": each} for each in found[first : first + BATCH]])


def _digests() -> Iterator[str]:
    connection = op.get_bind()
    for (stored,) in connection.execute(sa.text("SELECT body FROM certificates")):
        body = json.loads(stored) if isinstance(stored, str) else stored
        yield from _of(body.get("envelope"))
    for (stored,) in connection.execute(sa.text("SELECT envelope FROM dataset_terms")):
        yield from _of(json.loads(stored))


def _of(envelope: Any) -> Iterator[str]:
    for each in () if envelope is None else envelope["signatures"]:
        signed = base64.b64decode(each["sig"]) + base64.b64decode(envelope["payload"])
        yield hashlib.sha256(signed).hexdigest()


def downgrade() -> None:
    op.drop_table("signed_digests")
    op.drop_table("signed_batches")
