"""Submits a job: its charge is held, and it, its first event and its message commit together, or nothing does.

    write       the job, its first event, its message and its audit entry; locks the key's row (rows.py)
    standing    after that lock: what the key may do, what it has, and the state of the ledger (standing.py)
    Holds       locks the accounts of all that the job reads, and reads them with their last entries
    (app.ledger.block_accounts)

go in one round trip. After the checks, the holds, their entries and the commit go in a second one: the lock of an
account lasts from the first to the second.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from sqlalchemy import bindparam, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app import tracing
from app.admission import standing
from app.admission.job_rows import NewJob, begin_study, write
from app.admission.price import Priced, explain, price
from app.admission.request import Request, Resolved, resolve_once, same
from app.admission.service import Admission
from app.catalogue import graph_rows
from app.datasets.moving import have_moved, move
from app.db.models import Job, table_of
from app.db.trip import Trip, round_trip
from app.keys.service import Caller
from app.ledger.accounts import HoldTerms
from app.ledger.block_accounts import Holds
from app.ledger.memos import HeldFor
from app.logs import about
from core.contracts.job_spec import JobSpec
from core.errors import BudgetError, PrivacyError

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


def submit(admission: Admission, caller: Caller, spec: JobSpec, idempotency_key: str) -> Held:
    """Admits a job if its whole cost fits.

    Args:
        idempotency_key: scoped to the caller's key; the same one with the same spec returns the same job.

    Raises:
        BudgetError: the job does not fit, and what would. Nothing is consumed.
        NotFound, Forbidden, InvalidRequest, Conflict, PolicyError: as `Request.of`, `resolve_once`, `price` and
            `hold`.
    """
    resolved = resolve_once(admission.db, Request.of(caller, spec, admission.limits), idempotency_key)
    if isinstance(resolved, str):
        return Held(resolved)
    pricing = admission.pricing.of(caller.id)
    with tracing.span("price", {"dataset": resolved.facts.id}):
        priced = price(pricing, resolved)
    if priced.checked.facts.moves:
        move(admission.db, admission.heads, caller, resolved.facts.id, priced.units)
        return submit(admission, caller, spec, idempotency_key)  # on the ledgers that pay now
    try:
        return hold(admission, resolved, priced, idempotency_key)
    except BudgetError as refusal:
        if have_moved(admission.db, priced.checked.facts.reads):
            return submit(admission, caller, spec, idempotency_key)
        explain(refusal, admission.db, pricing, resolved, priced)
        raise


def hold(admission: Admission, resolved: Resolved, priced: Priced, idempotency_key: str) -> Held:
    """Admits a priced job, if the charge fits on all that it reads.

    Args:
        idempotency_key: scoped to the caller's key.

    Raises:
        BudgetError: the job does not fit. Nothing is consumed.
        PolicyError: the job costs more than the owner allows this key for one job. Nothing is consumed.
        Conflict: `too-many-jobs`: the key's queue is full; `ledger-behind`: the database has lost some of this data
            set's spending; `content-deleted`.
        Unauthenticated, NotFound, Forbidden: the key has ended, or lost its access, meanwhile.
        PrivacyError: the charge is of the filter to which the ledger has still to move.
    """
    if priced.checked.facts.moves:
        raise PrivacyError("the charge is in another filter's units than the ledger counts")
    db, request = admission.db, resolved.request
    job = new_job(request, priced, idempotency_key)
    recorded = standing.recorded_of(db, admission.heads, priced.checked.facts.reads)
    try:
        with tracing.span("hold", {"job": job.id}), db.write(in_trips=True) as session:
            _hold(session, request, priced, job, recorded)
    except IntegrityError:
        # Two concurrent requests had the same idempotency key: the database admitted one.
        with db.read() as session:
            duplicate = session.execute(ONCE, {"key": request.caller.id, "once": idempotency_key}).one_or_none()
        if duplicate is None:
            raise
        return Held(same(duplicate.id, duplicate.request_sha256, request.digest))
    with about({"job": job.id}):
        logger.info("admitted")
    return Held(job.id, job.job())


def new_job(request: Request, priced: Priced, idempotency_key: str) -> NewJob:
    """Builds the job's row: its price and what runs, as JSON."""
    checked, mechanism, study = priced.checked, priced.price.mechanism, priced.division
    return NewJob(
        dataset_id=checked.facts.id,
        declaration=checked.facts.declaration,
        key_id=request.caller.id,
        idempotency_key=idempotency_key,
        request_sha256=request.digest,
        name=checked.spec.name,
        spec=checked.spec.model_dump(mode="json"),
        mechanism=mechanism.model_dump(mode="json") if mechanism else None,
        quote=priced.quote.model_dump(mode="json"),
        steps=len(priced.study.slots) if priced.study else checked.steps,
        warnings=list(checked.warnings),
        study=study.model_dump(mode="json") if study else None,
    )


def _hold(session: Session, request: Request, priced: Priced, job: NewJob, recorded: standing.Recorded) -> None:
    """Writes the job and holds its charge, in two round trips. Raises as `hold`."""
    caller, checked = request.caller, priced.checked
    with round_trip(session.connection()) as trip:
        reply = write(trip, job, priced.price.charge)
        # From here to the commit this key's other submissions wait,
        replies = standing.ask(trip, caller.id, recorded, request.limits.max_queued_jobs)
        # and from here all other holds on what the job reads.
        holds = ask_holds(trip, caller, priced, job.id)
    key = standing.check_key(session, caller, reply.one_or_none(), checked.spec.optimizer.side)
    limit = key.max_queued_jobs or request.limits.max_queued_jobs
    readings = standing.read(caller, replies, recorded)
    standing.check(readings, limit, priced.price.epsilon, checked.spec.use, is_private=checked.facts.is_private)
    begin_study(session, job)
    graph_rows.use(session, caller.id, graph_rows.named(checked.spec.model))
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
