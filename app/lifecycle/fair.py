"""Chooses the queued job for a free worker: data owners take turns, and so do the keys on each owner's data.

    1. the owner with the fewest running jobs; if several, the one with the oldest turn
    2. of its keys the one with the fewest running jobs; if several, the one with the oldest turn
    3. of that key's jobs the oldest

A message only says that there is work. A worker skips jobs that it may not take, so they delay no others: jobs for
another device, jobs that ask for more processes than it has, jobs that wait after a crash, jobs of a key at its limit
of running jobs, and jobs on a data set whose ledger is behind its record. The order depends only on public facts: who
asked, and when.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, exists, false, func, or_, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from app.db.engine import Database
from app.db.models import ApiKey, ClaimTurn, Dataset, Job, LedgerEntry, table_of
from app.ledger.behind import ALL, reach
from app.ledger.blocks import held_on
from app.ledger.heads import Heads
from app.lifecycle.claims import Claim, claim
from app.lifecycle.states import ACTIVE, DEVICE, IS_DUE, PROCESSES

Pair = tuple[str, str]  # owner of the data, key of the job


@dataclass(frozen=True)
class Candidate:
    """The oldest queued job of a key on an owner's data."""

    owner: str
    key: str
    dataset_id: str
    job_id: str
    created_at: datetime


def fairest(waiting: Iterable[Candidate], running: Mapping[Pair, int], turns: Mapping[Pair, int]) -> Candidate | None:
    """Returns the candidate whose turn it is; None without candidates.

    Args:
        waiting: one candidate for each pair with jobs that may be taken.
        running: how many jobs of each pair run now.
        turns: the number of each pair's last claim; a pair without one goes first.
    """
    of_owner, last = Counter[str](), Counter[str]()
    for (owner, _key), count in running.items():
        of_owner[owner] += count
    for (owner, _key), turn in turns.items():
        last[owner] = max(last[owner], turn)

    def order(each: Candidate) -> tuple[int, int, int, int, datetime, str]:
        pair = (each.owner, each.key)
        mine = (running.get(pair, 0), turns.get(pair, 0))
        return (of_owner[each.owner], last[each.owner], *mine, each.created_at, each.job_id)

    return min(waiting, key=order, default=None)


def claim_next(
    db: Database, heads: Heads, worker: str, lease_s: float, devices: Collection[str], processes: int = 1
) -> Claim | None:
    """Takes the job whose turn it is; None if no job waits that this worker may take.

    Args:
        heads: the recorded heads; jobs on a data set whose ledger is behind them are skipped, as they may have run.
        devices: this worker's kinds of devices; a job that names none runs on any. A job that became ready on one kind
            stays on it: its replay is the same only there.
        processes: how many ranks this worker can run at once. A job that asks for more waits for a worker with so many,
            and delays no other job meanwhile. Once it has become ready, any worker may go on with fewer.
    """
    passed: set[str] = set()
    current: dict[str, int] = {}  # how many entries of each data set's ledger are reliable, as checked for this claim
    while True:
        # One transaction per try: it frees its locked rows before the next try locks others.
        with db.write() as session:
            behind = [dataset_id for dataset_id, may in current.items() if not may]
            found = next_job(session, devices, processes, passed, behind)
            if found is None:
                return None
            job = session.get_one(Job, found.job_id)
            reads = held_on(session, job.parent_id or job.id) or [found.dataset_id]
            if all(each in current for each in reads):
                reached = all(_hold_within(session, job, each, current[each]) for each in reads)
                held = claim(session, found.job_id, worker, lease_s) if reached else None
                if held is not None:
                    note_turn(session, found)
                    return held
                # Taken by another worker, its key is at its limit, its hold is too new, or a block of it is behind.
                passed.add(found.job_id)
        for each in reads:
            if each not in current:  # outside the transaction: the record is read before the ledger
                current[each] = reach(db, heads, each)


def _hold_within(session: Session, job: Job, dataset_id: str, entries: int) -> bool:
    """True if the job's hold, or its study's, is among the first entries of a ledger; never if it is behind."""
    if entries == ALL:
        return True
    once = f"hold:{job.parent_id or job.id}"
    held = select(LedgerEntry.seq).where(LedgerEntry.dataset_id == dataset_id, LedgerEntry.once == once)
    seq = session.scalar(held)
    return seq is not None and seq <= entries


def next_job(
    session: Session,
    devices: Collection[str],
    processes: int = 1,
    passed: Collection[str] = (),
    behind: Collection[str] = (),
) -> Candidate | None:
    """Returns the job whose turn it is now.

    Args:
        processes: see claim_next.
        passed: jobs to skip.
        behind: data sets whose jobs to skip.
    """
    running = {
        (owner, key): count
        for owner, key, count in session.execute(
            select(Dataset.owner_key, Job.key_id, func.count())
            .join(Dataset, Dataset.id == Job.dataset_id)
            .where(Job.status.in_(ACTIVE), Job.study.is_(None))
            .group_by(Dataset.owner_key, Job.key_id)
        )
    }
    full = _full(session, running)
    waiting = [each for each in _waiting(session, devices, processes, passed, behind) if each.key not in full]
    if len(waiting) < 2:
        return waiting[0] if waiting else None
    last = select(ClaimTurn).where(ClaimTurn.owner_key.in_({each.owner for each in waiting}))
    turns = {(each.owner_key, each.key_id): each.turn for each in session.scalars(last)}
    return fairest(waiting, running, turns)


def _waiting(
    session: Session,
    devices: Collection[str],
    processes: int,
    passed: Collection[str],
    behind: Collection[str],
) -> list[Candidate]:
    """Returns the oldest job that may be taken, for each pair."""
    pair, age = (Dataset.owner_key, Job.key_id), (Job.created_at, Job.id)
    place = func.row_number().over(partition_by=pair, order_by=age).label("place")
    queued = (
        select(Dataset.owner_key, Job.key_id, Job.dataset_id, Job.id, Job.created_at, place)
        .join(Dataset, Dataset.id == Job.dataset_id)
        .where(Job.status == "queued", Job.study.is_(None), IS_DUE)
        .where(DEVICE.in_(["auto", *devices]))
        .where(or_(PROCESSES.in_(["auto", *map(str, range(1, processes + 1))]), Job.device.is_not(None)))
        .where(Job.id.not_in(passed), _pays_on(behind).is_(False))
        .subquery()
    )
    columns = (queued.c.owner_key, queued.c.key_id, queued.c.dataset_id, queued.c.id, queued.c.created_at)
    return [Candidate(*row) for row in session.execute(select(*columns).where(queued.c.place == 1))]


def _pays_on(behind: Collection[str]) -> ColumnElement[bool]:
    """The condition that a job, or its study, holds on one of these data sets: others of the same data set go on."""
    if not behind:
        return false()
    once = "hold:" + func.coalesce(Job.parent_id, Job.id)
    return exists().where(LedgerEntry.dataset_id.in_(behind), LedgerEntry.once == once)


def _full(session: Session, running: Mapping[Pair, int]) -> set[str]:
    """Returns the keys at their limit of running jobs. A claim counts again, under a lock."""
    counts = Counter[str]()
    for (_owner, key), count in running.items():
        counts[key] += count
    limits = select(ApiKey.id, ApiKey.max_running_jobs).where(ApiKey.id.in_(counts))
    return {key for key, limit in session.execute(limits) if limit is not None and counts[key] >= limit}


def note_turn(session: Session, taken: Candidate) -> None:
    """Records this pair's turn, so that others go first. Two concurrent claims may get the same number: then the jobs'
    age decides."""
    number = (session.scalar(select(func.max(ClaimTurn.turn))) or 0) + 1
    dialect = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    row = {"owner_key": taken.owner, "key_id": taken.key, "turn": number}
    again = {"index_elements": ["owner_key", "key_id"], "set_": {"turn": number}}
    session.execute(dialect.insert(table_of(ClaimTurn)).values(row).on_conflict_do_update(**again))
