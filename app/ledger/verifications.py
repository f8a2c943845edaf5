"""The verification of every ledger, by the relay: in full once a day, and from where it was when an owner asks for it.
Noted for admissions, answers, /readyz and /metrics.

One ledger at a time, the one that is due longest first. No request makes one: a hundred readers of a ledger of a
million entries cost nothing.

What a verification goes on from is in the relay's memory alone. A relay's first verification of a ledger is in full. So
is each one after a fault, and a fault that was found going on is looked for in full before it is noted. As long as the
relay lives, a ledger must begin with the entries that it has verified.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import bindparam, or_, select
from sqlalchemy.orm import Session

from app.db.database import Database
from app.db.models import Account, LedgerCheck, table_of
from app.db.upsert import insert_into
from app.ledger.transparency.heads import Heads, UnreadableHeadError
from app.ledger.verification import Replayed, Verification, verify
from core.contracts.base import Deferred
from core.ids import now, rfc3339

logger = logging.getLogger(__name__)
# A ledger that was found wrong is checked again soon: it stays closed until a check passes.
AGAIN = timedelta(minutes=10)
CHECKED_AT = LedgerCheck.checked_at.type
DUE = (
    select(Account.dataset_id, LedgerCheck.checked_at, LedgerCheck.requested_at)
    .outerjoin(LedgerCheck, LedgerCheck.dataset_id == Account.dataset_id)
    .where(
        or_(
            LedgerCheck.checked_at.is_(None),
            LedgerCheck.checked_at <= bindparam("last", type_=CHECKED_AT),
            LedgerCheck.requested_at.is_not(None),
            LedgerCheck.problem.is_not(None) & (LedgerCheck.checked_at <= bindparam("failed", type_=CHECKED_AT)),
        )
    )
)


def check_next(db: Database, heads: Heads, every: timedelta, replayed: dict[str, Replayed] | None = None) -> bool:
    """Verifies the ledger that is due longest, if one is. Returns True if there was one.

    A ledger is due when a verification was asked for, `every` after its last one, in full `every` after its last one in
    full, and AGAIN after one that failed.

    Args:
        replayed: what this process has verified, by data set; changes. None: each verification is in full.
    """
    moment, replayed = now(), {} if replayed is None else replayed
    complete = [each for each, reached in replayed.items() if reached.in_full_at <= moment - every]
    for dataset_id in complete:
        with db.write() as session:
            request(session, dataset_id)
    with db.quick_read() as connection:
        waiting = connection.execute(DUE, {"last": moment - every, "failed": moment - min(AGAIN, every)}).all()
    if not waiting:
        return False
    since = {row.dataset_id: _due_since(row.checked_at, row.requested_at, every) for row in waiting}
    first = min(
        since, key=lambda dataset_id: (since[dataset_id] or datetime.min.replace(tzinfo=moment.tzinfo), dataset_id)
    )
    check(db, heads, first, replayed, in_full=first in complete)
    return True


def _due_since(checked_at: datetime | None, requested_at: datetime | None, every: timedelta) -> datetime | None:
    """When a ledger was due first; None if it was never verified."""
    if checked_at is None:
        return None
    return min(checked_at + every, requested_at or checked_at + every)


def check(
    db: Database,
    heads: Heads,
    dataset_id: str,
    replayed: dict[str, Replayed] | None = None,
    *,
    in_full: bool = False,
) -> str | None:
    """Verifies one ledger and notes the finding; returns the problem. Arguments as in `check_next` and `verify`."""
    began, replayed = now(), {} if replayed is None else replayed
    since = replayed.get(dataset_id)
    entries = bad = count = head = after = in_full_at = None
    try:
        with db.read() as session:
            last = session.scalar(select(LedgerCheck.problem).where(LedgerCheck.dataset_id == dataset_id))
        in_full = in_full or since is None or last is not None
        verification = _verified(db, heads, dataset_id, since, in_full)
        if not (verification.valid or in_full):
            verification = _verified(db, heads, dataset_id, since, True)
        after, in_full_at = verification.went_on_after, verification.in_full_at
        if verification.replayed is not None:
            replayed[dataset_id] = verification.replayed
        elif since is not None:
            replayed[dataset_id] = replace(since, in_full_at=began)
        problem, entries, bad, count, head = (
            verification.problem,
            verification.entries,
            verification.first_bad_entry,
            verification.heads,
            verification.head,
        )
        if bad is not None:
            problem = f"{_at(bad)}{problem}"
    except UnreadableHeadError as error:
        problem = f"its record outside the database cannot be read: {error}"
    with db.write() as session:
        row = session.get(LedgerCheck, dataset_id) or LedgerCheck(dataset_id=dataset_id)
        row.problem, row.entries, row.first_bad_entry, row.heads, row.head = problem, entries, bad, count, head
        row.checked_at, row.went_on_after, row.in_full_at = now(), after, in_full_at
        if row.requested_at is not None and row.requested_at <= began:  # else it was asked for what came after
            row.requested_at = None
        session.add(row)
    if problem is not None:
        logger.error("the ledger of %s is not valid: %s", dataset_id, problem)
    return problem


def _verified(db: Database, heads: Heads, dataset_id: str, since: Replayed | None, in_full: bool) -> Verification:
    recorded, outside = heads.read(dataset_id), heads.checkpoint(dataset_id)
    with db.read() as session:
        return verify(session, dataset_id, recorded, outside, since, in_full=in_full)


def request(session: Session, dataset_id: str) -> None:
    """Asks for a verification of a ledger; one that waits already is it."""
    table = table_of(LedgerCheck)
    first = insert_into(session, table).values(dataset_id=dataset_id, requested_at=now())
    again = {"requested_at": first.excluded.requested_at}
    session.execute(
        first.on_conflict_do_update(
            index_elements=[table.c.dataset_id], set_=again, where=table.c.requested_at.is_(None)
        )
    )


class VerificationView(Deferred):
    """The last verification: the relay makes one in full each day, and goes on from it when one is asked for; null if
    it has made none.

    `entries` and `head` are the ledger's now, `checked_entries` and `checked_head` those that were verified at
    `checked_at`: if the two differ, `stale` is true. `first_bad_entry` is null if the chain fits, even if the account's
    row is wrong. `problem` names the fault. `queued`: a verification was asked for and has not begun.

    `went_on_after`: how many entries it took over from an earlier verification, and did not read again; 0: it read all
    of them. `in_full_at`: when the last verification that read all of them began. Both are null if the release before
    made it.
    """

    valid: bool | None
    entries: int
    head: str
    first_bad_entry: int | None
    problem: str | None
    heads: int  # how many signed or recorded heads and checkpoints were checked against the chain
    checked_at: str | None
    checked_entries: int | None
    checked_head: str | None
    went_on_after: int | None
    in_full_at: str | None
    stale: bool
    queued: bool


def last_check(session: Session, dataset_id: str) -> VerificationView:
    """What is known of a ledger with a row of balances."""
    joined = select(Account.entries, Account.head, LedgerCheck).outerjoin(
        LedgerCheck, LedgerCheck.dataset_id == Account.dataset_id
    )
    entries, head, row = session.execute(joined.where(Account.dataset_id == dataset_id)).one()
    noted = row or LedgerCheck()
    is_known = noted.checked_at is not None
    problem = noted.problem and noted.problem.removeprefix(_at(noted.first_bad_entry))
    return VerificationView(
        valid=noted.problem is None if is_known else None,
        entries=entries,
        head=head,
        first_bad_entry=noted.first_bad_entry,
        problem=problem,
        heads=noted.heads or 0,
        checked_at=rfc3339(noted.checked_at),
        checked_entries=noted.entries,
        checked_head=noted.head,
        went_on_after=noted.went_on_after,
        in_full_at=rfc3339(noted.in_full_at),
        stale=not is_known or noted.head != head,
        queued=noted.requested_at is not None,
    )


def _at(entry: int | None) -> str:
    return "" if entry is None else f"entry {entry}: "
