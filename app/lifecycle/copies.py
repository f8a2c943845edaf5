"""A worker's copies of data sets whose content was deleted go too: it looks once a minute, also while it is idle."""

from __future__ import annotations

import logging

from sqlalchemy import select

from app.db.engine import Database
from app.db.models import Dataset
from app.storage.parts import Parts

logger = logging.getLogger(__name__)
LOOK_S = 60.0


def drop_deleted(db: Database, kept: Parts) -> None:
    """Removes this machine's copies of data sets that have no content in this database."""
    here = kept.copied()
    if not here:
        return
    with db.read() as session:
        there = set(
            session.scalars(select(Dataset.id).where(Dataset.id.in_(here), Dataset.content_deleted_at.is_(None)))
        )
    for each in here:
        if each not in there:
            kept.discard(each)
            logger.info("the copies of %s were removed: its content was deleted", each)
