"""A job's file as a document, for its page."""

from __future__ import annotations

import json
from typing import TypeVar

from app.db.database import Database
from app.db.models import Artifact
from app.jobs import artifacts
from app.storage.objects import Objects
from core.contracts.base import Document
from core.errors import Conflict, NotFound

MOST_BYTES = 16 * 2**20
D = TypeVar("D", bound=Document)


def document_of(db: Database, store: Objects, file: Artifact, kind: type[D], most_bytes: int = MOST_BYTES) -> D | None:
    """Reads a file; None if it is larger, not there, damaged, or another kind of document."""
    if file.size_bytes > most_bytes or file.damaged_at is not None:
        return None
    try:
        return kind.model_validate(json.loads(artifacts.local(db, store, file).read_bytes()))
    except (ValueError, OSError, NotFound, Conflict):  # a ValidationError is a ValueError
        return None
