"""What a data set's chain must contain: heads and checkpoints that were signed, or recorded outside the database.

Certificates hold the head after their settlement, and a checkpoint; the relay signs the newest checkpoint; a head and a
checkpoint lie outside every backup. A chain that was rewritten or rolled back completely lacks one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.models import Certificate, Dataset, Job, LedgerCheckpoint, LedgerEntry, SigningKey
from app.ledger import certificates
from app.ledger.certificate_documents import Certified, Signed
from app.ledger.transparency import notes
from app.ledger.transparency.attestations import NotAuthentic
from app.ledger.transparency.heads import Head


@dataclass
class Anchors:
    """The heads and roots that a chain must contain.

    Attributes:
        heads: hash by entry.
        roots: the tree's root by number of entries.
        names: the holder of each head, by entry.
        root_names: the holder of each root.
        faults: invalid signatures, and unreadable documents.
    """

    heads: dict[int, str] = field(default_factory=dict)
    roots: dict[int, bytes] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    root_names: dict[int, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def count(self, after: int) -> int:
        """How many heads and roots there are of more entries than these."""
        return sum(place > after for places in (self.heads, self.roots) for place in places)

    def add(self, seq: int, head: str, name: str) -> None:
        """Adds a kept head; notes a fault if it contradicts another one."""
        if self.heads.setdefault(seq, head) != head:
            self.faults.append(f"{name} has another entry {seq} than {self.names[seq]}")
        self.names.setdefault(seq, name)

    def add_note(self, note: str, dataset_id: str, keys: set[str], name: str) -> None:
        """Adds a kept checkpoint, if one of the service's keys signed it."""
        for key in keys:
            try:
                checkpoint = notes.opened(note, key)
            except NotAuthentic:
                continue
            if checkpoint.dataset != dataset_id:
                break
            if self.roots.setdefault(checkpoint.size, checkpoint.root) != checkpoint.root:
                self.faults.append(f"{name} has other entries than {self.root_names[checkpoint.size]}")
            self.root_names.setdefault(checkpoint.size, name)
            return
        self.faults.append(f"{name} is not a checkpoint of this ledger that this service signed")


def anchors(
    session: Session, dataset_id: str, recorded: Head | None, outside: str | None = None, after: int = 0
) -> Anchors:
    """All kept heads and checkpoints of a data set.

    Args:
        recorded: the head outside the database; None: there is none.
        outside: the checkpoint outside the database, as a note.
        after: of certificates those of jobs that have an entry after this one.
    """
    found_anchors = Anchors()
    if recorded is not None:
        found_anchors.add(recorded.seq, recorded.head, "the record outside the database")
    public_keys = set(session.scalars(select(SigningKey.public_key)))
    signed = session.scalar(select(LedgerCheckpoint.note).where(LedgerCheckpoint.dataset_id == dataset_id))
    for name, note in (
        ("the checkpoint outside the database", outside),
        ("the checkpoint that the relay signed", signed),
    ):
        if note is not None:
            found_anchors.add_note(note, dataset_id, public_keys, name)
    # A block's certificates are its data set's: each names the blocks that it charged, under its signature.
    parent = session.scalar(select(Dataset.parent_id).where(Dataset.id == dataset_id)) or dataset_id
    for job_id, document in _certificates(session, dataset_id, parent, after):
        _add_certificate(found_anchors, f"the certificate of {job_id}", document, dataset_id, parent, public_keys)
    return found_anchors


def _add_certificate(
    result: Anchors, name: str, document: object, dataset_id: str, parent: str, public_keys: set[str]
) -> None:
    try:
        signed = Signed.model_validate(document)
        body, key = Certified.of(signed.certificate), signed.public_key
        if body.dataset.id != parent:
            raise ValueError("it belongs to another data set")
        ledger_part = body.ledgers.get(dataset_id)
    except ValueError:
        result.faults.append(f"{name} cannot be read")
        return
    if key not in public_keys:
        result.faults.append(f"{name} is signed with a key that does not belong to this service")
    elif not certificates.verify(document, key):
        result.faults.append(f"the signature of {name} is not valid")
    elif ledger_part is not None:
        result.add(ledger_part.entry_seq, ledger_part.head, name)
        if ledger_part.checkpoint is not None:
            result.add_note(ledger_part.checkpoint, dataset_id, public_keys, f"the checkpoint in {name}")


def _certificates(session: Session, ledger: str, dataset_id: str, after: int) -> Iterator[tuple[str, object]]:
    issued = (
        select(Certificate.job_id, Certificate.body)
        .join(Job, Job.id == Certificate.job_id)
        .where(Job.dataset_id == dataset_id)
        .order_by(Certificate.job_id)
        .execution_options(yield_per=100)
    )
    if after:
        newer = select(LedgerEntry.job_id).where(LedgerEntry.dataset_id == ledger, LedgerEntry.seq > after)
        issued = issued.where(Certificate.job_id.in_(newer))
    for row in session.execute(issued):
        yield row.job_id, row.body
