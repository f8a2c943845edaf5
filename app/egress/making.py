"""Makes the folder of an egress as an archive, with its signed manifest; for the relay, which holds the key.

    model/…                    what the job delivered, its model card README.md among it
    certificate.json           the certificate as it was issued
    statement.json             every entry of every block of the data set, under signed checkpoints
    log.json                   for each ledger that was charged: the checkpoint, and the proof that the charge is in it
    page.html, answers/…       the same in words (app.egress.documents)
    ro-crate-metadata.json     the folder as a Five Safes RO-Crate (app.egress.crate)
    manifest.json              signed: SHA-256 and size of each of these (app.egress.manifest)

Kept are the papers, which is all but the model's files: these stay where the job put them, and each download reads both
(app.egress.archive_sending). So an egress of a large model takes no second copy of it.

All of it was released and paid for, or is public: the certificate, the ledger, declarations, names of keys.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from sqlalchemy import bindparam, or_, select
from sqlalchemy.orm import Session

from app.audit import record as audit
from app.db.database import Database
from app.db.models import Approval, Egress
from app.egress import archive, crate, manifest, service
from app.egress.archive import Changed, Hashed
from app.egress.archive_sending import MODEL, of_model
from app.egress.gathering import Gathered, gathered
from app.ledger.signer import Signer
from app.ledger.transparency import attestations
from app.logs import kind_of
from app.settings import Settings
from app.storage import objects
from app.storage.bucket import DamagedError
from app.storage.objects import Objects
from core.disk import Room, sync
from core.errors import Conflict, Forbidden, NotFound, StorageFull, TransientError, Unavailable
from core.ids import new_id, now, whole_second

logger = logging.getLogger(__name__)
TRIES, LONGEST_WAIT = 16, timedelta(hours=1)  # the last one comes after some five hours
DUE = (
    select(Egress)
    .outerjoin(Approval, Approval.id == Egress.approval_id)
    .where(
        *service.OPEN,
        or_(Egress.approval_id.is_(None), Approval.status == "agreed"),
        or_(Egress.next_try_at.is_(None), Egress.next_try_at <= bindparam("at", type_=Egress.next_try_at.type)),
    )
    .order_by(Egress.next_try_at, Egress.asked_at, Egress.id)
    .limit(1)
)
DAMAGED = "a file of the job is missing or damaged"


@dataclass(frozen=True)
class _Try:
    """Where a try puts the papers, and where the one before it did."""

    path: str
    before: str | None


def next_due(session: Session) -> Egress | None:
    """The next egress that may leave and is not made; those that failed wait for their next try."""
    return session.scalars(DUE, {"at": now()}).first()


def make(db: Database, settings: Settings, key: Signer, egress_id: str, sign_ledgers: Callable[[], None]) -> None:
    """Makes an egress. A try is counted before anything can fail; after the last one it has failed for good.

    Args:
        sign_ledgers: signs the checkpoints that must cover its charge.
    """
    with db.write() as session:
        begun = _begin(session, egress_id)
    if begun is None:
        return
    store = objects.of(settings)
    if begun.before is not None:
        _clear(store, begun.before)
    try:
        sign_ledgers()
        papers = _make(db, settings, key, egress_id, begun.path)
    except Exception as error:
        logger.error("%s cannot be made: %s", egress_id, kind_of(error), exc_info=error)
        with db.write() as session:
            _note_failure(session, egress_id, error)
        _clear(store, begun.path)
        return
    if not papers:  # another relay has made it meanwhile, or the job's files were deleted
        _clear(store, begun.path)


def _begin(session: Session, egress_id: str) -> _Try | None:
    """Counts a try, and names the place of its papers. None: it is made, or has failed.

    Who names a place last makes it: another relay that still writes finds that its place is not the row's.
    """
    row = session.get_one(Egress, egress_id, with_for_update=True, populate_existing=True)
    if row.made_at is not None or row.problem is not None or row.deleted_at is not None:
        return None
    if row.tries >= TRIES:  # the last one was killed
        _fail(session, row, "the last try to make it did not end")
        return None
    path = row.path
    row.tries += 1
    row.next_try_at = now() + min(timedelta(seconds=2**row.tries), LONGEST_WAIT)
    row.path = f"jobs/{row.job_id}/egress/{new_id(row.id)}/papers.zip"
    return _Try(row.path, path)


def _clear(store: Objects, path: str) -> None:
    """Removes what a try left; what stays goes with the job's files."""
    try:
        store.remove(str(Path(path).parent))
    except (OSError, Unavailable) as error:
        logger.error("%s could not be removed: %s", path, kind_of(error))


def _note_failure(session: Session, egress_id: str, error: Exception) -> None:
    row = session.get_one(Egress, egress_id, with_for_update=True, populate_existing=True)
    gone = isinstance(error, Conflict) and error.code == "wrong-state"
    refused = gone or isinstance(error, Forbidden)  # no later try changes that
    for_good = refused or isinstance(error, Changed | DamagedError | NotFound)
    if row.made_at is not None or row.deleted_at is not None or not (for_good or row.tries >= TRIES):
        return
    _fail(session, row, DAMAGED if for_good and not refused else _reason(error))


def _fail(session: Session, row: Egress, problem: str) -> None:
    row.problem = problem
    audit.record(session, "egress.failed", row.job_id, egress=row.id, name=row.recipient)


def _reason(error: Exception) -> str:
    """Why it could not be made, for who asked: nothing of the machine."""
    match error:
        case Conflict() | Forbidden() | StorageFull() | Unavailable() | TransientError():
            return error.message
        case _:
            return "the service could not make it: its log says why"


def _make(db: Database, settings: Settings, key: Signer, egress_id: str, path: str) -> bool:
    """Makes it at this place. False if it is wanted no more."""
    store, root = objects.of(settings), settings.storage_root
    with db.read() as session:
        papers_of = gathered(session, egress_id)
    model = {name: store.local(path, sha256) for name, path, sha256 in papers_of.artifacts}
    digests = {MODEL + name: sha256 for name, _, sha256 in papers_of.artifacts}
    hashes = {MODEL + name: Hashed(digests[MODEL + name], path.stat().st_size) for name, path in model.items()}
    papers = papers_of.papers(db)
    hashes |= {name: archive.hashed(content) for name, content in papers.items()}
    _complete(papers, hashes, papers_of, key)
    pieces_of = archive.hashed_pieces(archive.pieces({**papers, **of_model(model)}, digests))
    written = _write(settings, papers, root / path)
    store.publish(path, root / path, written.sha256)
    if settings.object_store:
        (root / path).unlink()
    with db.write() as session:
        row = session.get_one(Egress, egress_id, with_for_update=True, populate_existing=True)
        if row.made_at is not None or row.deleted_at is not None or row.path != path:
            return False
        row.papers_sha256, row.papers_bytes = written.sha256, written.size_bytes
        row.sha256, row.size_bytes, row.made_at = pieces_of.sha256, pieces_of.size_bytes, whole_second()
        attestations.keep(session, attestations.Envelope.model_validate_json(papers[manifest.NAME]))
        audit.record(session, "egress.made", row.job_id, egress=row.id, name=row.recipient)
    logger.info("%s is made, of %d files", egress_id, len(hashes) + 1)
    return True


def _write(settings: Settings, papers: Mapping[str, bytes], to: Path) -> Hashed:
    """Writes the papers, on disk before this returns."""
    to.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = b"".join(archive.pieces(papers))
    Room(settings.disk_reserve_bytes).require(to.parent, len(content))
    with to.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    sync(to.parent)
    sync(to.parent.parent)
    return archive.hashed(content)


def _complete(files: dict[str, bytes], hashes: dict[str, Hashed], papers_of: Gathered, key: Signer) -> None:
    """Adds the crate, with its hash, and the manifest to a folder."""
    described = crate.metadata(papers_of.facts, papers_of.manifest, hashes, papers_of.submitted_by)
    files[crate.METADATA], hashes[crate.METADATA] = described, archive.hashed(described)
    sizes = {name: each.size_bytes for name, each in sorted(hashes.items())}
    full_manifest = papers_of.manifest.model_copy(update={"sizes": sizes})
    digests = {name: each.sha256 for name, each in hashes.items()}
    files[manifest.NAME] = manifest.signed(full_manifest, digests, key).encode()
