"""After a backup was restored: what the database has forgotten of a data set's ledger is posted as spent.

What the lost entries were is not known, what they came to is: the recorded head has the balances. All that was spent or
held then counts as spent, since a job that was held may have run. Jobs that the database believes unfinished are ended
first: they may have ended already, and running them again would spend again.

    gap = recorded spent + held  −  spent now          (of each account; at least 0)

A ledger that was joined to another one is closed again where the database has forgotten that. Where it has not, nothing
is posted: the other ledger was charged for all that this one held.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.audit import record as audit
from app.db.engine import Database
from app.db.models import Account, Dataset, Job, LedgerCheck
from app.errors import InvalidRequest, NotFound
from app.ledger import accounts, behind, joining
from app.ledger.heads import Head, Heads, UnreadableHeadError
from app.lifecycle import studies
from app.lifecycle.claims import give_back
from app.lifecycle.settle import settle
from app.lifecycle.states import ACTIVE, FINISHED, get_job

ACTOR = "restore"
PREFIX = "restore_"  # of the job ids that such entries have: no job of this database
FORGOTTEN = "forgotten"


@dataclass(frozen=True)
class Gap:
    """What a database lacks of one data set.

    Attributes:
        problem: how it was noticed.
        name: None where the database does not know the data set.
        entries: that the database has; 0 where it does not know the data set.
        recorded: the head outside; None where it cannot be read, or a job in the storage is all that tells.
        spent: now, by account.
        unfinished: jobs of it that the database believes unfinished.
        closed: the database knows that it was joined to another ledger, which was charged for all that this one held.
    """

    dataset_id: str
    problem: str
    name: str | None
    entries: int
    recorded: Head | None
    spent: dict[str, int]
    unfinished: int
    closed: bool = False

    @property
    def missing(self) -> dict[str, int] | None:
        """What would be posted as spent, by account, where no unfinished job has spent any more; None: not known."""
        if self.recorded is None:
            return None
        if self.closed:
            return {"train": 0, "holdout": 0}
        return missing(self.recorded, self.spent["train"], self.spent["holdout"])


def missing(recorded: Head, train_spent: int, holdout_spent: int) -> dict[str, int]:
    """The gap between a recorded head and what is spent now."""
    train, holdout = recorded.train, recorded.holdout
    return {
        "train": max(0, train.spent + train.held - train_spent),
        "holdout": max(0, holdout.spent + holdout.held - holdout_spent),
    }


def gaps(db: Database, heads: Heads, storage_root: Path) -> list[Gap]:
    """Every data set whose ledger is behind. Notes them, and changes nothing else."""
    found = behind.survey(db, heads, storage_root)
    result = []
    for dataset_id, problem in sorted(found.items()):
        with db.read() as session:
            dataset, account = session.get(Dataset, dataset_id), session.get(Account, dataset_id)
            unfinished = len(_unfinished(session, dataset_id))
        spent = (
            {"train": account.train_spent, "holdout": account.holdout_spent} if account else {"train": 0, "holdout": 0}
        )
        result.append(
            Gap(
                dataset_id,
                problem,
                dataset.name if dataset else None,
                account.entries if account else 0,
                _readable(heads, dataset_id),
                spent,
                unfinished,
                closed=account is not None and account.joined_into is not None,
            )
        )
    return result


def post(db: Database, heads: Heads, storage_root: Path, dataset: str, reason: str) -> dict[str, int]:
    """Posts what is missing of one data set as spent, and opens it again.

    The noise key's epoch is the caller's to rotate, first.

    Args:
        dataset: its id or name.
        reason: for the ledger's entry.

    Returns:
        What was posted, by account.

    Raises:
        NotFound: the database does not know the data set: only a newer backup helps.
        InvalidRequest: nothing is missing; or what was recorded cannot be read, so that nobody knows how much is.
    """
    found = {gap.dataset_id: gap for gap in gaps(db, heads, storage_root)}
    gap = next((each for each in found.values() if dataset in (each.dataset_id, each.name)), None)
    if gap is None:
        raise InvalidRequest(f"nothing is missing of {dataset}")
    if gap.name is None:
        raise NotFound(f"the database does not know {dataset}: restore a newer backup")
    if gap.recorded is None:
        raise InvalidRequest(
            f"nobody knows what {dataset} had spent ({gap.problem}): restore a newer backup, or lower its cap to what "
            "is spent"
        )
    with db.write() as session:
        _end_jobs(session, gap.dataset_id)
        posted = _post(session, gap.recorded, reason)
        row = session.get(LedgerCheck, gap.dataset_id)
        if row is not None:
            row.behind = row.noticed_at = row.problem = None
        audit.record(session, "dataset.restored", gap.dataset_id)
        session.flush()
        account = accounts.account_of(session, gap.dataset_id)
        # Before the commit: a head that was recorded and not committed closes the data set, which is the safe side.
        heads.replace(Head.of(account, gap.recorded.owner, gap.recorded.contents))
    for job, whose in list(behind.strangers(db, storage_root)):
        if whose == gap.dataset_id:
            _set_aside(storage_root, job)
    return posted


def _post(session: Session, recorded: Head, reason: str) -> dict[str, int]:
    account = accounts.account_of(session, recorded.dataset)
    if account.joined_into is not None:
        return {"train": 0, "holdout": 0}
    if recorded.cap_epsilon > account.cap_epsilon:  # a raise was forgotten too
        accounts.change_cap(
            session, dataset_id=recorded.dataset, cap_epsilon=recorded.cap_epsilon, actor=ACTOR, reason=reason
        )
    lacks = missing(recorded, account.train_spent, account.holdout_spent)
    if any(lacks.values()):
        job_id = f"{PREFIX}{recorded.seq}_{recorded.head[:16]}"
        memo = {"reason": reason, "recorded": {"seq": recorded.seq, "head": recorded.head}}
        accounts.hold(session, dataset_id=recorded.dataset, job_id=job_id, **lacks, actor=ACTOR, memo=memo)
        accounts.post(session, dataset_id=recorded.dataset, job_id=job_id, **lacks, actor=ACTOR, memo=memo)
    if recorded.joined_into is not None:
        # The other ledger was recorded first: what it was charged is there, or is missing of it.
        joining.close(session, account, recorded.joined_into, ACTOR, reason)
    return lacks


def _end_jobs(session: Session, dataset_id: str) -> None:
    """Ends what the database believes unfinished: what was started is posted, by what the database knows of it."""
    for job_id in _unfinished(session, dataset_id):
        job = get_job(session, job_id, lock=True)
        if job.study is not None:
            for run in session.scalars(select(Job).where(Job.parent_id == job_id, Job.status.in_(ACTIVE))).all():
                give_back(session, run, "lost", 1)
            session.flush()
            studies.cancel(session, job)
            continue
        if job.status in ACTIVE:
            give_back(session, job, "lost", 1)
            session.flush()
        if job.status not in FINISHED:
            settle(session, job, "cancelled")


def _unfinished(session: Session, dataset_id: str) -> list[str]:
    query = select(Job.id).where(Job.dataset_id == dataset_id, Job.parent_id.is_(None), Job.status.not_in(FINISHED))
    return list(session.scalars(query.order_by(Job.created_at, Job.id)))


def _set_aside(storage_root: Path, job_id: str) -> None:
    """What a forgotten job left is kept, where no survey finds it again."""
    folder = storage_root / FORGOTTEN
    folder.mkdir(mode=0o700, exist_ok=True)
    (storage_root / "jobs" / job_id).rename(folder / job_id)


def _readable(heads: Heads, dataset_id: str) -> Head | None:
    try:
        return heads.read(dataset_id)
    except UnreadableHeadError:
        return None
