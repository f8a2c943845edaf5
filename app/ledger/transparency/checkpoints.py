"""Signed checkpoints of data sets' ledgers: made by the relay, kept in the database and outside it, proven to readers.

    entries ──▶ tree (app.ledger.transparency.ledger_tree) ──▶ checkpoint, signed (app.ledger.transparency.notes)
                                                 ├─▶ ledger_checkpoints       the newest one, for readers
                                                 ├─▶ HEADS/DATASET.checkpoint the same, outside every backup
                                                 └─▶ webhooks, witnesses, certificates

The tree grows when a checkpoint is signed, never in the transaction of an entry: a POST writes one entry, as ever. The
roots of whole tiles are stored (`ledger_tiles`), so signing and proving read at most about 512 entries.

Guarantee: no checkpoint is signed of a tree that does not begin with every kept checkpoint's leaves.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from sqlalchemy import String, bindparam, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.db.database import Database
from app.db.models import Account, LedgerCheckpoint, LedgerEntry, LedgerTile
from app.ledger import behind
from app.ledger.certificate_documents import Proof
from app.ledger.signer import Signer, public_key, sign_and_store
from app.ledger.transparency import notes
from app.ledger.transparency.attestations import NotAuthentic
from app.ledger.transparency.heads import Heads, SupersededError, UnreadableHeadError
from app.ledger.transparency.ledger_tree import Tree
from app.ledger.transparency.trees import tree_of
from app.ledger.transparency.witnesses import Away, Contradiction, Witness
from core.errors import Conflict, InvalidRequest, TransientError, Unavailable
from core.ids import whole_second

logger = logging.getLogger(__name__)
SIGNED_SO = bindparam("signed_so", type_=String)
GROWN = (
    select(Account.dataset_id)
    .outerjoin(LedgerCheckpoint, LedgerCheckpoint.dataset_id == Account.dataset_id)
    .where(LedgerCheckpoint.size.is_distinct_from(Account.entries) | ~LedgerCheckpoint.note.contains(SIGNED_SO))
    # A ledger that was joined to another one comes last: the charge to the other one is recorded before it.
    .order_by(Account.joined_into.is_not(None), Account.dataset_id)
)
Announce = Callable[[Session, str, int, str], None]  # data set, entries, note
Turn = Callable[[Sequence[str]], Iterable[str]]  # of the data sets that are due, those to sign for now


def sign_due(db: Database, heads: Heads, key: Signer, announce: Announce, turn: Turn = iter) -> tuple[int, list[str]]:
    """Records the head of every chain that has grown, and signs its checkpoint; for the relay, which holds the key.

    A checkpoint that another key signed is signed again: readers then need the newest key alone.

    Args:
        announce: called in the transaction that stores a new checkpoint.
        turn: by default all.

    Returns:
        How many were signed; and the data sets whose chains lack what was kept and were not signed.
    """
    with db.quick_read() as connection:
        waiting = list(connection.scalars(GROWN, {"signed_so": notes.beginning(key.public_key())}))
    signed, refused = 0, []
    for dataset_id in turn(waiting):
        try:
            behind.record(db, heads, dataset_id)
            signed += advance(db, heads, dataset_id, key, announce) is not None
        except TransientError:
            refused.append(dataset_id)
    return signed, refused


def advance(db: Database, heads: Heads, dataset_id: str, key: Signer, announce: Announce) -> notes.Checkpoint | None:
    """Signs and keeps the checkpoint of all entries; None if this key signed it before.

    The file outside the database is written first: the entries are committed, the row can follow. Of two relays that do
    this at once, one begins again. Cosignatures stay valid if another key signs the same checkpoint.

    Raises:
        TransientError: the ledger lacks a kept checkpoint, or the file cannot be read or written.
        Unavailable: the program that signs did not.
    """
    signed = sign_and_store(db, partial(_grown, db, heads, dataset_id, public_key(key), announce), key)
    return None if signed is None else notes.read(signed)


@dataclass(frozen=True)
class _Grown:
    """A ledger's checkpoint, to be signed.

    Attributes:
        head: the hash of its last entry.
        tiles: roots of whole tiles that are not stored yet.
        outside, before: the notes that are kept: outside the database, and in it.
    """

    heads: Heads
    checkpoint: notes.Checkpoint
    head: str
    tiles: Mapping[int, bytes]
    outside: str | None
    before: str | None
    announce: Announce

    @property
    def again(self) -> bool:
        """True if another key signed this checkpoint before."""
        return self.before is not None and notes.read(self.before).size == self.checkpoint.size

    def signed(self, key: Signer) -> str:
        cosignatures = notes.cosignatures(self.before) if self.before is not None and self.again else ""
        return notes.sign(self.checkpoint, key) + cosignatures

    def store(self, session: Session, signed: str) -> bool:
        dataset_id, size = self.checkpoint.dataset, self.checkpoint.size
        row = session.get(LedgerCheckpoint, dataset_id, with_for_update=True)
        last = session.get(LedgerEntry, (dataset_id, size))
        if (None if row is None else row.note) != self.before or last is None or last.hash != self.head:
            return False
        try:
            self.heads.keep_checkpoint(dataset_id, signed, self.outside)
        except SupersededError:
            return False
        except (OSError, ValueError, UnreadableHeadError, Unavailable) as error:
            raise _refused(dataset_id, error) from None
        try:
            with session.begin_nested():
                session.merge(LedgerCheckpoint(dataset_id=dataset_id, size=size, note=signed, signed_at=whole_second()))
                for number, root in self.tiles.items():
                    session.merge(LedgerTile(dataset_id=dataset_id, number=number, root=root.hex()))
        except IntegrityError:
            return False  # another relay stored the first one at the same moment
        if not self.again:
            self.announce(session, dataset_id, size, signed)
        return True


def _grown(db: Database, heads: Heads, dataset_id: str, signer: str, announce: Announce) -> _Grown | None:
    """The checkpoint to sign; None if this key signed it before. Raises TransientError."""
    try:
        outside = heads.checkpoint(dataset_id)  # before the snapshot, so that the snapshot has all of its entries
        with db.read() as session:
            account = session.get_one(Account, dataset_id)
            row = session.get(LedgerCheckpoint, dataset_id)
            earlier = None if row is None else row.note
            if row is not None and row.size == account.entries and notes.is_signed(row.note, signer):
                return None
            checkpoints = [notes.read(note) for note in (outside, earlier) if note is not None]
            tree = tree_of(session, dataset_id, fresh_from=min((each.size for each in checkpoints), default=1))
            _require_all(tree, dataset_id, account.entries, checkpoints)
            checkpoint = notes.Checkpoint(dataset_id, account.entries, tree.root(account.entries))
            return _Grown(heads, checkpoint, account.head, dict(tree.made), outside, earlier, announce)
    except (ValueError, UnreadableHeadError, Unavailable) as error:
        raise _refused(dataset_id, error) from None


def _refused(dataset_id: str, error: Exception) -> TransientError:
    return TransientError(f"the checkpoint of {dataset_id} could not be signed: {error}")


def proofs(session: Session, dataset_id: str, entries: Iterable[tuple[int, str]], size: int) -> list[Proof]:
    """Proves that entries, by number and hash, are in the checkpoint of this size.

    Raises:
        ValueError: an entry is missing.
    """
    tree = tree_of(session, dataset_id)
    return [
        Proof(entry=seq, hash=digest, path=tuple(encoded(tree.inclusion(seq - 1, size)))) for seq, digest in entries
    ]


def inclusion(session: Session, dataset_id: str, entry: int, size: int) -> list[str]:
    """Proves that an entry of the checkpoint of this size is in it.

    Raises:
        Conflict: `ledger-behind`: an entry is missing.
    """
    try:
        return encoded(tree_of(session, dataset_id).inclusion(entry - 1, size))
    except ValueError as error:
        raise behind.refusal(str(error)) from None


def consistency(session: Session, dataset_id: str, old: int, size: int) -> list[str]:
    """Proves that the first `old` entries of the checkpoint of this size are those of the checkpoint of that size.

    Raises:
        InvalidRequest: there is no such checkpoint before it.
        Conflict: `ledger-behind`: an entry is missing.
    """
    if not 0 < old <= size:
        raise InvalidRequest.at("/since", f"a tree of {size} entries does not follow one of {old}")
    try:
        return encoded(tree_of(session, dataset_id).consistency(old, size))
    except ValueError as error:
        raise behind.refusal(str(error)) from None


def encoded(path: Sequence[bytes]) -> list[str]:
    """A proof's hashes in base64, as C2SP writes them."""
    return [base64.b64encode(each).decode() for each in path]


def _require_all(tree: Tree, dataset_id: str, entries: int, checkpoints: Sequence[notes.Checkpoint]) -> None:
    for checkpoint in checkpoints:
        if checkpoint.dataset != dataset_id:
            raise NotAuthentic("a kept checkpoint is of another data set")
        if checkpoint.size > entries or tree.root(checkpoint.size) != checkpoint.root:
            raise TransientError(f"{dataset_id} lacks the kept checkpoint of {checkpoint.size} entries")


def witness_due(
    db: Database, heads: Heads, witnesses: Sequence[Witness], reported: set[str], complete: dict[str, str] | None = None
) -> int:
    """Sends witnesses the checkpoints that they have not signed, and keeps their cosignatures; for the relay.

    Args:
        reported: what was logged already; grows.
        complete: the notes, by data set, that were found to have every cosignature: they are not verified again; grows.

    Returns:
        How many cosignatures were added.
    """
    complete = {} if complete is None else complete
    with db.read() as session:
        rows = session.execute(select(LedgerCheckpoint.dataset_id, LedgerCheckpoint.note)).all()
    added, away = 0, set[Witness]()
    for dataset_id, note in rows:
        if complete.get(dataset_id) == note:
            continue
        lacking = [each for each in witnesses if not notes.is_cosigned(note, each.key)]
        for witness in lacking:
            if witness not in away:  # one that is away would delay every ledger
                added += _cosign(db, heads, witness, (dataset_id, note), reported, away)
        if not lacking:
            complete[dataset_id] = note
    return added


def _cosign(
    db: Database, heads: Heads, witness: Witness, signed: tuple[str, str], reported: set[str], away: set[Witness]
) -> bool:
    """Has one checkpoint cosigned and kept. Says what is wrong once, and is never the end of the others."""
    dataset_id, note = signed
    try:
        line = witness.send(note, _proof_to(db, dataset_id, notes.read(note).size))
        return _keep_cosigned(db, heads, dataset_id, note, line)
    except Contradiction as error:
        _tell(reported, f"the ledger of {dataset_id} was rewound or rewritten: {error} (scrimp restore)")
    except (Conflict, InvalidRequest, TransientError, Unavailable, NotAuthentic, UnreadableHeadError, OSError) as error:
        _tell(reported, f"a checkpoint of {dataset_id} is not cosigned yet: {error}")
        if isinstance(error, Away):
            away.add(witness)
    return False


def _tell(reported: set[str], text: str) -> None:
    if text not in reported:
        reported.add(text)
        logger.error(text)


def _proof_to(db: Database, dataset_id: str, size: int) -> Callable[[int], list[str]]:
    def proof(old: int) -> list[str]:
        with db.read() as session:
            return consistency(session, dataset_id, old, size)

    return proof


def _keep_cosigned(db: Database, heads: Heads, dataset_id: str, note: str, line: str) -> bool:
    """Adds a cosignature's line to the newest checkpoint, if it still is the cosigned one."""
    with db.write() as session:
        row = session.get(LedgerCheckpoint, dataset_id, with_for_update=True)
        if row is None or notes.read(row.note) != notes.read(note):
            return False
        row.note += line
        heads.keep_cosignatures(dataset_id, row.note)
    return True
