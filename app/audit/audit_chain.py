"""The audit log's hash chain: the relay seals entries into it; anybody can recompute it.

    h_0 = SHA-256("scrimp/audit/v1")                                        the genesis hash
    h_k = SHA-256(canonical JSON of entry k without `hash`, with prev_hash = h_{k−1})

Guarantee: changing, removing or inserting a sealed entry changes every later hash, so that a head that was kept outside
reveals it. Not covered: changes to an entry before it is sealed, within about a second.
"""

from __future__ import annotations

import hashlib
from typing import Any

from sqlalchemy import Row, func, select, update
from sqlalchemy.orm import Session

from app.chain import EntryLike, digest
from app.db.database import Database
from app.db.models import AuditEntry, AuditHead
from app.db.ordered import in_order
from core.contracts.base import Document
from core.ids import rfc3339

GENESIS = hashlib.sha256(b"scrimp/audit/v1").hexdigest()
BATCH = 500
# Every column of an entry but `hash` itself.
COLUMNS = ("seq", "id", "at", "action", "actor", "target", "address", "user_agent", "outcome", "details", "prev_hash")
ENTRY = [getattr(AuditEntry, name) for name in (*COLUMNS, "hash")]
ANY_UNSEALED = select(AuditEntry.id).where(AuditEntry.seq.is_(None)).limit(1)


def content(entry: EntryLike) -> dict[str, Any]:
    """An entry's content as JSON: everything but its own hash."""
    document = {name: getattr(entry, name) for name in COLUMNS}
    return {"version": 1, **document, "at": rfc3339(document["at"])}


def seal(db: Database) -> int:
    """Seals unsealed entries, at most one batch; returns how many.

    The head's row is locked first: a second relay waits, and then sees the entries that the first one sealed.
    """
    waiting = select(*ENTRY).where(AuditEntry.seq.is_(None)).order_by(AuditEntry.id).limit(BATCH)
    with db.quick_read() as connection:
        if connection.scalar(ANY_UNSEALED) is None:
            return 0
    with db.write() as session:
        head = session.scalars(select(AuditHead).with_for_update()).one()
        sealed = []
        for entry in session.execute(waiting):
            place = {"seq": head.seq + 1, "prev_hash": head.hash}
            head.seq, head.hash = head.seq + 1, digest(content(entry) | place)
            sealed.append({"id": entry.id, **place, "hash": head.hash})
        if sealed:
            session.execute(update(AuditEntry), sealed)
        return len(sealed)


class AuditVerification(Document):
    """The result of recomputing the audit log's hash chain."""

    valid: bool
    entries: int  # sealed ones, that the head counts
    head: str
    unsealed: int  # entries that wait to be sealed: those of the last second, unless no relay runs
    first_bad_entry: int | None  # the first place where the chain does not fit
    problem: str | None  # what does not fit there


def verify(session: Session) -> AuditVerification:
    """Recomputes the chain from its entries, in batches; may run beside the relay."""
    head = session.scalars(select(AuditHead)).one()
    unsealed = session.scalar(select(func.count()).select_from(AuditEntry).where(AuditEntry.seq.is_(None))) or 0
    place, last = 0, GENESIS
    problem = None
    for place, entry in enumerate(in_order(session, select(*ENTRY), AuditEntry.seq, head.seq), start=1):
        problem = _misfit(place, last, entry)
        if problem is not None or entry is None:
            break
        last = entry.hash
    if problem is None and place < head.seq:
        place, problem = place + 1, "the entry is missing"
    if problem is None and last != head.hash:
        problem = "its hash is not the chain's head"
    if problem is None and session.scalar(select(AuditEntry.id).where(AuditEntry.seq > head.seq).limit(1)) is not None:
        place, problem = head.seq + 1, "the chain's head does not count this entry"
    return AuditVerification(
        valid=problem is None,
        entries=head.seq,
        head=head.hash,
        unsealed=unsealed,
        first_bad_entry=place if problem else None,
        problem=problem,
    )


def _misfit(place: int, last: str, entry: Row[Any] | None) -> str | None:
    """What does not fit at a place of the chain; None if everything fits."""
    if entry is None:
        return "the entry cannot be read"
    if entry.seq != place:
        return "the entry is missing"
    if entry.prev_hash != last:
        return "its prev_hash is not the hash of the entry before"
    try:
        return None if digest(content(entry)) == entry.hash else "its hash does not match its content"
    except (TypeError, ValueError, AttributeError):
        return "the entry cannot be read"
