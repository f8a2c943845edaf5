"""The statements of an admission: few, as a round trip costs more than the work on it.

    look_up     one read: the data set, the key's grant, the account, an earlier job of this Idempotency-Key
    write       the job, its first event, its message and its audit entry; locks the key's row
    standing    one read after that lock: what the key may do, what it has, and the state of the ledger

app.ledger.accounts then holds the charge. Each statement answers what plain ones answer one by one: `look_up` what
app.grants and app.jobs.repository do; `standing` what `access_by_id`, `check_content`, `count_queued` and
`require_current` do. A contract test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Connection, Row, Select, and_, bindparam, exists, or_, select
from sqlalchemy.orm import Session

from app.audit import record as audit
from app.datasets.repository import check_there
from app.db.models import Account, AuditEntry, Job, JobEvent, LedgerCheck, LedgerEntry, Outbox, table_of
from app.db.together import Together, row_of, values_of
from app.errors import NotFound
from app.grants.service import DATA, GIVEN, LOOKED_AT, NO_SUCH_DATASET, Access, access_in, chosen, given_to
from app.ids import now
from app.jobs import repository
from app.jobs.plans import DatasetFacts, Plan
from app.jobs.rows import COLUMNS, NewJob
from app.keys.service import LOCKED, Caller
from app.ledger import behind
from app.ledger.heads import Head
from app.lifecycle.events import Queued
from app.lifecycle.states import ANNOUNCE, event_row
from app.lifecycle.studies import begin
from app.privacy.prices import Price, StudyPrice

ACCOUNTS, ENTRIES, CHECKS = table_of(Account), table_of(LedgerEntry), table_of(LedgerCheck)
JOBS, EVENTS, OUTBOX, AUDIT = table_of(Job), table_of(JobEvent), table_of(Outbox), table_of(AuditEntry)
BEFORE, APPENDED = JOBS.alias("before"), DATA.alias("appended")
LOOK_UP: Select[Any] = (
    select(
        *(DATA.c.id, DATA.c.name, DATA.c.spec, DATA.c.shape, DATA.c.declaration),
        or_(DATA.c.parent_id.is_not(None), exists().where(APPENDED.c.parent_id == DATA.c.id)).label("in_blocks"),
        *LOOKED_AT,
        *(ACCOUNTS.c.filter, ACCOUNTS.c.filter_order, ACCOUNTS.c.cap_delta),
        *(BEFORE.c.id.label("job"), BEFORE.c.request_sha256),
    )
    .select_from(
        DATA.outerjoin(GIVEN, given_to(bindparam("key")))
        .outerjoin(ACCOUNTS, ACCOUNTS.c.dataset_id == DATA.c.id)
        .outerjoin(BEFORE, and_(BEFORE.c.key_id == bindparam("key"), BEFORE.c.idempotency_key == bindparam("once")))
    )
    .where(or_(DATA.c.id == bindparam("dataset"), DATA.c.name == bindparam("dataset")))
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
        *(DATA.c.name, DATA.c.retired_at, DATA.c.content_deleted_at),
        *LOOKED_AT,
        repository.QUEUED.scalar_subquery().label("queued"),
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
class LookedUp:
    """What an admission begins with.

    Attributes:
        access: the key's, which may be less than it needs.
        facts: the data set's; None if it grew by blocks, or is one: what a job reads of it takes more statements.
        before: an earlier job of this Idempotency-Key, with its request's digest as `request_sha256`.
    """

    access: Access
    facts: DatasetFacts | None
    before: tuple[str, str] | None


def look_up(connection: Connection, caller: Caller, dataset: str, idempotency_key: str) -> LookedUp | None:
    """Looks a data set up by its id or name; None if this key sees none."""
    asked = {"key": caller.id, "dataset": dataset, "once": idempotency_key}
    seen = [
        (row, access) for row in connection.execute(LOOK_UP, asked) if (access := access_in(caller, row)) is not None
    ]
    if not seen:
        return None
    row, access = chosen(seen, dataset)
    facts = None if row.in_blocks else repository.facts_of(row, row if row.filter is not None else None)
    return LookedUp(access, facts, None if row.job is None else (row.job, row.request_sha256))


def write(session: Session, caller: Caller, planned: Plan, priced: Price | StudyPrice, job: NewJob) -> Row[Any] | None:
    """Writes the job with everything except its hold, and for a study also the first trials.

    Returns:
        The caller's key, whose row is locked now: its other admissions wait for this transaction's end. None if there
        is none.
    """
    queued = event_row(job.id, 1, "queued", Queued(charge=priced.charge))
    submitted = audit.row_of_entry("job.submitted", job.id, dataset=planned.facts.id)
    values = (
        {"key": caller.id, "job": job.id, "event": 1}
        | values_of(JOBS, job.columns | UNSTARTED)
        | values_of(EVENTS, queued)
        | values_of(AUDIT, submitted)
    )
    if planned.study is not None:
        key = WRITE_STUDY.execute(session.connection(), values).one_or_none()
        begin(session, session.get_one(Job, job.id))
        return key
    values |= values_of(OUTBOX, {"topic": "notify", "job_id": job.id, "created_at": now()})
    return WRITE_JOB.execute(session.connection(), values).one_or_none()


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


def standing(
    session: Session, caller: Caller, dataset_ids: Sequence[str], recorded: Mapping[str, Head | None], at_most: int
) -> Standing:
    """Reads it, and makes a deletion of the content wait until the transaction's end. One statement for each block.

    Args:
        dataset_ids: what the job reads and pays on: a data set, or blocks of one.
        recorded: the recorded head of each of these ledgers, read before this transaction.
        at_most: queued jobs are counted up to this number.

    Raises:
        Conflict: `content-deleted`.
    """
    found = [_of_one(session, caller, each, recorded[each], at_most) for each in dataset_ids]
    return next((each for each in found if each.problem is not None), found[0])


def _of_one(session: Session, caller: Caller, dataset_id: str, recorded: Head | None, at_most: int) -> Standing:
    """The state of one ledger. A key's access to a block is that to its data set."""
    asked = {"key": caller.id, "dataset": dataset_id, "limit": at_most, "seq": recorded.seq if recorded else 0}
    row = session.connection().execute(STANDING, asked).one_or_none()
    if row is None:
        raise NotFound(NO_SUCH_DATASET)
    check_there(row)
    problem = None
    if row.entries is not None:
        problem = behind.difference(recorded, row.entries, row.there) or row.behind or row.problem
    return Standing(access_in(caller, row), row.queued, problem)
