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
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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
from app.sandbox.limited import busy
from app.settings import Settings
from app.storage import objects
from app.storage.bucket import DamagedError
from app.storage.seals import Seals
from core.disk import LOOK_BYTES, keep
from core.errors import Conflict, InvalidRequest, NotFound, ServiceError, TooManyRequests, too_large
from core.ids import new_id, now
from core.parts.graph_file import MOST_BYTES
from core.parts.sealed import Named, create, readable

logger = logging.getLogger(__name__)
MOST_GRAPHS = 100  # of a key
AT_ONCE = 100  # deletions in one sweep
MOST_UNDER_WAY = 8  # uploads that one API process makes graphs of, one of each key: each has a copy on its disk
AGAIN_S = 5
_under_way: set[str] = set()  # their keys
_lock = threading.Lock()


def add(db: Database, settings: Settings, key_id: str, upload_id: str) -> Graph:
    """Keeps an upload's file as a graph, if it is one that can be trained. The upload is used up.

    Returns:
        its row; of a content that the key has uploaded before, that one's.

    Raises:
        InvalidRequest: there is no such upload, a part of it is missing, or it holds no graph that can be trained.
        Conflict: `too-many-uploads`: the key has MOST_GRAPHS graphs.
        TooManyRequests: another upload of the key is being read.
        LimitError: the uploads of many keys are being read (503).
        TooLarge, StorageFull, Unavailable.
    """
    with _place(key_id), storage.staging(settings.arrivals_root) as folder:
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
        verdict = graph_files.verdict_of(file, sha256, key_id)
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
        graph = _kept(db, settings, row, file)
    resumable.consume(settings, upload_id)
    return graph


@contextmanager
def _place(key_id: str) -> Iterator[None]:
    """A place for a key's upload, refused at once where there is none: a copy that waits takes the disk."""
    with _lock:
        if key_id in _under_way:
            raise TooManyRequests("another graph of this key is being read: send one after the other", AGAIN_S)
        if len(_under_way) >= MOST_UNDER_WAY:
            raise busy()
        _under_way.add(key_id)
    try:
        yield
    finally:
        with _lock:
            _under_way.remove(key_id)


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


def _kept(db: Database, settings: Settings, row: Graph, file: Path) -> Graph:
    """Publishes a graph's file and writes its row; or finds the key's row of the same content, whose file it replaces
    where that was lost."""
    with db.read() as session:
        earlier = row_of(session, row.key_id, row.sha256)
    if earlier is not None:
        if not _is_whole(settings, earlier):
            logger.error("the file of %s was lost or damaged: its key has sent it again", earlier.id)
            objects.of(settings).remove(f"{GRAPHS}/{earlier.id}")
            _publish(settings, earlier, file)
        return earlier
    try:
        _publish(settings, row, file)
        with db.write() as session:
            # The key's row is the lock: of two equal uploads one is kept.
            session.execute(select(ApiKey.id).where(ApiKey.id == row.key_id).with_for_update(key_share=True))
            earlier = row_of(session, row.key_id, row.sha256)
            if earlier is None:
                _require_room(session, row.key_id)
                session.add(row)
                audit.record(session, "graph.uploaded", row.id)
    except ServiceError:  # after any other, such as a connection lost at the commit, the row may be there
        objects.of(settings).remove(f"{GRAPHS}/{row.id}")
        raise
    if earlier is not None:
        objects.of(settings).remove(f"{GRAPHS}/{row.id}")
    return earlier or row


def _publish(settings: Settings, row: Graph, file: Path) -> None:
    """Puts a row's file, the only one of its folder, at its place. In the storage's folder it is moved there."""
    key = f"{GRAPHS}/{row.id}/{FILE}"
    if objects.bucket_of(settings) is None:
        keep(settings.storage_root, file.parent, row.id, GRAPHS)
        file = settings.storage_root / key
    objects.of(settings).publish(key, file, row.sha256)


def _is_whole(settings: Settings, row: Graph) -> bool:
    """Whether a row's file is there, as it was uploaded."""
    try:
        with objects.of(settings).local(f"{GRAPHS}/{row.id}/{FILE}", row.sha256).open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest() == row.sha256
    except (NotFound, DamagedError):
        return False


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
    submitted with since; removes files that crashes left without their rows.

    Args:
        limit: None: unused ones are kept.
    """
    resumable.sweep(settings)
    unused = () if limit is None else (Graph.used_at < limit,)
    revoked = select(ApiKey.id).where(ApiKey.id == Graph.key_id, ApiKey.revoked_at.is_not(None)).exists()
    with db.read() as session:
        over = session.execute(select(Graph.key_id, Graph.sha256).where(or_(revoked, *unused))).all()
    deleted = 0
    for key_id, sha256 in over:  # those that unfinished jobs keep take no other's turn
        if deleted == AT_ONCE:
            break
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
        deleted += 1
        objects.of(settings).remove(place)
    for name in objects.of(settings).stale(GRAPHS):
        with db.read() as session:
            is_known = session.get(Graph, name) is not None
        if not is_known:
            objects.of(settings).remove(f"{GRAPHS}/{name}")
