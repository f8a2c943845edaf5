"""Compares ledgers with their heads recorded outside the database, to detect a database that lost entries.

A data set whose ledger is behind its record, or differs from it, admits nothing (409 `/problems/ledger-behind`) and
runs nothing until `scrimp restore` has posted what is missing, or a newer backup is there. The same holds if the
storage holds a job that the database does not know. Other data sets stay open.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sqlalchemy import BigInteger, Select, String, and_, bindparam, func, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from app.db.database import Database
from app.db.models import Account, Dataset, DatasetContent, Job, LedgerCheck, LedgerEntry
from app.db.trip import round_trip
from app.ledger.transparency import notes
from app.ledger.transparency.heads import TRIES, Head, Heads, UnreadableHeadError
from app.ledger.transparency.notes import Checkpoint
from app.ledger.transparency.trees import contains
from app.storage.objects import Objects
from core.errors import Conflict, TransientError, Unavailable
from core.ids import now

logger = logging.getLogger(__name__)
MARKER = "dataset"  # in a job's folder in the storage: names the job's data set
BATCH = 500
ALL = 2**63 - 1
FOUND = func.coalesce(LedgerCheck.behind, LedgerCheck.problem)
LEDGER = select(bindparam("dataset", type_=String).label("id")).subquery()
READ: tuple[Any, ...] = (Account.entries, LedgerEntry.hash.label("there"), FOUND.label("noted"))
STATE: Select[Any] = (
    select(*READ)
    .select_from(LEDGER)
    .outerjoin(Account, Account.dataset_id == LEDGER.c.id)
    .outerjoin(LedgerCheck, LedgerCheck.dataset_id == LEDGER.c.id)
    .outerjoin(
        LedgerEntry,
        and_(LedgerEntry.dataset_id == LEDGER.c.id, LedgerEntry.seq == bindparam("seq", type_=BigInteger)),
    )
)


def record(db: Database, heads: Heads, dataset_id: str) -> None:
    """Records the current head, on disk before this returns. Does nothing for a public data set.

    The head replaces the record that the ledger was compared with, and no other: where another writer came first, it is
    compared again. After a ledger that another one moved to, that one: nothing may run on the new one as long as a
    restored backup could open the old one.

    Raises:
        TransientError: the ledger is behind its record, or the record cannot be written: nothing may run.
    """
    for _ in range(TRIES):
        try:
            recorded = heads.known(dataset_id)
            with db.read() as session:
                account = session.get(Account, dataset_id)
                if account is None:
                    return None
                problem = misfit(session, account, recorded.head)
                contents = session.scalars(select(DatasetContent.hmac).where(DatasetContent.dataset_id == dataset_id))
                owner_and_paid = select(Dataset.owner_key, Dataset.pays_for).where(Dataset.id == dataset_id)
                owner, pays_for = session.execute(owner_and_paid).one()
                head = Head.of(account, owner, tuple(sorted(contents)))
            if problem is None and heads.write(head, recorded):
                return None if pays_for is None else record(db, heads, pays_for)
        except (OSError, UnreadableHeadError, Unavailable) as error:
            raise TransientError(f"the head of {dataset_id} could not be recorded: {error}") from None
        if problem is not None:
            raise TransientError(f"the ledger of {dataset_id} is behind: {problem}")
    raise TransientError(f"the head of {dataset_id} could not be recorded: others keep writing it")


def record_soon(db: Database, heads: Heads, dataset_id: str) -> None:
    """Records the head after a commit. If that fails now, the relay does so soon."""
    try:
        record(db, heads, dataset_id)
    except (OperationalError, TransientError) as error:
        logger.warning("the head of %s could not be recorded yet: %s", dataset_id, type(error).__name__)


def misfit(session: Session, account: Account, recorded: Head | None) -> str | None:
    """How a ledger differs from its recorded head; None if it contains it.

    Args:
        recorded: read BEFORE this session's snapshot: a head that is recorded later may belong to a later commit.
    """
    database_head: str | None = account.head
    if recorded is not None and recorded.seq < account.entries:
        database_head = session.scalar(
            select(LedgerEntry.hash).where(
                LedgerEntry.dataset_id == account.dataset_id, LedgerEntry.seq == recorded.seq
            )
        )
    return difference(recorded, account.entries, database_head)


def difference(recorded: Head | None, entries: int, database_head: str | None) -> str | None:
    """How a ledger differs from its recorded head; None if it contains it.

    Args:
        entries: how many it has.
        database_head: the hash of its entry with the recorded head's number.
    """
    if recorded is None:
        return None
    if recorded.seq > entries:
        return f"it has {entries} entries, but {recorded.seq} were recorded outside the database"
    return None if database_head == recorded.head else f"entry {recorded.seq} differs from the recorded one"


def require_current(session: Session, recorded: Head | None, dataset_id: str) -> None:
    """Checks the ledger in the caller's transaction, before it spends or changes the budget.

    Args:
        recorded: as in `misfit`; see `read_recorded`.

    Raises:
        Conflict: `ledger-behind`: the ledger differs from its record, or a check has found it wrong.
    """
    both = select(Account, FOUND).outerjoin(LedgerCheck, LedgerCheck.dataset_id == Account.dataset_id)
    query = both.where(Account.dataset_id == dataset_id).execution_options(populate_existing=True)
    row = session.execute(query).one_or_none()
    if row is None:
        return
    account, noted = row
    problem = misfit(session, account, recorded) or noted
    if problem is not None:
        raise refusal(problem)


def refusal(problem: str) -> Conflict:
    """The error of a ledger that is not reliable."""
    detail = f"the ledger of this data set is not reliable: {problem}; its owner must restore it (scrimp restore)"
    return Conflict("ledger-behind", detail, problem=problem)


def read_recorded(heads: Heads, dataset_id: str) -> Head | None:
    """Reads the record before the transaction that is compared with it.

    Raises:
        Conflict: `ledger-behind`: there is one, and it cannot be read.
        Unavailable: the bucket of records does not answer.
    """
    try:
        return heads.read(dataset_id)
    except UnreadableHeadError as error:
        raise refusal(f"its record outside the database cannot be read: {error}") from None


def problems(db: Database, heads: Heads, dataset_ids: Iterable[str]) -> dict[str, str]:
    """What is wrong with the ledgers of these data sets, by id; sound ledgers are left out."""
    states = _states(db, heads, dataset_ids).items()
    return {dataset_id: problem for dataset_id, (misfits, noted) in states if (problem := misfits or noted)}


def _states(db: Database, heads: Heads, dataset_ids: Iterable[str]) -> dict[str, tuple[str | None, str | None]]:
    """Of each ledger how it differs from its record, which is read first, and what an earlier check noted."""
    recorded = heads.read_all(list(dataset_ids))
    with db.read() as session:
        with round_trip(session.connection()) as trip:
            replies = {
                dataset_id: trip.send(STATE, {"dataset": dataset_id, "seq": head.seq if isinstance(head, Head) else 0})
                for dataset_id, head in recorded.items()
            }
        states = {dataset_id: reply.one_or_none() for dataset_id, reply in replies.items()}
    by_id = dict[str, tuple[str | None, str | None]]()
    for dataset_id, state in states.items():
        head, noted = recorded[dataset_id], None if state is None else state.noted
        if isinstance(head, UnreadableHeadError):
            by_id[dataset_id] = f"its record outside the database cannot be read: {head}", noted
        elif state is not None:
            misfits = None if state.entries is None else difference(head, state.entries, state.there)
            by_id[dataset_id] = misfits, noted
    return by_id


def require_witnessed(db: Database, heads: Heads, dataset_id: str) -> None:
    """Checks that the newest checkpoint here is every required witness's newest, before a job or charge is admitted.

    Raises:
        Conflict: `ledger-behind`: a witness has seen entries that are not here. `head-pending`: one has not seen the
            newest checkpoint yet, or does not answer.
    """
    if not heads.witnesses:
        return
    with db.read() as session:
        if session.get(Account, dataset_id) is None:
            return
    checkpoint, seen = _witnessed(db, heads, dataset_id)
    if checkpoint is None or any(each != checkpoint for each in seen):
        raise Conflict(
            "head-pending", "a witness has not seen the ledger's newest checkpoint yet: ask again in a moment"
        )


def _witnessed(db: Database, heads: Heads, dataset_id: str) -> tuple[Checkpoint | None, list[Checkpoint | None]]:
    """The newest checkpoint here, and each witness's: the ledger begins with the entries of all of them.

    Raises:
        Conflict: `head-pending`: a witness does not answer. `ledger-behind`: one has seen entries that are not here,
            or the checkpoint here cannot be read.
    """
    try:
        note = heads.checkpoint(dataset_id)
        checkpoint = None if note is None else notes.read(note)
        seen = [each.newest(dataset_id) for each in heads.witnesses]
    except TransientError as error:
        raise Conflict("head-pending", f"{error}: nothing is admitted until it does") from None
    except UnreadableHeadError as error:
        raise refusal(f"its checkpoint outside the database cannot be read: {error}") from None
    # A database that was set back may have grown again since: more entries do not make it the same ledger.
    cosigned = {each for each in seen if each is not None and each != checkpoint}
    with db.read() as session:  # begun after the answers: it has all that they cover
        missing = [each.size for each in cosigned if not contains(session, each)]
    if missing:
        raise refusal(f"a witness has seen {max(missing)} entries that are not here, or differ here")
    return checkpoint, seen


def reach(db: Database, heads: Heads, dataset_id: str) -> int:
    """How many of a ledger's entries are reliable: workers may claim the jobs whose holds are among them.

    0 if the ledger is behind: a job may have run already. With required witnesses the entries that all have seen.
    """
    try:
        problem = problems(db, heads, [dataset_id]).get(dataset_id)
    except Unavailable as error:
        logger.warning("no job of %s is claimed: %s", dataset_id, error.message)
        return 0
    if problem is not None:
        logger.error("no job of %s is claimed, because its ledger is behind: %s", dataset_id, problem)
        return 0
    if not heads.witnesses:
        return ALL
    with db.read() as session:
        if session.get(Account, dataset_id) is None:
            return ALL
    try:
        _, seen = _witnessed(db, heads, dataset_id)
    except Conflict as conflict:
        logger.warning("no job of %s is claimed: %s", dataset_id, conflict)
        return 0
    return min(0 if each is None else each.size for each in seen)


def survey(db: Database, heads: Heads, store: Objects, damaged: Mapping[str, str]) -> dict[str, str]:
    """Compares all records, and the jobs in the storage, with the database; notes what is behind, by data set.

    Args:
        damaged: data sets that have another problem (app.lifecycle.mark_survey calls this with it).

    Runs at each start, since the database may have been restored, and once an hour. Admissions check their own record.
    """
    unknown = {
        dataset_id: f"the storage holds {job}, unknown to the database" for job, dataset_id in strangers(db, store)
    }
    with db.read() as session:
        account_ids = set(session.scalars(select(Account.dataset_id)))
    recorded = heads.recorded()
    states = _states(db, heads, sorted(account_ids | set(recorded))).items()
    problem_by_id = {**damaged} | unknown | {each: misfits for each, (misfits, _noted) in states if misfits}
    problem_by_id |= {each: "the database does not know this data set" for each in recorded if each not in account_ids}
    with db.write() as session:
        earlier = {row.dataset_id: row for row in session.scalars(select(LedgerCheck))}
        for dataset_id in problem_by_id.keys() | earlier.keys():
            row = earlier.get(dataset_id) or LedgerCheck(dataset_id=dataset_id)
            row.behind = problem_by_id.get(dataset_id)
            row.noticed_at = now() if dataset_id in problem_by_id else None
            session.add(row)
    for dataset_id, problem in sorted(problem_by_id.items()):
        logger.error("the ledger of %s is behind: %s (scrimp restore)", dataset_id, problem)
    return problem_by_id


def strangers(db: Database, store: Objects) -> Iterator[tuple[str, str]]:
    """Jobs in the storage that the database does not know, each with its data set."""
    folders = store.jobs()
    for start in range(0, len(folders), BATCH):
        some = folders[start : start + BATCH]
        with db.read() as session:
            job_ids = set(session.scalars(select(Job.id).where(Job.id.in_(some))))
        for job in some:
            dataset_id = None if job in job_ids else store.marker(f"jobs/{job}/{MARKER}")
            if dataset_id is not None:
                yield job, dataset_id


def forgotten(db: Database, heads: Heads, owner: str) -> str | None:
    """An owner's recorded data set, or block, that the database does not know; None if there is none."""
    with db.read() as session:
        account_ids = set(session.scalars(select(Account.dataset_id)))
    for dataset_id in heads.recorded():
        recorded = None if dataset_id in account_ids else read_recorded(heads, dataset_id)
        if recorded is not None and recorded.owner == owner:
            return dataset_id
    return None


def lacks_recorded(db: Database, heads: Heads) -> bool:
    """Returns True if the database does not know a recorded data set."""
    with db.read() as session:
        account_ids = set(session.scalars(select(Account.dataset_id)))
    return any(each not in account_ids for each in heads.recorded())


def forgotten_content(db: Database, heads: Heads, owner: str, hmacs: set[str]) -> str | None:
    """The owner's recorded data set that has one of these contents and that the database does not know; None if there
    is none. Other owners' data sets are not compared: decision 15."""
    with db.read() as session:
        account_ids = set(session.scalars(select(Account.dataset_id)))
    unknown = [each for each in heads.recorded() if each not in account_ids]
    for dataset_id, recorded in heads.read_all(unknown).items():
        if isinstance(recorded, Head) and recorded.owner == owner and hmacs & set(recorded.contents):
            return dataset_id
    return None
