"""A worker's copies of data sets whose content was deleted go too: it looks once a minute, also while it is idle."""

from __future__ import annotations

import logging

from sqlalchemy import select

from app.db.database import Database
from app.db.models import Dataset
from app.storage.parts import Parts

logger = logging.getLogger(__name__)
LOOK_S = 60.0


def drop_deleted(db: Database, part_store: Parts) -> None:
    """Removes this machine's copies of data sets that have no content in this database."""
    copies = part_store.copied()
    if not copies:
        return
    with db.read() as session:
        stored = set(
            session.scalars(select(Dataset.id).where(Dataset.id.in_(copies), Dataset.content_deleted_at.is_(None)))
        )
    for dataset_id in copies:
        if dataset_id not in stored:
            part_store.discard(dataset_id)
            logger.info("the copies of %s were removed: its content was deleted", dataset_id)
