"""What nobody needs any more of the files that arrived. Whoever sees the folder removes it: an ingest worker, and each
API process. A relay may have no such volume."""

from __future__ import annotations

from app.datasets import readings, resumable, service
from app.db.database import Database
from app.settings import Settings


def sweep(db: Database, settings: Settings) -> None:
    """Removes what crashes and ended readings left, and uploads that have expired."""
    service.sweep(settings)
    resumable.sweep(settings)
    readings.sweep(db, settings)
