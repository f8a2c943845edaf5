"""After a backup was restored: posts the lost part of a data set's ledger as spent.

The lost entries are unknown, but their sum is known: the recorded head has the balances. Everything spent or held then
counts as spent, since a job with a hold may have run. Jobs that the database believes unfinished are ended first: they
may have ended already, and running them again would spend again.

    gap = recorded spent + held  −  spent now          (for each account; at least 0)

What left an unfinished job is in its mark (app.lifecycle.marks): its end is charged for the larger of that and of what
the database knows, also where no entry is lost. If its mark is damaged, what left it is unknown, and its whole hold is
spent; other data sets go on meanwhile.

If the database has lost that the ledger was joined to another one, the ledger is closed again. If the database still
has this, nothing is posted: the other ledger was charged for all that this one held. If it has lost a move to another
filter (app.ledger.second), and with it that ledger, the move is made again, under the same id; what more was spent
there is a gap of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from app.audit import record as audit
from app.db.database import Database
from app.db.models import Account, Charge, Dataset, LedgerCheck, LedgerEntry
from app.ledger import accounts, behind, block_accounts, joining, memos, second
from app.ledger.transparency.heads import Head, Heads, UnreadableHeadError
from app.lifecycle.mark_survey import compare, survey
from app.lifecycle.marks import Mark, Marks, unfinished
from app.lifecycle.restored_jobs import end_jobs, on_ledger, unfinished_jobs
from app.lifecycle.states import get_job
from app.storage.objects import Objects
from core.errors import Conflict, InvalidRequest, NotFound
from core.ids import now
from core.privacy.prices import NO_UNITS, Units

ACTOR = "restore"
PREFIX = "restore_"  # of the job ids in these entries, which name no job of this database
FORGOTTEN = "forgotten"


@dataclass(frozen=True)
class Gap:
    """The lost part of one data set's ledger.

    Attributes:
        problem: how the gap was noticed.
        name: None if the database does not know the data set.
        entries: the entries in the database; 0 if it does not know the data set.
        recorded: the head outside; None if it cannot be read, or if only a job in the storage shows the gap.
        spent: the units spent now, by account.
        unfinished: how many of its jobs the database believes unfinished.
        closed: True if the database knows that this ledger was joined to another one. That ledger was charged for all
            that this one held.
    """

    dataset_id: str
    problem: str
    name: str | None
    entries: int
    recorded: Head | None
    spent: Units
    unfinished: int
    closed: bool = False

    @property
    def missing(self) -> Units | None:
        """The units to post as spent, by account, if no unfinished job has spent more; None if unknown."""
        if self.recorded is None:
            return None
        if self.closed:
            return NO_UNITS
        return missing(self.recorded, self.spent.train, self.spent.holdout)


def missing(recorded: Head, train_spent: int, holdout_spent: int) -> Units:
    """Computes the gap between a recorded head and the units spent now."""
    train, holdout = recorded.train, recorded.holdout
    return Units(
        train=max(0, train.spent + train.held - train_spent),
        holdout=max(0, holdout.spent + holdout.held - holdout_spent),
    )


def gaps(db: Database, heads: Heads, store: Objects) -> list[Gap]:
    """Finds every data set whose ledger is behind. Records the finding, and changes nothing else."""
    gaps_found = survey(db, heads, store, compare(db, Marks(heads.records)))
    result = []
    for dataset_id, problem in sorted(gaps_found.items()):
        with db.read() as session:
            dataset, account = session.get(Dataset, dataset_id), session.get(Account, dataset_id)
            unfinished = len(unfinished_jobs(session, dataset_id))
        spent = Units(train=account.train_spent, holdout=account.holdout_spent) if account else NO_UNITS
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


def post(db: Database, heads: Heads, store: Objects, dataset: str, reason: str) -> Units:
    """Posts the missing units of one data set as spent, and opens the data set again.

    The caller must rotate the noise key's epoch first.

    Args:
        dataset: the data set's id or name.
        reason: for the ledger's entry.

    Returns:
        The posted units, by account.

    Raises:
        NotFound: the database does not know the data set: only a newer backup helps.
        InvalidRequest: nothing is missing, or the record cannot be read, so the missing units are unknown.
    """
    by_id = {gap.dataset_id: gap for gap in gaps(db, heads, store)}
    gap = next((each for each in by_id.values() if dataset in (each.dataset_id, each.name)), None)
    outside = Marks(heads.records)
    if gap is None:
        _end_forgotten(db, outside, dataset)
        return NO_UNITS
    if gap.name is None:
        moved = (each for each in by_id.values() if each.recorded and each.recorded.joined_into == gap.dataset_id)
        first = next((f"post {each.name or each.dataset_id}, which moved to it, first" for each in moved), None)
        raise NotFound(f"the database does not know {dataset}: {first or 'restore a newer backup'}")
    if gap.recorded is None:
        raise InvalidRequest(
            f"it is unknown how much {dataset} had spent ({gap.problem}): restore a newer backup, or lower its cap to "
            "what is spent"
        )
    left, damaged = _marks_on(db, outside, gap.dataset_id)
    compared = compare(db, outside)
    with db.write() as session:
        end_jobs(session, gap.dataset_id, left, damaged)
        short = _post_short(session, gap.dataset_id, list(compared.short), reason)
        _post_charges(session, gap.dataset_id)
        posted = _post(session, gap.recorded, reason)
        row = session.get(LedgerCheck, gap.dataset_id)
        if row is not None:
            row.behind = row.noticed_at = row.problem = None
            row.requested_at = now()
        audit.record(session, "dataset.restored", gap.dataset_id)
        session.flush()
        account = accounts.account_of(session, gap.dataset_id)
        # Before the commit: a head that is recorded but not committed closes the data set, which is safe.
        heads.replace(Head.of(account, gap.recorded.owner, gap.recorded.contents))
    for job, dataset_id in list(behind.strangers(db, store)):
        if dataset_id == gap.dataset_id:
            store.set_aside(job, FORGOTTEN)
    for forgotten in compared.forgotten:
        if forgotten.dataset_id == gap.dataset_id and not forgotten.known:  # its hold is in what was posted
            outside.remove(forgotten.job_id)
    for job_id in (*damaged, *short):
        outside.set_aside(job_id)
    return posted


def _end_forgotten(db: Database, outside: Marks, dataset: str) -> None:
    """Ends the unfinished jobs of a data set whose ledger lacks nothing, but of which the database has forgotten what
    left one of them. Raises as `post`."""
    with db.read() as session:
        dataset_id = session.scalar(select(Dataset.id).where(or_(Dataset.id == dataset, Dataset.name == dataset)))
    if dataset_id is None or all(each.dataset_id != dataset_id for each in compare(db, outside).forgotten):
        raise InvalidRequest(f"nothing is missing in the ledger of {dataset}")
    left, damaged = _marks_on(db, outside, dataset_id)
    with db.write() as session:
        end_jobs(session, dataset_id, left, damaged)
        audit.record(session, "dataset.restored", dataset_id)


def _marks_on(db: Database, outside: Marks, dataset_id: str) -> tuple[dict[str, Mark], dict[str, str]]:
    """The marks of a data set's unfinished jobs and trials, and what is wrong with those that cannot be read."""
    with db.read() as session:
        jobs = [each for job_id in unfinished_jobs(session, dataset_id) for each in unfinished(session, job_id)]
    return outside.examine(jobs)


def _post(session: Session, recorded: Head, reason: str) -> Units:
    account = accounts.account_of(session, recorded.dataset)
    if account.joined_into is not None:
        return NO_UNITS
    if recorded.cap_epsilon > account.cap_epsilon:  # a raise of the cap was lost too
        accounts.change_cap(
            session, dataset_id=recorded.dataset, cap_epsilon=recorded.cap_epsilon, actor=ACTOR, reason=reason
        )
    lacks = missing(recorded, account.train_spent, account.holdout_spent)
    if lacks != NO_UNITS:
        job_id = f"{PREFIX}{recorded.seq}_{recorded.head[:16]}"
        entry = memos.Recorded(seq=recorded.seq, head=recorded.head)
        memo = memos.Restored(reason=reason, recorded=entry)
        joining.spend(session, recorded.dataset, job_id, (lacks.train, lacks.holdout), ACTOR, memo)
    if recorded.joined_into is not None:
        # The other ledger was recorded first: its charge is in the database, or in its own gap.
        row = session.get_one(Dataset, recorded.dataset)
        is_there = session.get(Dataset, recorded.joined_into) is not None  # it was joined to another data set's
        if account.whole_delta is not None and recorded.joined_into != accounts.RETIRED and not is_there:
            try:
                with session.begin_nested():  # with the move the database has lost that ledger's row
                    second.move(session, row, ACTOR, recorded.joined_into)
                return lacks
            except Conflict:  # with what is posted now it does not fit: it is closed, and no other one is open
                session.refresh(account)
        joining.close(session, account, recorded.joined_into, ACTOR, reason)
        # Without blocks it was the whole data set. A block's content stays known (app.datasets.duplicates), and so does
        # what was spent from.
        is_whole = block_accounts.family_of(session, row.parent_id or row.id) == [row.id]
        if recorded.joined_into == accounts.RETIRED and is_whole and not any(_taken(recorded)):
            row.retired_at = now()
    return lacks


def _taken(recorded: Head) -> tuple[int, int]:
    return recorded.train.spent + recorded.train.held, recorded.holdout.spent + recorded.holdout.held


def _post_short(session: Session, dataset_id: str, ended: Sequence[str], reason: str) -> list[str]:
    """Posts what the settlements of these jobs released, if they hold on this data set: they ended for less than their
    marks. Several trials have one hold, their study's. Returns those that do."""
    holders = {job_id: get_job(session, job_id).parent_id or job_id for job_id in ended}
    datasets = {holder: block_accounts.held_on(session, holder) for holder in sorted(set(holders.values()))}
    for holder, ids in datasets.items():
        for job_id in ids if dataset_id in ids else ():
            _post_released(session, job_id, holder, reason)
    return [job_id for job_id, holder in holders.items() if dataset_id in datasets[holder]]


def _post_released(session: Session, dataset_id: str, holder: str, reason: str) -> None:
    """Posts what a settlement released, less what restores before this one have posted of it, as far as the budgets
    go. So what a job and its trials are charged grows to the whole hold, and no further."""
    settled = accounts.find(session, dataset_id, f"settle:{holder}")
    if settled is None:
        return
    name = f"{PREFIX}{holder}"
    sums = (func.coalesce(func.sum(each), 0) for each in (LedgerEntry.train, LedgerEntry.holdout))
    mine = (LedgerEntry.dataset_id == dataset_id, LedgerEntry.kind == "post")
    query = select(func.count(), *sums).where(*mine, LedgerEntry.job_id.startswith(name, autoescape=True))
    times, train, holdout = map(int, session.execute(query).one())
    left = accounts.remaining_of(accounts.account_of(session, dataset_id))
    holdout_rest = (
        min(settled.train_released - train, left["train"]),
        min(settled.holdout_released - holdout, left["holdout"]),
    )
    if holdout_rest != (0, 0):
        memo = memos.Restored(reason=reason, recorded=memos.Recorded(seq=settled.seq, head=settled.hash))
        joining.spend(session, dataset_id, f"{name}_{times + 1}" if times else name, holdout_rest, ACTOR, memo)


def _post_charges(session: Session, dataset_id: str) -> None:
    """Posts other systems' charges that the database believes held: they may have been answered since the backup."""
    for charge in session.scalars(select(Charge).where(on_ledger(dataset_id, Charge), Charge.status == "held")).all():
        block_accounts.post_all(session, charge.id, train=charge.train, holdout=charge.holdout, actor=ACTOR)
        charge.status, charge.settled_at = "posted", now()
    session.flush()


def _readable(heads: Heads, dataset_id: str) -> Head | None:
    try:
        return heads.read(dataset_id)
    except UnreadableHeadError:
        return None
