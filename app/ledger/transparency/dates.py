"""When the service signed something, for readers whom its key was revoked from: what witnesses cosign (decision 69).

    envelope, signed ──▶ its digest, in the same transaction ──▶ a batch of digests, its checkpoint signed ──▶ witnesses

A batch is a log that never grows: its tree is over the digests of at most TILE envelopes, in their order. So nothing
here has to follow from anything before, and a restored backup contradicts nothing. The digest is over the signature
too: nobody can write it down before they have the key.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from app.db.database import Database
from app.db.models import SignedBatch, SignedDigest
from app.ledger.signer import Signer, sign_and_store
from app.ledger.transparency import notes
from app.ledger.transparency.ledger_tree import TILE, Tree
from app.ledger.transparency.witnesses import Away, Contradiction, Witness
from core.contracts.base import Document
from core.errors import Conflict, NotFound, TransientError
from core.ids import new_id, whole_second
from core.merkle import leaf

logger = logging.getLogger(__name__)
UNBATCHED = select(SignedDigest.digest).where(SignedDigest.batch.is_(None))
LOGS = 64  # signed by one call at most
Turn = Callable[[Sequence[str]], Iterable[str]]  # of the batches that are due, those to send for now


class SignatureDate(Document):
    """The proof that a signature is in a log: `entry` is its place, from 1, in the tree of `checkpoint`.

    `checkpoint` is a note with its witnesses' cosignatures; `digest` is SHA-256 of the signature and of its payload.
    """

    digest: str
    checkpoint: str
    entry: int
    path: tuple[str, ...]


@dataclass(frozen=True)
class _Batch:
    """Digests whose log is to be signed."""

    id: str
    digests: tuple[str, ...]

    def signed(self, key: Signer) -> str:
        root = _tree(self.digests).root(len(self.digests))
        return notes.sign(notes.Checkpoint(self.id, len(self.digests), root), key)

    def store(self, session: Session, signed: str) -> bool:
        rows = UNBATCHED.where(SignedDigest.digest.in_(self.digests)).with_for_update()
        if len(session.scalars(rows).all()) < len(self.digests):
            return False  # another relay was faster
        size = len(self.digests)
        session.add(SignedBatch(id=self.id, size=size, note=signed, signed_at=whole_second(), cosigned=False))
        session.flush()
        for place, digest in enumerate(self.digests, start=1):
            placed = update(SignedDigest).where(SignedDigest.digest == digest)
            session.execute(placed.values(batch=self.id, place=place))
        return True


def sign_due(db: Database, key: Signer, turn: Turn = iter) -> int:
    """Signs the logs of digests that are in none, at most LOGS; for the relay. Returns how many.

    A log whose digests others take each time while it is signed waits for the next call.

    Args:
        turn: chooses those for now, each named by its first digest; by default all.

    Raises:
        Unavailable: the program did not sign.
    """
    with db.read() as session:
        waiting = session.scalars(UNBATCHED.order_by(SignedDigest.digest).limit(LOGS * TILE)).all()
    logs = {waiting[start]: waiting[start : start + TILE] for start in range(0, len(waiting), TILE)}
    signed = 0
    for first in turn(list(logs)):
        try:
            signed += sign_and_store(db, partial(_drafted, db, logs[first]), key) is not None
        except TransientError as error:
            logger.warning("a log of signatures is not signed yet: %s", error)
    return signed


def _drafted(db: Database, digests: Sequence[str]) -> _Batch | None:
    """The log of those of the digests that are in none."""
    with db.read() as session:
        rows = UNBATCHED.where(SignedDigest.digest.in_(digests)).order_by(SignedDigest.digest)
        left = tuple(session.scalars(rows))
    return _Batch(new_id("signed"), left) if left else None


def witness_due(db: Database, witnesses: Sequence[Witness], reported: set[str], turn: Turn) -> int:
    """Has the logs cosigned by all witnesses that have not yet. Returns how many cosignatures were added.

    Args:
        reported: what was said, not to repeat it.
        turn: chooses those for now; a log that a witness refuses holds up no other.
    """
    with db.read() as session:
        open_ = select(SignedBatch.id).where(SignedBatch.cosigned.is_(False))
        waiting = list(session.scalars(open_.order_by(SignedBatch.signed_at, SignedBatch.id)))
    added, away = 0, set[Witness]()
    for batch_id in turn(waiting):
        with db.read() as session:
            note = session.get_one(SignedBatch, batch_id).note
        lines = [line for each in witnesses if each not in away and (line := _cosigned(note, each, reported, away))]
        with db.write() as session:
            row = session.get_one(SignedBatch, batch_id, with_for_update=True)
            row.note += "".join(line for line in lines if line not in row.note)
            row.cosigned = all(notes.is_cosigned(row.note, each.key) for each in witnesses)
        added += len(lines)
    return added


def _cosigned(note: str, witness: Witness, reported: set[str], away: set[Witness]) -> str | None:
    """A witness's new line; None: it has signed, or does not now."""
    if notes.is_cosigned(note, witness.key):
        return None
    try:
        return witness.send(note, lambda _: [])
    except (Contradiction, TransientError) as error:
        if isinstance(error, Away):  # it would delay every log
            away.add(witness)
        if str(error) not in reported:
            reported.add(str(error))
            logger.error("signatures are not dated yet: %s", error)
        return None


def date_of(session: Session, digest: str) -> SignatureDate:
    """The proof that a signature is in a log.

    Raises:
        NotFound: the service did not sign it, or did before it kept digests.
        Conflict: `head-pending`: its log is not signed yet.
    """
    row = session.get(SignedDigest, digest)
    if row is None:
        raise NotFound("no signature with this digest is in a log of this service")
    if row.batch is None or row.place is None:
        raise Conflict("head-pending", "the log with this signature is not signed yet: ask again in a moment")
    query = select(SignedDigest.digest).where(SignedDigest.batch == row.batch).order_by(SignedDigest.place)
    digests = tuple(session.scalars(query))
    path = _tree(digests).inclusion(row.place - 1, len(digests))
    return SignatureDate(
        digest=digest,
        checkpoint=session.get_one(SignedBatch, row.batch).note,
        entry=row.place,
        path=tuple(base64.b64encode(each).decode() for each in path),
    )


def _tree(digests: Sequence[str]) -> Tree:
    leaves = [leaf(bytes.fromhex(each)) for each in digests]
    return Tree(lambda low, high: leaves[low:high], {})
