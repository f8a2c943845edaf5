"""What the folder of an egress is made of, and the papers that follow from it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.approvals.service import require_own_agreement, standing
from app.db.database import Database
from app.db.models import Approval, Dataset, Egress, Job
from app.egress import archive_sending, documents, service
from app.egress.archive_sending import Files
from app.egress.manifest import CoveredLedger, Manifest, Word
from app.egress.read import CertificateFacts
from app.jobs.job_certificate import require_certificate
from app.ledger import evidence
from app.ledger.certificate_documents import Signed
from app.ledger.evidence import Evidence
from app.ledger.transparency import checkpoints
from core.errors import TransientError
from core.ids import rfc3339, whole_second


@dataclass(frozen=True)
class Gathered:
    """What a folder is made of, read in one transaction."""

    facts: CertificateFacts
    certificate: bytes
    log: bytes
    evidence: Evidence
    artifacts: Files
    submitted_by: str
    manifest: Manifest

    def papers(self, db: Database) -> dict[str, bytes]:
        """The papers that follow from it alone, by their names in the folder."""
        return {
            "certificate.json": self.certificate,
            "log.json": self.log,
            "statement.json": "".join(evidence.pieces(db, self.evidence)).encode(),
            **documents.documents(self.facts, self.manifest, self.submitted_by),
        }


def gathered(session: Session, egress_id: str) -> Gathered:
    """Reads what an egress is made of.

    Raises:
        Conflict, Forbidden: it may not leave.
        TransientError: the newest checkpoint of a ledger does not reach its charge yet.
    """
    row = session.get_one(Egress, egress_id)
    job = session.get_one(Job, row.job_id)
    dataset = session.get_one(Dataset, job.dataset_id)
    stored = require_certificate(session, job).body
    facts = CertificateFacts.model_validate(Signed.model_validate(stored).certificate)
    facts_of_dataset = evidence.of(session, dataset)
    service.require_files(session, job, stored)
    require_own_agreement(session, job, row)
    words = [] if row.approval_id is None else standing(session, session.get_one(Approval, row.approval_id))
    return Gathered(
        facts=facts,
        certificate=_text(stored),
        log=_text(_proofs(session, facts, facts_of_dataset)),
        evidence=facts_of_dataset,
        artifacts=archive_sending.files_of(session, row),
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
                CoveredLedger(id=each.dataset_id, label=label, entries=each.size)
                for label, each in facts_of_dataset.ledgers
            ),
            sizes={},
        ),
    )


def _proofs(session: Session, facts: CertificateFacts, facts_of_dataset: Evidence) -> object:
    """The log's part of the folder: that the charge is in the newest checkpoint of each ledger that was charged."""
    notes = {each.dataset_id: each for _, each in facts_of_dataset.ledgers}
    proofs = []
    for ledger, settled in facts.ledgers.items():
        note = notes[ledger]
        if note.size < settled.entry_seq:
            raise TransientError(f"the checkpoint of {ledger} does not reach the job's charge yet")
        (proof,) = checkpoints.proofs(session, ledger, [(settled.entry_seq, settled.head)], note.size)
        proofs.append({"id": ledger, "checkpoint": note.note, "proof": proof.model_dump(mode="json")})
    return {"version": 1, "ledgers": proofs}


def _text(document: object) -> bytes:
    return (json.dumps(document, ensure_ascii=False, indent=1) + "\n").encode()
