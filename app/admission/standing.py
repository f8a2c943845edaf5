"""What an admission depends on, read after the lock of the key's row: the key's access, its queue, the ledgers' state.

One statement for each data set or block that a job reads. It answers what `access_by_id`, `check_content` and
`require_current` answer one by one; a contract test compares them.
"""

from __future__ import annotations

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
from sqlalchemy.orm import Session

from app.admission.request import with_use
from app.datasets.repository import check_content, check_there
from app.db.database import Database
from app.db.models import Account, ApiKey, Job, LedgerCheck, LedgerEntry, table_of
from app.db.trip import Reply, Trip
from app.grants import service as grants
from app.grants.service import DATA, GIVEN, LOOKED_AT, NO_SUCH_DATASET, Access, access_in, given_to
from app.keys import service as keys
from app.keys.service import Caller, KeyLike
from app.ledger import behind
from app.ledger.transparency.heads import Head, Heads
from core.contracts.base import Epsilon
from core.contracts.governance import Use
from core.errors import Conflict, InvalidRequest, NotFound, PolicyError, PrivacyError, Unauthenticated

ACCOUNTS, ENTRIES, CHECKS, KEYS = table_of(Account), table_of(LedgerEntry), table_of(LedgerCheck), table_of(ApiKey)
JOBS = table_of(Job)
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
Recorded = Mapping[str, Head | None]  # of each ledger, the head that is recorded outside the database


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


def recorded_of(db: Database, heads: Heads, dataset_ids: Sequence[str]) -> Recorded:
    """Reads the recorded heads of the ledgers that a job pays on, before its transaction.

    Raises:
        Conflict: `head-pending`: a retirement is not recorded yet.
    """
    for dataset_id in dataset_ids:
        behind.require_witnessed(db, heads, dataset_id)
    return {each: behind.read_recorded(heads, each) for each in dataset_ids}


def ask(trip: Trip, key_id: str, recorded: Recorded, limit: int) -> list[Reply]:
    """Asks for what `read` reads, and makes a deletion of the content wait until the transaction's end. One
    statement for each block.

    Args:
        recorded: of what the job reads and pays on: a data set, or blocks of one.
        limit: of queued jobs, of a key without its own. They are counted up to the next number.
    """
    values = {"key": key_id, "limit": limit}
    return [
        trip.send(STANDING, values | {"dataset": each, "seq": head.seq if head else 0})
        for each, head in recorded.items()
    ]


def read(caller: Caller, replies: Sequence[Reply], recorded: Recorded) -> Standing:
    """Reads the replies to `ask`: what an admission depends on.

    Raises:
        NotFound: a data set is gone.
        Conflict: `content-deleted`.
    """
    readings = [_of_one(caller, reply.one_or_none(), recorded) for reply in replies]
    return next((each for each in readings if each.problem is not None), readings[0])


def _of_one(caller: Caller, row: SimpleNamespace | None, recorded: Recorded) -> Standing:
    """The state of one ledger. A key's access to a block is that to its data set."""
    if row is None:
        raise NotFound(NO_SUCH_DATASET)
    check_there(row)
    problem = None
    if row.entries is not None:
        problem = behind.difference(recorded[row.id], row.entries, row.there) or row.behind or row.problem
    return Standing(access_in(caller, row), row.queued, problem)


def check_key(session: Session, caller: Caller, key: KeyLike | None, side: str | None) -> KeyLike:
    """Checks the key, whose row is locked, again: pricing took a while.

    Args:
        side: the data set of the optimizer's side information, if any.

    Raises:
        Unauthenticated, NotFound, Forbidden, Conflict: as `app.admission.hold.hold`.
    """
    if key is None or not keys.is_alive(key):
        raise Unauthenticated(keys.NOT_HELD)
    if side is not None:
        grants.check(grants.access_by_id(session, caller, side), "train")
        check_content(session, {side})
    return key


def check(standing: Standing, limit: int, epsilon: Epsilon | None, use: Use | None, *, is_private: bool) -> None:
    """Checks access, policy, queue and ledger. The count of queued jobs includes the new one; the key's lock prevents
    two submissions from both taking the last place.

    Args:
        limit: of the key's queued jobs.
        epsilon: the price of a job on private data.
        use: what the job is for; its grant may have become one for something else since it was resolved.

    Raises:
        NotFound, Forbidden, InvalidRequest, PolicyError, Conflict: as `app.admission.hold.hold`.
    """
    access = grants.check(standing.access, "train")
    if with_use(use, access.use) != (use or Use()):
        raise InvalidRequest.at("/use", "your grant on this data set has just changed: submit the job again")
    if is_private:
        _check_policy(access, epsilon)
    if standing.queued > limit:
        detail = f"this key has {limit} jobs in the queue; its limit is {limit}: wait until some have started"
        raise Conflict("too-many-jobs", detail, limit=limit, queued=limit)
    if standing.problem is not None:
        raise behind.refusal(standing.problem)


def is_allowed(access: Access, epsilon: Epsilon | None) -> bool:
    """Returns True if the owner's policy for this key covers the priced ε, at the job's δ."""
    return access.max_epsilon is None or (epsilon is not None and epsilon.value <= access.max_epsilon)


def policy(access: Access) -> str:
    """The owner's policy for a key in words."""
    return f"the data set's owner allows this key at most ε = {access.max_epsilon:g} for one job"


def _check_policy(access: Access, epsilon: Epsilon | None) -> None:
    if is_allowed(access, epsilon):
        return
    if epsilon is None:
        raise PrivacyError("a job on private data needs a price")
    detail = f"{policy(access)}; this job costs ε = {epsilon.value:g}"
    requested = epsilon.model_dump(mode="json")
    raise PolicyError(detail, requested=requested, allowed=requested | {"value": access.max_epsilon})
