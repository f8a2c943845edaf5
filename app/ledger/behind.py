"""Compares ledgers with their heads recorded outside the database, to detect a database that lost entries.

A data set whose ledger is behind its record, or differs from it, admits nothing (409 `/problems/ledger-behind`) and
runs nothing until `scrimp restore` has posted what is missing, or a newer backup is there. The same holds if the
storage holds a job that the database does not know. Other data sets stay open.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

from sqlalchemy import func, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from app.db.engine import Database
from app.db.models import Account, Dataset, DatasetContent, Job, LedgerCheck, LedgerEntry
from app.errors import Conflict, TransientError
from app.ids import now
from app.ledger.heads import Head, Heads, UnreadableHeadError

logger = logging.getLogger(__name__)
MARKER = "dataset"  # in a job's folder in the storage: names the job's data set
BATCH = 500
FOUND = func.coalesce(LedgerCheck.behind, LedgerCheck.problem)


def record(db: Database, heads: Heads, dataset_id: str) -> None:
    """Records the current head, on disk before this returns. Does nothing for a public data set.

    Raises:
        TransientError: the ledger is behind its record, or the record cannot be written: nothing may run.
    """
    try:
        before = heads.read(dataset_id)
        with db.read() as session:
            account = session.get(Account, dataset_id)
            if account is None:
                return
            problem = misfit(session, account, before)
            contents = session.scalars(select(DatasetContent.hmac).where(DatasetContent.dataset_id == dataset_id))
            owner = session.get_one(Dataset, dataset_id).owner_key
            head = Head.of(account, owner, tuple(sorted(contents)))
        if problem is None:
            heads.write(head)
    except (OSError, UnreadableHeadError) as error:
        raise TransientError(f"the head of {dataset_id} could not be recorded: {error}") from None
    if problem is not None:
        raise TransientError(f"the ledger of {dataset_id} is behind: {problem}")


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
    if recorded is None:
        return None
    if recorded.seq > account.entries:
        return f"it has {account.entries} entries, but {recorded.seq} were recorded outside the database"
    there: str | None = account.head
    if recorded.seq < account.entries:
        there = session.scalar(
            select(LedgerEntry.hash).where(
                LedgerEntry.dataset_id == account.dataset_id, LedgerEntry.seq == recorded.seq
            )
        )
    return None if there == recorded.head else f"entry {recorded.seq} differs from the recorded one"


def require_current(session: Session, recorded: Head | None, dataset_id: str) -> None:
    """Checks the ledger in the caller's transaction, before it spends or changes the budget.

    Args:
        recorded: as in `misfit`; see `read_recorded`.

    Raises:
        Conflict: `ledger-behind`: the ledger differs from its record, or a check has found it wrong.
    """
    account = session.get(Account, dataset_id, populate_existing=True)
    if account is None:
        return
    problem = misfit(session, account, recorded) or noted(session, dataset_id)
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
    """
    try:
        return heads.read(dataset_id)
    except UnreadableHeadError as error:
        raise refusal(f"its record outside the database cannot be read: {error}") from None


def problems(db: Database, heads: Heads, dataset_ids: Iterable[str]) -> dict[str, str]:
    """What is wrong with the ledgers of these data sets, by id; sound ledgers are left out."""
    ids = list(dataset_ids)
    found = _against_records(db, heads, ids)
    with db.read() as session:
        checks = select(LedgerCheck.dataset_id, FOUND).where(LedgerCheck.dataset_id.in_(ids), FOUND.is_not(None))
        return {row[0]: row[1] for row in session.execute(checks)} | found


def _against_records(db: Database, heads: Heads, dataset_ids: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    recorded: dict[str, Head | None] = {}
    for each in dataset_ids:
        try:
            recorded[each] = heads.read(each)
        except UnreadableHeadError as error:
            found[each] = f"its record outside the database cannot be read: {error}"
    with db.read() as session:
        accounts = session.scalars(select(Account).where(Account.dataset_id.in_(recorded)))
        for account in accounts:
            problem = misfit(session, account, recorded[account.dataset_id])
            if problem is not None:
                found[account.dataset_id] = problem
    return found


def noted(session: Session, dataset_id: str) -> str | None:
    """The finding of the last survey or of the last full verification."""
    return session.scalar(select(FOUND).where(LedgerCheck.dataset_id == dataset_id))


def may_run(db: Database, heads: Heads, dataset_id: str) -> bool:
    """Returns True if workers may claim a data set's jobs. Where the ledger is behind, a job may have run already."""
    problem = problems(db, heads, [dataset_id]).get(dataset_id)
    if problem is not None:
        logger.error("no job of %s is claimed, because its ledger is behind: %s", dataset_id, problem)
    return problem is None


def survey(db: Database, heads: Heads, storage_root: Path) -> dict[str, str]:
    """Compares all records, and the jobs in the storage, with the database; notes what is behind, by data set.

    Runs at each start, since the database may have been restored, and once an hour. Admissions check their own record.
    """
    unknown = {whose: f"the storage holds {job}, unknown to the database" for job, whose in strangers(db, storage_root)}
    with db.read() as session:
        known = set(session.scalars(select(Account.dataset_id)))
    recorded = heads.recorded()
    found = unknown | _against_records(db, heads, sorted(known | set(recorded)))
    found |= {each: "the database does not know this data set" for each in recorded if each not in known}
    with db.write() as session:
        before = {row.dataset_id: row for row in session.scalars(select(LedgerCheck))}
        for each in found.keys() | before.keys():
            row = before.get(each) or LedgerCheck(dataset_id=each)
            row.behind = found.get(each)
            row.noticed_at = now() if each in found else None
            session.add(row)
    for each, problem in sorted(found.items()):
        logger.error("the ledger of %s is behind: %s (scrimp restore)", each, problem)
    return found


def strangers(db: Database, storage_root: Path) -> Iterator[tuple[str, str]]:
    """Jobs in the storage that the database does not know, each with its data set."""
    folders = sorted(path.name for path in (storage_root / "jobs").glob("job_*"))
    for start in range(0, len(folders), BATCH):
        some = folders[start : start + BATCH]
        with db.read() as session:
            known = set(session.scalars(select(Job.id).where(Job.id.in_(some))))
        for job in some:
            marker = storage_root / "jobs" / job / MARKER
            if job not in known and marker.is_file():
                yield job, marker.read_text().strip()


def forgotten_content(db: Database, heads: Heads, owner: str, hmacs: set[str]) -> str | None:
    """The owner's recorded data set that has one of these contents and that the database does not know; None if there
    is none. Other owners' data sets are not compared: decision 15."""
    with db.read() as session:
        known = set(session.scalars(select(Account.dataset_id)))
    for each in heads.recorded():
        if each in known:
            continue
        try:
            recorded = heads.read(each)
        except UnreadableHeadError:
            continue
        if recorded is not None and recorded.owner == owner and hmacs & set(recorded.contents):
            return each
    return None
