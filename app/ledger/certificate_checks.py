"""What a service finds when it checks a certificate of its own: the signature, and the ledgers that it names.

A service that lies can also lie about this. Who does not trust it checks the document elsewhere (scrimp.recompute).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.database import Database
from app.db.models import LedgerEntry, SigningKey
from app.ledger.certificate_documents import Certified, Signed
from app.ledger.certificates import verify
from app.ledger.verifications import VerificationView, last_check


@dataclass(frozen=True)
class Finding:
    """One thing that was checked.

    Attributes:
        holds: None: not checked yet.
        said: a sentence for people.
    """

    holds: bool | None
    said: str


def check(db: Database, document: object) -> list[Finding]:
    """Checks a certificate's signature against the service's published keys, its entries in every ledger that it names,
    and the last verification of each of these.

    Args:
        document: a certificate as it was issued.
    """
    signed = Signed.model_validate(document)
    body = Certified.of(signed.certificate)
    with db.read() as session:
        published = set(session.scalars(select(SigningKey.public_key)))
        entries = list(_entries(session, body))
        chains = [_chain(each, last_check(session, each), body.ledgers[each].entry_seq) for each in body.ledgers]
    return [_signature(document, signed.public_key, published), *entries, *chains]


def _signature(document: object, key: str, published: set[str]) -> Finding:
    if key not in published:
        return Finding(False, "This service has never published the key that signed it.")
    if not verify(document, key):
        return Finding(False, "The signature does not fit the document: one of them was changed.")
    return Finding(True, "The signature holds, by a key that this service has published.")


def _entries(session: Session, body: Certified) -> Iterator[Finding]:
    for dataset_id, ledger in body.ledgers.items():
        seq = ledger.entry_seq
        entry = session.get(LedgerEntry, (dataset_id, seq))
        subject = f"Entry {seq} of the ledger of {dataset_id}"
        if entry is None or (entry.hash, entry.job_id, entry.kind) != (ledger.head, body.job, "post"):
            yield Finding(False, f"{subject} is not the one that the certificate names.")
        elif body.study is None and (body.charge.train, body.charge.holdout) != (entry.train, entry.holdout):
            yield Finding(False, f"{subject} charges another amount than the certificate says.")
        else:
            yield Finding(True, f"{subject} is this job's charge.")


def _chain(dataset_id: str, chain: VerificationView, entry: int) -> Finding:
    ledger = f"he ledger of {dataset_id}"
    if chain.valid is False:
        return Finding(False, f"T{ledger} is not valid: {chain.problem}.")
    if chain.checked_entries is None or chain.checked_entries < entry:
        return Finding(
            None, f"T{ledger} was not verified since that entry: that is done once a day, or on its owner's wish."
        )
    result = f"All {chain.checked_entries} entries of t{ledger} fitted at {chain.checked_at}"
    if chain.went_on_after:
        result += f" (the first {chain.went_on_after} were last read at {chain.in_full_at})"
    return Finding(True, f"{result}, and its balances followed from them.")
