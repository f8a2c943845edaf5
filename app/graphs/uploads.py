"""Models that keys upload as graphs, for their own jobs: `model: {"kind": "graph", "upload": <SHA-256>}`.

    uploads/<id>/            the file as it arrives, in pieces, as a data file does (app.datasets.resumable)
    staging/<random>/        a copy in plaintext, which a process under limits looks at (app.catalogue.graph_files)
    graphs/<id>/graph.pt2    what was found fit, in the store of jobs' files (app.storage.objects)

Only the key that uploaded a graph sees, names and deletes it. Its bytes count against the key's quota. A graph is no
data: it is stored as it is, also where data are sealed.
"""

from __future__ import annotations

import hashlib
import logging
import os
from datetime import datetime
from pathlib import Path

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from app.audit import record as audit
from app.catalogue import graph_files
from app.catalogue.graph_rows import FILE, GRAPHS, row_of
from app.datasets import resumable, storage
from app.db.database import Database
from app.db.models import ApiKey, Graph, Job
from app.settings import Settings
from app.storage import objects
from app.storage.folder import Folder
from app.storage.seals import Seals
from core.disk import LOOK_BYTES, keep
from core.errors import Conflict, InvalidRequest, NotFound, ServiceError, too_large
from core.ids import new_id, now
from core.parts.graph_file import MOST_BYTES
from core.parts.sealed import Named, create, readable

logger = logging.getLogger(__name__)
MOST_GRAPHS = 100  # of a key
AT_ONCE = 100  # deletions in one sweep


def add(db: Database, settings: Settings, key_id: str, upload_id: str) -> Graph:
    """Keeps an upload's file as a graph, if it is one that can be trained. The upload is used up.

    Returns:
        its row; of a content that the key has uploaded before, that one's.

    Raises:
        InvalidRequest: there is no such upload, a part of it is missing, or it holds no graph that can be trained.
        Conflict: `too-many-uploads`: the key has MOST_GRAPHS graphs.
        TooLarge, StorageFull, Unavailable, LimitError.
    """
    with storage.staging(settings.storage_root) as folder:
        declared = resumable.take(settings, key_id, upload_id, "/upload", folder, FILE)
        if declared.size > MOST_BYTES:
            raise too_large(MOST_BYTES)
        arrived = storage.arrived(folder, FILE)
        content = readable(arrived, storage.key_of(Seals(settings), arrived))
        if declared.sha256 is not None:
            resumable.check_arrived(content, declared.sha256, "/upload")
        graph_id = new_id("gr")
        (folder / graph_id).mkdir(mode=0o700)
        file = folder / graph_id / FILE
        sha256 = _copied(content, file, settings)
        verdict = graph_files.verdict_of(file, sha256)
        if isinstance(verdict, str):
            raise InvalidRequest.at("/upload", verdict)
        at = now()
        row = Graph(
            id=graph_id,
            key_id=key_id,
            sha256=sha256,
            bytes=declared.size,
            facts=verdict,
            created_at=at,
            used_at=at,
        )
        graph = _kept(db, settings, row, folder / graph_id)
    resumable.consume(settings, upload_id)
    return graph


def _copied(content: Named, file: Path, settings: Settings) -> str:
    """Copies an upload to a file of this process alone, and returns its SHA-256."""
    room, digest, copied = resumable.room_of(settings), hashlib.sha256(), 0
    with content.open("rb") as source, create(file, None) as to:
        while block := source.read(storage.COPY_BYTES):
            if copied % LOOK_BYTES < len(block):
                room.require(file.parent)
            to.write(block)
            digest.update(block)
            copied += len(block)
        to.flush()
        os.fsync(to.fileno())
    return digest.hexdigest()


def _kept(db: Database, settings: Settings, row: Graph, folder: Path) -> Graph:
    """Publishes a graph's file and writes its row; or finds the key's row of the same content."""
    with db.read() as session:
        if (earlier := row_of(session, row.key_id, row.sha256)) is not None:
            return earlier
    key, store = f"{GRAPHS}/{row.id}/{FILE}", objects.of(settings)
    keep(settings.storage_root, folder, row.id, GRAPHS)
    try:
        store.publish(key, settings.storage_root / key, row.sha256)
        with db.write() as session:
            # The key's row is the lock: of two equal uploads one is kept.
            session.execute(select(ApiKey.id).where(ApiKey.id == row.key_id).with_for_update(key_share=True))
            earlier = row_of(session, row.key_id, row.sha256)
            if earlier is None:
                _require_room(session, row.key_id)
                session.add(row)
                audit.record(session, "graph.uploaded", row.id)
    except ServiceError:  # after any other, such as a connection lost at the commit, the row may be there
        store.remove(f"{GRAPHS}/{row.id}")
        raise
    if earlier is not None:
        store.remove(f"{GRAPHS}/{row.id}")
    elif objects.bucket_of(settings) is not None:
        Folder(settings.storage_root).remove(f"{GRAPHS}/{row.id}")  # it lies in the bucket now
    return earlier or row


def _require_room(session: Session, key_id: str) -> None:
    if len(every(session, key_id)) >= MOST_GRAPHS:
        raise Conflict(
            "too-many-uploads", f"this key has {MOST_GRAPHS} graphs, its limit: delete one", limit=MOST_GRAPHS
        )


def every(session: Session, key_id: str) -> list[Graph]:
    """A key's graphs, the newest first."""
    return list(
        session.scalars(select(Graph).where(Graph.key_id == key_id).order_by(Graph.created_at.desc(), Graph.id))
    )


def delete(db: Database, settings: Settings, key_id: str, sha256: str) -> None:
    """Deletes a graph of a key. Its finished jobs keep their models; predictions by the service end for them.

    Raises:
        NotFound: the key has none with this content.
        Conflict: `wrong-state`: a job with it is not finished.
    """
    with db.write() as session:
        row = row_of(session, key_id, sha256, lock=True)
        if row is None:
            raise NotFound("your key has no graph with this SHA-256")
        place = _drop(session, row)
        audit.record(session, "graph.deleted", row.id)
    objects.of(settings).remove(place)


def _drop(session: Session, row: Graph) -> str:
    """Deletes a row, under its lock, which a submission takes too (`use`). Returns the place of its file."""
    unfinished = select(Job.spec).where(Job.key_id == row.key_id, Job.finished_at.is_(None))
    if any((spec.get("model") or {}).get("upload") == row.sha256 for spec in session.scalars(unfinished)):
        raise Conflict("wrong-state", "a job with this graph is not finished: wait for it, or cancel it first")
    session.delete(row)
    return f"{GRAPHS}/{row.id}"


def sweep(db: Database, settings: Settings, limit: datetime | None) -> None:
    """Removes uploads in pieces that have expired; deletes the graphs of revoked keys, and those that no job was
    submitted with since; removes what crashes left on this machine (not in a bucket).

    Args:
        limit: None: unused ones are kept.
    """
    resumable.sweep(settings)
    unused = () if limit is None else (Graph.used_at < limit,)
    revoked = select(ApiKey.id).where(ApiKey.id == Graph.key_id, ApiKey.revoked_at.is_not(None)).exists()
    with db.read() as session:
        over = session.execute(select(Graph.key_id, Graph.sha256).where(or_(revoked, *unused)).limit(AT_ONCE)).all()
    for key_id, sha256 in over:
        try:
            with db.write() as session:
                row = row_of(session, key_id, sha256, lock=True)
                if row is None:
                    continue
                place = _drop(session, row)
                audit.record(session, "graph.deleted", row.id, because="retention")
        except ServiceError as error:
            logger.info("a graph is kept for now: %s", error.message)
            continue
        objects.of(settings).remove(place)
    for folder in storage.stale(settings.storage_root, GRAPHS):
        with db.read() as session:
            is_known = session.get(Graph, folder.name) is not None
        if not is_known:
            objects.of(settings).remove(f"{GRAPHS}/{folder.name}")
