"""Holds a priced job's charge: the job, its hold, its first event and its message commit together, or nothing does.

    write       the job, its first event, its message and its audit entry; locks the key's row
    standing    after that lock: what the key may do, what it has, and the state of the ledger
    Holds       locks the accounts of all that the job reads, and reads them with their last entries (app.ledger.blocks)

go in one round trip. After the checks, the holds, their entries and the commit go in a second one: the lock of an
account lasts from the first to the second. `standing` answers what `access_by_id`, `check_content` and
`require_current` answer one by one; a contract test compares them.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from sqlalchemy import (
    BigInteger,
    Integer,
    Select,
    and_,
    bindparam,
    exists,
    func,
    literal_column,
    or_,
    select,
    union_all,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app import tracing
from app.admission.price import Priced
from app.admission.request import Request, Resolved, same
from app.admission.study import stored
from app.audit import record as audit
from app.contracts.optimizers import PublicSideSettings
from app.contracts.stored import SaltedSteps
from app.datasets.repository import check_content, check_there
from app.db.engine import Database
from app.db.models import Account, ApiKey, AuditEntry, Job, JobEvent, LedgerCheck, LedgerEntry, Outbox, table_of
from app.db.together import Together, row_of, values_of
from app.db.trip import Reply, Trip, round_trip
from app.errors import Conflict, NotFound, PolicyError, PrivacyError, Unauthenticated
from app.grants import service as grants
from app.grants.service import DATA, GIVEN, LOOKED_AT, NO_SUCH_DATASET, Access, access_in, given_to
from app.ids import new_id, now
from app.keys import service as keys
from app.keys.service import LOCKED, Caller, KeyLike
from app.ledger import behind
from app.ledger.accounts import HoldTerms
from app.ledger.blocks import Holds
from app.ledger.memos import HeldFor
from app.ledger.transparency.heads import Head, Heads
from app.lifecycle.events import Queued
from app.lifecycle.states import ANNOUNCE, event_row
from app.lifecycle.studies import begin
from app.logs import about
from app.privacy.prices import Price, StudyPrice

logger = logging.getLogger(__name__)
ACCOUNTS, ENTRIES, CHECKS, KEYS = table_of(Account), table_of(LedgerEntry), table_of(LedgerCheck), table_of(ApiKey)
JOBS, EVENTS, OUTBOX, AUDIT = table_of(Job), table_of(JobEvent), table_of(Outbox), table_of(AuditEntry)
ONCE = select(JOBS.c.id, JOBS.c.request_sha256).where(
    JOBS.c.key_id == bindparam("key"), JOBS.c.idempotency_key == bindparam("once")
)
# A paused job counts: it can be queued at any time. A running study counts while one of its trials is queued.
RUNS = table_of(Job).alias("runs").c
# How many jobs the key may have in the queue: its own limit, or else the setting's; one more is counted.
OWN_LIMIT = func.coalesce(
    select(KEYS.c.max_queued_jobs).where(KEYS.c.id == bindparam("key")).scalar_subquery(),
    bindparam("limit", type_=Integer),
)
QUEUED = select(func.count()).select_from(
    union_all(
        select(JOBS.c.id).where(
            JOBS.c.key_id == bindparam("key"),
            or_(JOBS.c.status == "queued", JOBS.c.status == "paused"),
            JOBS.c.parent_id.is_(None),
        ),
        select(JOBS.c.id).where(
            JOBS.c.key_id == bindparam("key"),
            JOBS.c.status == "running",
            JOBS.c.study.is_not(None),
            exists(select(literal_column("1")).where(RUNS.parent_id == JOBS.c.id, RUNS.status == "queued")),
        ),
    )
    .limit(OWN_LIMIT + 1)
    .subquery()
)
# The columns that a submission sets.
COLUMNS = (
    "id",
    "dataset_id",
    "declaration",
    "key_id",
    "idempotency_key",
    "request_sha256",
    "name",
    "status",
    "spec",
    "mechanism",
    "quote",
    "segments",
    "steps",
    "steps_started",
    "step",
    "warnings",
    "events",
    "created_at",
    "tags",
    "notes",
    "traceparent",
    "study",
)
UNSTARTED = {"attempt": 0, "ran_s": 0.0}
# The job's event is its first, and a webhook's one belongs to it. A study wakes no worker itself.
STUDY_PARTS = [
    row_of(JOBS, *COLUMNS, *UNSTARTED),
    row_of(EVENTS, "job_id", "seq", "type", "data", "created_at"),
    ANNOUNCE,
    row_of(AUDIT, "at", "action", "actor", "target", "address", "user_agent", "outcome", "details"),
]
WRITE_STUDY = Together(LOCKED, *STUDY_PARTS)
WRITE_JOB = Together(LOCKED, *STUDY_PARTS, row_of(OUTBOX, "topic", "job_id", "created_at"))
# Locks the data set's row: a deletion of its content waits for the admission's end.
STANDING: Select[Any] = (
    select(
        *(DATA.c.id, DATA.c.name, DATA.c.retired_at, DATA.c.content_deleted_at),
        *LOOKED_AT,
        QUEUED.scalar_subquery().label("queued"),
        *(ACCOUNTS.c.entries, ACCOUNTS.c.head, ENTRIES.c.hash.label("there")),
        *(CHECKS.c.behind, CHECKS.c.problem),
    )
    .select_from(
        DATA.outerjoin(GIVEN, given_to(bindparam("key")))
        .outerjoin(ACCOUNTS, ACCOUNTS.c.dataset_id == DATA.c.id)
        .outerjoin(CHECKS, CHECKS.c.dataset_id == DATA.c.id)
        .outerjoin(
            ENTRIES, and_(ENTRIES.c.dataset_id == DATA.c.id, ENTRIES.c.seq == bindparam("seq", type_=BigInteger))
        )
    )
    .where(DATA.c.id == bindparam("dataset"))
    .with_for_update(read=True, of=DATA)
)


@dataclass(frozen=True)
class Held:
    """An admitted job.

    Attributes:
        job: its row; None if an earlier request made it.
    """

    id: str
    job: Job | None = None


@dataclass(frozen=True)
class NewJob:
    """A job's row before it is written.

    Attributes:
        columns: the row's values, by COLUMNS. They count the first event already.
    """

    id: str
    columns: dict[str, Any]

    def job(self) -> Job:
        """Returns the row as an object outside any session."""
        return Job(**self.columns)


def new_job(request: Request, priced: Priced, idempotency_key: str) -> NewJob:
    """Builds the job's row: its price and what runs, as JSON."""
    job_id = new_id("job")
    checked, price = priced.checked, priced.price
    mechanism = price.mechanism if isinstance(price, Price) else None
    study = None
    if priced.study is not None and isinstance(price, StudyPrice):
        study = stored(priced.study, price)
    columns = {
        "id": job_id,
        "dataset_id": checked.facts.id,
        "declaration": checked.facts.declaration,
        "key_id": request.caller.id,
        "idempotency_key": idempotency_key,
        "request_sha256": request.digest,
        "name": checked.spec.name,
        "status": "queued",
        "spec": checked.spec.model_dump(mode="json"),
        "mechanism": mechanism.model_dump(mode="json") if mechanism else None,
        "quote": priced.quote.model_dump(mode="json"),
        "segments": (SaltedSteps(from_step=0, salt=secrets.token_hex(32), key_id=None),),
        "steps": len(priced.study.slots) if priced.study else checked.steps,
        "steps_started": 0,
        "step": 0,
        "warnings": list(checked.warnings),
        "events": 1,
        "created_at": now(),
        "tags": "",
        "notes": "",
        "traceparent": tracing.traceparent(),
        "study": study.model_dump(mode="json") if study else None,
    }
    return NewJob(job_id, columns)


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
    reads = priced.checked.facts.reads
    with round_trip(session.connection()) as trip:
        key = write(trip, request.caller, priced, job)
        # From here to the commit this key's other submissions wait,
        replies = ask_standing(trip, request.caller.id, reads, recorded, request.limits.max_queued_jobs)
        # and from here all other holds on what the job reads.
        holds = ask_holds(trip, request.caller, priced, job.id)
    limit = _check_key(session, request, key.one_or_none(), priced)
    _check_standing(standing(request.caller, replies, recorded), priced, limit)
    begin_study(session, priced, job.id)
    if holds is not None:
        holds.check(session)
        with round_trip(session.connection()) as trip:
            holds.place(trip)
            trip.commit()


def _check_key(session: Session, request: Request, key: KeyLike | None, priced: Priced) -> int:
    """Checks the key, whose row is locked, again: pricing took a while. Returns how many jobs it may have in the queue.
    Raises: as `hold`."""
    if key is None or not keys.is_alive(key):
        raise Unauthenticated(keys.NOT_HELD)
    if isinstance(priced.checked.spec.optimizer, PublicSideSettings):
        side = priced.checked.spec.optimizer.public_dataset
        grants.check(grants.access_by_id(session, request.caller, side), "train")
        check_content(session, {side})
    return key.max_queued_jobs or request.limits.max_queued_jobs


def _check_standing(standing: Standing, priced: Priced, limit: int) -> None:
    """Checks access, policy, queue and ledger. The count of queued jobs includes the new one; the key's lock prevents
    two submissions from both taking the last place. Raises: as `hold`."""
    _check_policy(grants.check(standing.access, "train"), priced)
    if standing.queued > limit:
        detail = f"this key has {limit} jobs in the queue; its limit is {limit}: wait until some have started"
        raise Conflict("too-many-jobs", detail, limit=limit, queued=limit)
    if standing.problem is not None:
        raise behind.refusal(standing.problem)


def is_allowed(access: Access, priced: Priced) -> bool:
    """Returns True if the owner's policy for this key covers the priced ε, at the job's δ."""
    epsilon = priced.price.epsilon
    return access.max_epsilon is None or (epsilon is not None and epsilon.value <= access.max_epsilon)


def policy(access: Access) -> str:
    """The owner's policy for a key in words."""
    return f"the data set's owner allows this key at most ε = {access.max_epsilon:g} for one job"


def _check_policy(access: Access, priced: Priced) -> None:
    if not priced.checked.facts.is_private or is_allowed(access, priced):
        return
    epsilon = priced.price.epsilon
    if epsilon is None:
        raise PrivacyError("a job on private data needs a price")
    detail = f"{policy(access)}; this job costs ε = {epsilon.value:g}"
    requested = epsilon.model_dump(mode="json")
    raise PolicyError(detail, requested=requested, allowed=requested | {"value": access.max_epsilon})


def write(trip: Trip, caller: Caller, priced: Priced, job: NewJob) -> Reply:
    """Writes the job with everything except its hold and a study's first trials.

    Returns:
        The caller's key, whose row is locked now: its other admissions wait for this transaction's end. None if there
        is none.
    """
    queued = event_row(job.id, 1, "queued", Queued(charge=priced.price.charge))
    submitted = audit.row_of_entry("job.submitted", job.id, dataset=priced.checked.facts.id)
    values = (
        {"key": caller.id, "job": job.id, "event": 1}
        | values_of(JOBS, job.columns | UNSTARTED)
        | values_of(EVENTS, queued)
        | values_of(AUDIT, submitted)
    )
    if priced.study is not None:
        return trip.send(WRITE_STUDY, values)
    return trip.send(WRITE_JOB, values | values_of(OUTBOX, {"topic": "notify", "job_id": job.id, "created_at": now()}))


def begin_study(session: Session, priced: Priced, job_id: str) -> None:
    """Writes a study's first trials."""
    if priced.study is not None:
        begin(session, session.get_one(Job, job_id))
        session.flush()


@dataclass(frozen=True)
class Standing:
    """What an admission depends on, read under the lock of the key's row.

    Attributes:
        access: the key's to the data set; None: it does not see it.
        queued: how many jobs the key has in the queue, the new one included, up to the limit that was asked.
        problem: what is wrong with the ledger.
    """

    access: Access | None
    queued: int
    problem: str | None


def ask_standing(
    trip: Trip, key_id: str, dataset_ids: Sequence[str], recorded: Mapping[str, Head | None], limit: int
) -> list[Reply]:
    """Asks for what `standing` reads, and makes a deletion of the content wait until the transaction's end. One
    statement for each block.

    Args:
        dataset_ids: what the job reads and pays on: a data set, or blocks of one.
        recorded: the recorded head of each of these ledgers, read before this transaction.
        limit: of queued jobs, of a key without its own. They are counted up to the next number.
    """
    values = {"key": key_id, "limit": limit}
    heads = {each: recorded[each] for each in dataset_ids}
    return [
        trip.send(STANDING, values | {"dataset": each, "seq": head.seq if head else 0}) for each, head in heads.items()
    ]


def standing(caller: Caller, replies: Sequence[Reply], recorded: Mapping[str, Head | None]) -> Standing:
    """Reads the replies to `ask_standing`: what an admission depends on.

    Raises:
        NotFound: a data set is gone.
        Conflict: `content-deleted`.
    """
    found = [_of_one(caller, reply.one_or_none(), recorded) for reply in replies]
    return next((each for each in found if each.problem is not None), found[0])


def _of_one(caller: Caller, row: SimpleNamespace | None, recorded: Mapping[str, Head | None]) -> Standing:
    """The state of one ledger. A key's access to a block is that to its data set."""
    if row is None:
        raise NotFound(NO_SUCH_DATASET)
    check_there(row)
    problem = None
    if row.entries is not None:
        problem = behind.difference(recorded[row.id], row.entries, row.there) or row.behind or row.problem
    return Standing(access_in(caller, row), row.queued, problem)


def ask_holds(trip: Trip, caller: Caller, priced: Priced, job_id: str) -> Holds | None:
    """Begins the job's holds on all that it reads; None on public data. It comes last: other holds on the data set wait
    for its account's row until the commit."""
    if not priced.checked.facts.is_private:
        return None
    charge, slots = priced.price.charge, len(priced.study.slots) if priced.study else None
    memo = HeldFor(epsilon=priced.price.epsilon, study=slots)
    terms = HoldTerms(job_id, charge.train, charge.holdout, caller.id, memo)
    return Holds(trip, priced.checked.facts.reads, terms)
