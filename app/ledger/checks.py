"""The full verification of every ledger, once a day: noted for admissions, /readyz and /metrics."""

from __future__ import annotations

import logging
from datetime import timedelta

from sqlalchemy import func, or_, select

from app.db.engine import Database
from app.db.models import Account, LedgerCheck
from app.ids import now
from app.ledger.heads import Heads, UnreadableHeadError
from app.ledger.verify import verify

logger = logging.getLogger(__name__)
# A ledger that was found wrong is checked again soon: it stays closed until a check passes.
AGAIN = timedelta(minutes=10)


def check_due(db: Database, heads: Heads, every: timedelta) -> int:
    """Verifies each ledger whose last check is older than `every`; returns how many."""
    moment = now()
    due = (
        select(Account.dataset_id)
        .outerjoin(LedgerCheck, LedgerCheck.dataset_id == Account.dataset_id)
        .where(
            or_(
                LedgerCheck.checked_at.is_(None),
                LedgerCheck.checked_at <= moment - every,
                LedgerCheck.problem.is_not(None) & (LedgerCheck.checked_at <= moment - min(AGAIN, every)),
            )
        )
        .order_by(func.coalesce(LedgerCheck.checked_at, moment - every), Account.dataset_id)
    )
    with db.read() as session:
        waiting = list(session.scalars(due))
    for dataset_id in waiting:
        check(db, heads, dataset_id)
    return len(waiting)


def check(db: Database, heads: Heads, dataset_id: str) -> str | None:
    """Verifies one ledger and notes the finding; returns the problem."""
    try:
        recorded, outside = heads.read(dataset_id), heads.checkpoint(dataset_id)
        with db.read() as session:
            found = verify(session, dataset_id, recorded, outside)
        problem, entries = found.problem, found.entries
        if not found.valid and found.first_bad_entry is not None:
            problem = f"entry {found.first_bad_entry}: {problem}"
    except UnreadableHeadError as error:
        problem, entries = f"its record outside the database cannot be read: {error}", None
    with db.write() as session:
        row = session.get(LedgerCheck, dataset_id) or LedgerCheck(dataset_id=dataset_id)
        row.problem, row.entries, row.checked_at = problem, entries, now()
        session.add(row)
    if problem is not None:
        logger.error("the ledger of %s is not valid: %s", dataset_id, problem)
    return problem
