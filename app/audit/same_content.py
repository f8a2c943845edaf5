"""Flags content that two owners have registered, in the audit log, for admins alone.

The relay does it some time after the registration. Neither the response nor its timing tells an owner that somebody
else has the same content: otherwise it would be an oracle for guesses at private data.
"""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session, aliased

from app.audit import record as audit
from app.db.database import Database
from app.db.models import Dataset, DatasetContent

BATCH = 100
UNCOMPARED = select(DatasetContent.id).where(~DatasetContent.compared).limit(1)


def flag(db: Database) -> int:
    """Compares new registrations since the last time; returns how many pairs of data sets it flagged."""
    with db.quick_read() as connection:
        if connection.scalar(UNCOMPARED) is None:
            return 0
    waiting = select(DatasetContent).where(~DatasetContent.compared).order_by(DatasetContent.id).limit(BATCH)
    with db.write() as session:
        contents = session.scalars(waiting.with_for_update(skip_locked=True)).all()
        pairs = sorted({pair for each in contents for pair in _pairs(session, each)})
        for newer, older in pairs:
            audit.record(session, "dataset.same_content", newer, dataset=older)
        for content in contents:
            content.compared = True
        return len(pairs)


def _pairs(session: Session, content: DatasetContent) -> set[tuple[str, str]]:
    """Pairs (this data set, an older one of another owner with the same content) in which one is private."""
    mine, other, other_content = aliased(Dataset), aliased(Dataset), aliased(DatasetContent)
    same = (
        select(mine.id, other.id)
        .select_from(other_content)
        .join(other, other.id == other_content.dataset_id)
        .join(mine, mine.id == content.dataset_id)
        .where(other_content.hmac == content.hmac, other_content.id < content.id, other.owner_key != mine.owner_key)
        .where((mine.sensitivity == "private") | (other.sensitivity == "private"))
    )
    return {(row[0], row[1]) for row in session.execute(same)}
