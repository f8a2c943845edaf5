"""Makes the folder of an egress as an archive, with its signed manifest; for the relay, which holds the key.

    model/…                    what the job delivered, its model card README.md among it
    certificate.json           the certificate as it was issued
    statement.json             every entry of every block of the data set, under signed checkpoints
    log.json                   for each ledger that was charged: the checkpoint, and the proof that the charge is in it
    page.html, answers/…       the same in words (app.egress.documents)
    ro-crate-metadata.json     the folder as a Five Safes RO-Crate (app.egress.crate)
    manifest.json              signed: SHA-256 and size of each of these (app.egress.manifest)

All of it was released and paid for, or is public: the certificate, the ledger, declarations, names of keys.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.approvals.service import agreements_of
from app.audit import record as audit
from app.db.engine import Database
from app.db.models import Artifact, Dataset, Egress, Job
from app.egress import archive, crate, documents, manifest, service
from app.egress.archive import Hashed
from app.egress.manifest import CoveredLedger, Manifest, Word
from app.egress.read import CertificateFacts
from app.jobs.certified import require_certificate
from app.ledger import evidence
from app.ledger.certified import Signed
from app.ledger.evidence import Evidence
from app.ledger.transparency import checkpoints
from app.storage.objects import Objects
from core.disk import sync
from core.errors import ServiceError, TransientError
from core.ids import new_id, rfc3339, whole_second

logger = logging.getLogger(__name__)
MODEL = "model/"
Files = dict[str, bytes | Path]


@dataclass(frozen=True)
class _Gathered:
    """What a folder is made of, read in one transaction."""

    facts: CertificateFacts
    certificate: bytes
    log: bytes
    evidence: Evidence
    artifacts: list[tuple[str, str, str]]  # name, path, SHA-256
    submitted_by: str
    manifest: Manifest


def make_due(db: Database, store: Objects, root: Path, key: Ed25519PrivateKey, job_id: str) -> int:
    """Makes a job's due egresses; the newest signed checkpoints must cover its charge. Returns how many were made.

    Raises:
        TransientError: a checkpoint does not reach the charge yet.
        ServiceError: the store or the database does not answer.
    """
    with db.read() as session:
        waiting = [each.id for each in service.due(session, job_id)]
    for egress_id in waiting:
        _make(db, store, root, key, egress_id)
    return len(waiting)


def _make(db: Database, store: Objects, root: Path, key: Ed25519PrivateKey, egress_id: str) -> None:
    with db.read() as session:
        found = _gathered(session, egress_id)
    try:
        files: Files = {MODEL + name: store.local(path, sha256) for name, path, sha256 in found.artifacts}
        hashes = {name: archive.hashed(content) for name, content in files.items()}
        damaged = [name for name, _, sha256 in found.artifacts if hashes[MODEL + name].sha256 != sha256]
    except ServiceError as error:
        if error.status >= 500:
            raise
        hashes, damaged = {}, [error.message]
    if damaged:
        with db.write() as session:
            session.get_one(Egress, egress_id).problem = "a file of the job is missing or damaged"
        logger.error("%s cannot be made: %s", egress_id, ", ".join(damaged))
        return
    papers: Files = {
        "certificate.json": found.certificate,
        "log.json": found.log,
        "statement.json": "".join(evidence.pieces(db, found.evidence)).encode(),
        **documents.documents(found.facts, found.manifest, found.submitted_by),
    }
    hashes |= {name: archive.hashed(content) for name, content in papers.items()}
    files |= papers
    _complete(files, hashes, found, key)
    # A name of its own for each try: another try has another time in it.
    path = f"jobs/{found.manifest.job}/egress/{new_id(egress_id)}.zip"
    (root / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    whole = archive.write(files, root / path)
    sync((root / path).parent)
    store.publish(path, root / path, whole.sha256)
    with db.write() as session:
        row = session.get_one(Egress, egress_id, with_for_update=True, populate_existing=True)
        if row.made_at is None:  # another relay may have made it meanwhile
            row.path, row.sha256, row.size_bytes, row.made_at = path, whole.sha256, whole.size_bytes, whole_second()
            audit.record(session, "egress.made", row.job_id, egress=row.id, name=row.recipient)
    logger.info("%s is made, of %d files", egress_id, len(hashes) + 1)


def _complete(files: Files, hashes: dict[str, Hashed], found: _Gathered, key: Ed25519PrivateKey) -> None:
    """Adds the crate, with its hash, and the manifest to a folder."""
    files[crate.METADATA] = crate.metadata(found.facts, found.manifest, hashes, found.submitted_by)
    hashes[crate.METADATA] = archive.hashed(files[crate.METADATA])
    sizes = {name: each.size_bytes for name, each in sorted(hashes.items())}
    whole = found.manifest.model_copy(update={"sizes": sizes})
    digests = {name: each.sha256 for name, each in hashes.items()}
    files[manifest.NAME] = manifest.signed(whole, digests, key).encode()


def _gathered(session: Session, egress_id: str) -> _Gathered:
    row = session.get_one(Egress, egress_id)
    job = session.get_one(Job, row.job_id)
    dataset = session.get_one(Dataset, job.dataset_id)
    stored = require_certificate(session, job).body
    facts = CertificateFacts.model_validate(Signed.model_validate(stored).certificate)
    known = evidence.of(session, dataset)
    rows = select(Artifact).where(Artifact.job_id == job.id).order_by(Artifact.name)
    words = [] if row.approval_id is None else agreements_of(session, row.approval_id)
    return _Gathered(
        facts=facts,
        certificate=_text(stored),
        log=_text(_proofs(session, facts, known)),
        evidence=known,
        artifacts=[(each.name, each.path, each.sha256) for each in session.scalars(rows)],
        submitted_by=job.key_id,
        manifest=Manifest(
            egress=row.id,
            number=row.number,
            job=job.id,
            dataset=dataset.id,
            dataset_name=dataset.name,
            recipient=row.recipient,
            reason=row.reason,
            asked_by=row.asked_by,
            asked_at=rfc3339(row.asked_at),
            approvals=tuple(Word(person=each.person, key_id=each.key_id, at=rfc3339(each.at)) for each in words),
            made_at=rfc3339(whole_second()),
            ledgers=tuple(
                CoveredLedger(id=each.dataset_id, label=label, entries=each.size) for label, each in known.ledgers
            ),
            sizes={},
        ),
    )


def _proofs(session: Session, facts: CertificateFacts, known: Evidence) -> object:
    """The log's part of the folder: that the charge is in the newest checkpoint of each ledger that was charged."""
    notes = {each.dataset_id: each for _, each in known.ledgers}
    told = []
    for ledger, settled in facts.ledgers.items():
        note = notes[ledger]
        if note.size < settled.entry_seq:
            raise TransientError(f"the checkpoint of {ledger} does not reach the job's charge yet")
        (proof,) = checkpoints.proofs(session, ledger, [(settled.entry_seq, settled.head)], note.size)
        told.append({"id": ledger, "checkpoint": note.note, "proof": proof.model_dump(mode="json")})
    return {"version": 1, "ledgers": told}


def _text(document: object) -> bytes:
    return (json.dumps(document, ensure_ascii=False, indent=1) + "\n").encode()
