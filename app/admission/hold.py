"""Holds a priced job's charge: the job, its hold, its first event and its message commit together, or nothing does.

    write       the job, its first event, its message and its audit entry; locks the key's row (rows.py)
    standing    after that lock: what the key may do, what it has, and the state of the ledger (standing.py)
    Holds       locks the accounts of all that the job reads, and reads them with their last entries (app.ledger.blocks)

go in one round trip. After the checks, the holds, their entries and the commit go in a second one: the lock of an
account lasts from the first to the second.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import bindparam, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app import tracing
from app.admission import standing
from app.admission.price import Priced
from app.admission.request import Request, Resolved, same
from app.admission.rows import NewJob, begin_study, new_job, write
from app.db.engine import Database
from app.db.models import Job, table_of
from app.db.trip import Trip, round_trip
from app.keys.service import Caller
from app.ledger import behind
from app.ledger.accounts import HoldTerms
from app.ledger.blocks import Holds
from app.ledger.memos import HeldFor
from app.ledger.transparency.heads import Head, Heads
from app.logs import about

logger = logging.getLogger(__name__)
JOBS = table_of(Job)
ONCE = select(JOBS.c.id, JOBS.c.request_sha256).where(
    JOBS.c.key_id == bindparam("key"), JOBS.c.idempotency_key == bindparam("once")
)


@dataclass(frozen=True)
class Held:
    """An admitted job.

    Attributes:
        job: its row; None if an earlier request made it.
    """

    id: str
    job: Job | None = None


def hold(db: Database, heads: Heads, resolved: Resolved, priced: Priced, idempotency_key: str) -> Held:
    """Admits a priced job, if the charge fits on all that it reads.

    Args:
        heads: the recorded heads; each ledger must match its record outside the database.
        idempotency_key: scoped to the caller's key.

    Raises:
        BudgetError: the job does not fit. Nothing is consumed.
        PolicyError: the job costs more than the owner allows this key for one job. Nothing is consumed.
        Conflict: `too-many-jobs`: the key's queue is full; `ledger-behind`: the database has lost some of this data
            set's spending; `content-deleted`.
        Unauthenticated, NotFound, Forbidden: the key has ended, or lost its access, meanwhile.
    """
    caller, reads = resolved.request.caller, priced.checked.facts.reads
    job = new_job(resolved.request, priced, idempotency_key)
    for each in reads:
        behind.require_witnessed(db, heads, each)
    recorded = {each: behind.read_recorded(heads, each) for each in reads}
    try:
        with tracing.span("hold", {"job": job.id}), db.write(in_trips=True) as session:
            _hold(session, resolved.request, priced, job, recorded)
    except IntegrityError:
        # Two concurrent requests had the same idempotency key: the database admitted one.
        with db.read() as session:
            before = session.execute(ONCE, {"key": caller.id, "once": idempotency_key}).one_or_none()
        if before is None:
            raise
        return Held(same(before.id, before.request_sha256, resolved.request.digest))
    with about({"job": job.id}):
        logger.info("admitted")
    return Held(job.id, job.job())


def _hold(session: Session, request: Request, priced: Priced, job: NewJob, recorded: Mapping[str, Head | None]) -> None:
    """Writes the job and holds its charge, in two round trips. Raises as `hold`."""
    caller, facts, side = request.caller, priced.checked.facts, priced.checked.spec.optimizer.side
    with round_trip(session.connection()) as trip:
        reply = write(trip, job, priced.price.charge)
        # From here to the commit this key's other submissions wait,
        replies = standing.ask(trip, caller.id, facts.reads, recorded, request.limits.max_queued_jobs)
        # and from here all other holds on what the job reads.
        holds = ask_holds(trip, caller, priced, job.id)
    key = standing.check_key(session, caller, reply.one_or_none(), side)
    limit = key.max_queued_jobs or request.limits.max_queued_jobs
    there = standing.read(caller, replies, recorded)
    standing.check(there, limit, priced.price.epsilon, is_private=facts.is_private)
    begin_study(session, job)
    if holds is not None:
        holds.check(session)
        with round_trip(session.connection()) as trip:
            holds.place(trip)
            trip.commit()


def ask_holds(trip: Trip, caller: Caller, priced: Priced, job_id: str) -> Holds | None:
    """Begins the job's holds on all that it reads; None on public data. It comes last: other holds on the data set wait
    for its account's row until the commit."""
    if not priced.checked.facts.is_private:
        return None
    charge, slots = priced.price.charge, len(priced.study.slots) if priced.study else None
    memo = HeldFor(epsilon=priced.price.epsilon, study=slots)
    terms = HoldTerms(job_id, charge.train, charge.holdout, caller.id, memo)
    return Holds(trip, priced.checked.facts.reads, terms)
