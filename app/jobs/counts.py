"""Counts of jobs by status and of failures by cause, which do not read the whole history at each request.

A job that ended a day ago stays as it is, and so does a sealed audit entry. A process counts those once and keeps the
sums; at a request it adds what is newer. Where the last sealed entry of then is not there any more, a backup was
restored under the running process, and it counts anew.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from weakref import WeakKeyDictionary

from sqlalchemy import ColumnElement, func, or_, outerjoin, select
from sqlalchemy.orm import Session

from app.db.clock import now_there
from app.db.database import Database
from app.db.models import AuditEntry, AuditHead, Dataset, Job
from app.grants.service import visible
from app.keys.service import Caller

# Longer than any transaction lasts between the end's time and its commit.
SETTLES = timedelta(days=1)
AGAIN = timedelta(hours=1)
MOST_COUNTED = 200  # of the jobs that a search finds
ByStatus = Counter[tuple[str, str]]  # (data set, status)


@dataclass(frozen=True)
class _Old:
    """What was counted once: jobs that ended before a moment, failures up to an audit entry.

    Attributes:
        last: the number and hash of the audit entry that was the last sealed one when something was counted.
    """

    upto: datetime | None = None
    ends: ByStatus = field(default_factory=Counter)
    sealed: int = 0
    last: tuple[int, str] = (0, "")
    causes: Counter[str] = field(default_factory=Counter)


_KEPT: WeakKeyDictionary[Database, _Old] = WeakKeyDictionary()
_LOCK = threading.Lock()  # one request counts at a time: each would read the whole history


def jobs_by_status(
    db: Database, session: Session, caller: Caller | None, dataset_id: str | None = None
) -> dict[str, int]:
    """Counts the jobs that a caller may see, by status. Trials are not counted, but their study.

    Args:
        caller: None for everything.
        dataset_id: those on this data set alone.
    """
    with _LOCK:
        old, last = _kept(db, session)
        settled = now_there(session) - SETTLES
        if old.upto is None or old.upto < settled - AGAIN:
            ends = old.ends + _counts(session, _ended_since(old.upto), Job.finished_at < settled)
            old = _KEPT[db] = replace(old, upto=settled, ends=ends, last=last)
    counts = old.ends + _counts(session, _ended_since(old.upto)) + _counts(session, Job.finished_at.is_(None))
    seen = None if caller is None or caller.is_admin else _visible(session, caller, {each for each, _ in counts})
    totals = Counter[str]()
    for (dataset, status), count in counts.items():
        if dataset == (dataset_id or dataset) and (seen is None or dataset in seen):
            totals[status] += count
    return dict(totals)


def _kept(db: Database, session: Session) -> tuple[_Old, tuple[int, str]]:
    """What was counted, or nothing, if this is another history; and the last sealed audit entry."""
    old = _KEPT.get(db, _Old())
    number, count = old.last
    later = outerjoin(AuditHead, AuditEntry, AuditEntry.seq == number)
    row = session.execute(select(AuditHead.seq, AuditHead.hash, AuditEntry.hash).select_from(later)).one_or_none()
    last, total = ((0, ""), None) if row is None else ((row[0], row[1]), row[2])
    return old if number == 0 or total == count else _Old(), last


def _ended_since(moment: datetime | None) -> ColumnElement[bool]:
    return Job.finished_at.is_not(None) if moment is None else Job.finished_at >= moment


def _counts(session: Session, *conditions: ColumnElement[bool]) -> ByStatus:
    # SQLite would read all jobs in an index's order to group by a plain column.
    columns = (Job.dataset_id.concat(""), Job.status)
    rows = session.execute(
        select(*columns, func.count()).where(Job.parent_id.is_(None), *conditions).group_by(*columns)
    )
    return Counter({(dataset, status): count for dataset, status, count in rows})


def _visible(session: Session, caller: Caller, datasets: Collection[str]) -> set[str]:
    return set(session.scalars(select(Dataset.id).where(Dataset.id.in_(datasets), visible(caller))))


def failures_by_cause(db: Database, session: Session) -> dict[str, int]:
    """Counts failed jobs by cause, from the audit log."""
    entry, cause = AuditEntry, AuditEntry.details["because"].as_string()
    counted = select(cause, func.count()).group_by(cause)
    failed = counted.where(entry.action == "job.failed")
    with _LOCK:
        old, last = _kept(db, session)
        head, _hash = last
        if head > old.sealed:
            rows = session.execute(failed.where(entry.seq > old.sealed, entry.seq <= head))
            new = Counter({str(because): count for because, count in rows})
            old = _KEPT[db] = replace(old, sealed=head, causes=old.causes + new, last=last)
    # By the plain column SQLite would read all failures, to find the few that are not counted.
    is_failure = entry.action.concat("") == "job.failed"
    unsealed = session.execute(counted.where(is_failure, or_(entry.seq > old.sealed, entry.seq.is_(None))))
    return dict(old.causes + Counter({str(because): count for because, count in unsealed}))
