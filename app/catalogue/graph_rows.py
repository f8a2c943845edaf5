"""The rows of uploaded graphs (app.graphs.uploads), as submissions and workers read them."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from app.catalogue.graph_files import NOT_UPLOADED
from app.db.models import Graph
from app.settings import Settings
from app.storage import objects
from core.contracts.graph import GraphFacts, GraphModel
from core.errors import InvalidRequest, NotFound

logger = logging.getLogger(__name__)
GRAPHS, FILE = "graphs", "graph.pt2"


def named(model: object) -> str | None:
    """The SHA-256 of the graph that a job's model names as uploaded; None: it names none."""
    return model.upload if isinstance(model, GraphModel) else None


def facts_of(session: Session, key_id: str, model: object) -> GraphFacts | None:
    """The facts of the graph that a model names, as a key's job is resolved; None: it names none of the key's."""
    sha256 = named(model)
    row = None if sha256 is None else row_of(session, key_id, sha256)
    return None if row is None else row.facts


def use(session: Session, key_id: str, sha256: str | None) -> None:
    """Notes that a job with this graph is submitted, in its transaction: the graph then stays until the job has ended.

    Args:
        sha256: as the job names it; None: it names none.

    Raises:
        InvalidRequest: it was deleted meanwhile.
    """
    if sha256 is None:
        return
    noted = update(Graph).where(Graph.key_id == key_id, Graph.sha256 == sha256).values(used_at=datetime.now(UTC))
    if session.scalar(noted.returning(Graph.id)) is None:
        raise InvalidRequest.at("/model/upload", NOT_UPLOADED)


def models_root(session: Session, settings: Settings, key_id: str, model: object) -> Path | None:
    """Where a job's model lies: the folder of models, or the file of the graph that its key uploaded, on this machine.
    None: there is no folder. Where the file is missing, a place without one.

    Raises:
        StorageFull, Unavailable: see app.storage.objects.
    """
    sha256 = named(model)
    if sha256 is None:
        return None if settings.models_root is None else settings.models_root.resolve()
    row = row_of(session, key_id, sha256)
    if row is not None:
        try:
            return objects.of(settings).local(f"{GRAPHS}/{row.id}/{FILE}", sha256).resolve()
        except NotFound:
            logger.error("the file of %s is missing", row.id)
    return settings.storage_root.resolve() / GRAPHS / sha256


def row_of(session: Session, key_id: str, sha256: str, *, lock: bool = False) -> Graph | None:
    """A key's graph with this content."""
    query = select(Graph).where(Graph.key_id == key_id, Graph.sha256 == sha256)
    return session.scalar(query.with_for_update() if lock else query)
