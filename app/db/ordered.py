"""The entries of a chain in their order, some hundreds at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Row, Select
from sqlalchemy.orm import InstrumentedAttribute, Session

BATCH = 1000


def in_order(
    session: Session, entries: Select[Any], seq: InstrumentedAttribute[Any], last: int, after: int = 0
) -> Iterator[Row[Any] | None]:
    """Entries after + 1 … last in order; None in the place of the first one whose columns cannot be decoded.

    Args:
        entries: selects the chain's entries, with `seq`.
    """
    while True:
        query = entries.where(seq > after, seq <= last).order_by(seq)
        try:
            batch = session.execute(query.limit(BATCH)).all()
        except (ValueError, TypeError):
            try:  # one of them is damaged: read up to it one by one
                batch = [session.execute(query.limit(1)).one()]
            except (ValueError, TypeError):
                yield None
                return
        if not batch:
            return
        yield from batch
        after = batch[-1].seq
