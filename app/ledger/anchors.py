"""Kept heads of a data set's chain: signed on certificates and by the relay, and recorded outside the database.

    {"ledger_head": {"version": 1, "dataset", "seq", "head", "signed_at"}, "signature", "public_key", "algorithm"}

The relay signs the canonical JSON of `ledger_head`. It signs no head of a chain that lacks an earlier kept head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.db.engine import Database
from app.db.models import Account, Certificate, Job, LedgerEntry, SignedHead, SigningKey
from app.errors import TransientError
from app.ids import rfc3339, whole_second
from app.ledger import behind, certificates, signatures
from app.ledger.heads import Head, Heads

BODY, CERTIFICATE = "ledger_head", "certificate"


@dataclass
class Anchors:
    """The heads that a chain must contain.

    Attributes:
        heads: hash by entry.
        names: the holder of each head, by entry.
        faults: invalid signatures, and unreadable documents.
    """

    heads: dict[int, str] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def add(self, seq: int, head: str, name: str) -> None:
        """Adds a kept head; notes a fault if it contradicts another one."""
        if self.heads.setdefault(seq, head) != head:
            self.faults.append(f"{name} has another entry {seq} than {self.names[seq]}")
        self.names.setdefault(seq, name)


def anchors(session: Session, dataset_id: str, recorded: Head | None) -> Anchors:
    """All kept heads of a data set."""
    found = Anchors()
    if recorded is not None:
        found.add(recorded.seq, recorded.head, "the record outside the database")
    known = set(session.scalars(select(SigningKey.public_key)))
    for name, body_name, document in _documents(session, dataset_id):
        try:
            seq, head = _head_in(document[body_name], dataset_id)
            key = document["public_key"]
        except (KeyError, TypeError, ValueError):
            found.faults.append(f"{name} cannot be read")
            continue
        if key not in known:
            found.faults.append(f"{name} is signed with a key that does not belong to this service")
        elif not _is_authentic(document, body_name, key):
            found.faults.append(f"the signature of {name} is not valid")
        else:
            found.add(seq, head, name)
    return found


def _is_authentic(document: dict[str, Any], body_name: str, key: str) -> bool:
    if body_name == CERTIFICATE:
        return certificates.verify(document, key)
    return signatures.holds(document, body_name, key)


def _documents(session: Session, dataset_id: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    signed = session.scalar(select(SignedHead.document).where(SignedHead.dataset_id == dataset_id))
    if signed is not None:
        yield "the head that the relay signed", BODY, signed
    issued = (
        select(Certificate.job_id, Certificate.body)
        .join(Job, Job.id == Certificate.job_id)
        .where(Job.dataset_id == dataset_id)
        .order_by(Certificate.job_id)
        .execution_options(yield_per=100)
    )
    for job_id, document in session.execute(issued):
        yield f"the certificate of {job_id}", CERTIFICATE, document


def _head_in(body: dict[str, Any], dataset_id: str) -> tuple[int, str]:
    """Returns the head. Raises KeyError, TypeError or ValueError if it is not a head of this data set."""
    whose, said = (body["dataset"], body) if "seq" in body else (body["dataset"]["id"], body["ledger"])
    if whose != dataset_id:
        raise ValueError("it belongs to another data set")
    return int(said["seq"] if "seq" in said else said["entry_seq"]), str(said["head"])


def sign_heads(db: Database, heads: Heads, key: Ed25519PrivateKey) -> tuple[int, list[str]]:
    """Records and signs the head of every chain that has grown; for the relay, which alone holds the key.

    Returns:
        How many were signed; and the data sets whose chains lack a kept head and were not signed.
    """
    with db.read() as session:
        grown = session.execute(
            select(Account.dataset_id)
            .outerjoin(SignedHead, SignedHead.dataset_id == Account.dataset_id)
            .where(SignedHead.seq.is_distinct_from(Account.entries))
            # A ledger that was joined to another one comes last: the charge to the other one is recorded before it.
            .order_by(Account.joined_into.is_not(None), Account.dataset_id)
        )
        waiting = list(grown.scalars())
    signed, refused = 0, []
    for dataset_id in waiting:
        try:
            behind.record(db, heads, dataset_id)
            with db.write() as session:
                signed += _sign(session, dataset_id, key)
        except TransientError:
            refused.append(dataset_id)
        except IntegrityError:
            continue  # another relay signed it at the same moment
    return signed, refused


def _sign(session: Session, dataset_id: str, key: Ed25519PrivateKey) -> bool:
    account = session.get_one(Account, dataset_id)
    before = session.get(SignedHead, dataset_id)
    if before is not None:
        there = session.scalar(
            select(LedgerEntry.hash).where(LedgerEntry.dataset_id == dataset_id, LedgerEntry.seq == before.seq)
        )
        if there != before.document[BODY]["head"]:
            raise TransientError(f"{dataset_id} lacks the last signed head")
    said = {"version": 1, "dataset": dataset_id, "seq": account.entries, "head": account.head}
    document = signatures.sign(said | {"signed_at": rfc3339(whole_second())}, BODY, key)
    session.merge(SignedHead(dataset_id=dataset_id, seq=account.entries, document=document, signed_at=whole_second()))
    session.flush()
    return True
