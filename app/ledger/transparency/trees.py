"""The tree over a ledger's entries, as the database holds them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.models import LedgerEntry, LedgerTile
from app.ledger.transparency.ledger_tree import TILE, Tree
from app.ledger.transparency.notes import Checkpoint
from core.merkle import leaf


def tree_of(session: Session, dataset_id: str, fresh_from: int | None = None) -> Tree:
    """The tree over a ledger's entries. Its methods raise ValueError where an entry is missing.

    Args:
        fresh_from: no stored tile from this entry's on is relied on; None: all of them are.
    """

    def leaves(low: int, high: int) -> Sequence[bytes]:
        query = select(LedgerEntry.seq, LedgerEntry.hash).where(
            LedgerEntry.dataset_id == dataset_id, LedgerEntry.seq > low, LedgerEntry.seq <= high
        )
        rows = session.execute(query.order_by(LedgerEntry.seq)).all()
        if any(row.seq != seq for seq, row in enumerate(rows, start=low + 1)):
            raise ValueError(f"an entry from {low + 1} to {high} is missing")
        return [leaf(bytes.fromhex(row.hash)) for row in rows]

    stored = select(LedgerTile.number, LedgerTile.root).where(LedgerTile.dataset_id == dataset_id)
    if fresh_from is not None:
        stored = stored.where(LedgerTile.number < (fresh_from - 1) // TILE)
    return Tree(leaves, {row.number: bytes.fromhex(row.root) for row in session.execute(stored)})


def contains(session: Session, checkpoint: Checkpoint) -> bool:
    """Says if a ledger begins with the entries of a checkpoint of it."""
    try:
        return tree_of(session, checkpoint.dataset).root(checkpoint.size) == checkpoint.root
    except ValueError:
        return False
