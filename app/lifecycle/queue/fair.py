"""Chooses the queued job for a free worker: data owners take turns, and so do the keys on each owner's data.

    1. the owner with the fewest running jobs for its weight; if several, the one whose turn it is
    2. of its keys the one with the fewest running jobs for its weight; if several, the one whose turn it is
    3. of that key's jobs the one of the highest priority; if several, the oldest

Weights of keys decide how often each has a turn (app.lifecycle.queue.turns). A job's priority counts among its own
key's jobs alone.

A message only says that there is work. A worker skips jobs that it may not take, so they delay no others: jobs for
another device, jobs that ask for more processes than it ever has room for, jobs that wait after a crash, jobs of a key
at its limit of running jobs, jobs that wait for the release that began them, and jobs on a data set whose ledger is
behind its record. A job that a cluster has no room for now keeps its turn: see app.lifecycle.queue.room. The order
depends only on public facts: who asked, and when, and how many whole seconds a job has run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import (
    CTE,
    ColumnElement,
    Integer,
    Row,
    Select,
    and_,
    case,
    cast,
    exists,
    false,
    func,
    or_,
    select,
    true,
)
from sqlalchemy.orm import Session, aliased

from app.db.clock import now_there
from app.db.database import Database
from app.db.json_parts import Priority
from app.db.models import ApiKey, Dataset, Job, LedgerEntry, Worker
from app.ledger.behind import ALL, reach
from app.ledger.block_accounts import held_on
from app.ledger.transparency.heads import Heads
from app.lifecycle.claims import Claim, claim
from app.lifecycle.queue.room import Grants, Need, OwnDevice, Room
from app.lifecycle.queue.turns import Pair, Turn, Turns, note_turn, rounds, turns_of
from app.lifecycle.states import ACTIVE, DEVICE, IN_ORDER, IS_DUE, PROCESSES, due_for, in_queue
from core.contracts.runtime import StoredRuntime

PATIENCE = 20  # leases that a job waits at least for the release that began it


def _lines() -> CTE:
    """The keys with queued jobs, and on which data sets: a look-up of the queue's index for each line."""
    job, later = aliased(Job), aliased(Job)
    queued = in_queue(later)
    line = (later.key_id, later.dataset_id)

    def first(*conditions: ColumnElement[bool]) -> Select[str]:
        return select(later.id).where(*queued, *conditions).order_by(*line).limit(1)

    begins = select(job.key_id, job.dataset_id).where(job.id == first().scalar_subquery())
    lines = begins.cte("lines", recursive=True)
    # SQLite would pass over a whole line to compare both columns at once.
    same = first(later.key_id == lines.c.key_id, later.dataset_id > lines.c.dataset_id)
    other = first(later.key_id > lines.c.key_id)
    following = func.coalesce(*(each.correlate(lines).scalar_subquery() for each in (same, other)))
    return lines.union_all(select(job.key_id, job.dataset_id).select_from(lines).join(job, job.id == following))


# Built once: an alias has a column for each of a job's.
LINES, FIRST = _lines(), aliased(Job)
NEEDED = select(Job.id, Job.parent_id, Job.device, Job.threads, Job.spec)
FOUND = (Dataset.owner_key, FIRST.key_id, FIRST.dataset_id, FIRST.id, FIRST.created_at, Priority(FIRST.spec))
# The ledgers that the job of a process's last claim was held on.
_LAST: WeakKeyDictionary[Database, tuple[str, ...]] = WeakKeyDictionary()


OWN_DEVICE = OwnDevice()


@dataclass(frozen=True)
class Candidate:
    """The first queued job of a key on an owner's data."""

    owner: str
    key: str
    dataset_id: str
    job_id: str
    created_at: datetime

    @property
    def pair(self) -> Pair:
        """Who waits with it."""
        return (self.owner, self.key)


@dataclass(frozen=True)
class Chosen:
    """The job whose turn it is, and the turn that its claim takes."""

    job: Candidate
    turn: Turn


def fairest(
    waiting: Collection[Candidate], running: Mapping[Pair, int], turns: Turns, weights: Mapping[str, int]
) -> Chosen | None:
    """Returns the candidate whose turn it is; None without candidates.

    Args:
        waiting: one candidate for each pair with jobs that may be taken.
        running: how many jobs of each pair run now.
        turns: the last claims; a pair without one goes before those that start with it.
        weights: of the keys and owners that wait.
    """
    of_owner = Counter[str]()
    for (owner, _key), count in running.items():
        of_owner[owner] += count
    least_owner = min((weights[each.owner] for each in waiting), default=1)
    least_key: dict[str, int] = {}
    for candidate in waiting:
        least_key[candidate.owner] = min(least_key.get(candidate.owner, weights[candidate.key]), weights[candidate.key])

    def order(candidate: Candidate) -> tuple[int | datetime | str, ...]:
        start, (owner_number, number) = turns.next(candidate.pair, weights), turns.oldest(candidate.pair)
        owner_rounds = rounds(of_owner[candidate.owner], weights[candidate.owner], least_owner)
        key_rounds = rounds(running.get(candidate.pair, 0), weights[candidate.key], least_key[candidate.owner])
        of_keys = (key_rounds, start.key_start, number)
        return (owner_rounds, start.owner_start, owner_number, *of_keys, candidate.created_at, candidate.job_id)

    first = min(waiting, key=order, default=None)
    return None if first is None else Chosen(first, turns.next(first.pair, weights))


def claim_next(
    db: Database,
    heads: Heads,
    worker: str,
    lease_s: float,
    devices: Collection[str],
    room: Room | None = None,
    grants: Grants = OWN_DEVICE,
) -> Claim | None:
    """Takes the job whose turn it is; None if no job waits that this worker may take.

    Args:
        worker: its name; its release is that of its row in the list of workers.
        heads: the recorded heads; jobs on a data set whose ledger is behind them are skipped, as they may have run.
        devices: this worker's kinds of devices; a job that names none runs on any. A job that became ready on one kind
            stays on it: its replay is the same only there.
        room: the most that it can ever run; None: one rank on each of its devices. A job that asks for more waits for a
            worker with so much, and delays no other job meanwhile.
        grants: who gives it room now. Without room for the job whose turn it is, it takes none of the same kind.
    """
    passed: set[str] = set()
    full: set[str] = set()  # the kinds of device for which there is no room now
    room = room or Room(1, int("cuda" in devices))
    # How many entries of each data set's ledger are reliable, as checked for this claim. The next job is most often on
    # the ledgers of the last one: if it is not, it is chosen once more.
    current = {each: reach(db, heads, each) for each in _LAST.pop(db, ())}
    while True:
        # One transaction per try: it frees its locked rows before the next try locks others.
        need: Need | None = None
        with db.write() as session:
            behind = [dataset_id for dataset_id, entries in current.items() if not entries]
            may = and_(may_run(devices, room, full), _of_release(session, worker, lease_s))
            line_head = next_job(session, may, passed, behind)
            if line_head is None:
                return None
            candidate = line_head.job
            job = session.execute(NEEDED.where(Job.id == candidate.job_id)).one()
            reads = held_on(session, job.parent_id or job.id) or [candidate.dataset_id]
            if all(each in current for each in reads):
                if all(_hold_within(session, job, each, current[each]) for each in reads):
                    need = _need(room, job, full)
                ranks = 0 if need is None else grants.granted(need)
                claimed = claim(session, candidate.job_id, worker, lease_s, ranks) if ranks else None
                if claimed is not None:
                    note_turn(session, candidate.pair, line_head.turn)
                    _LAST[db] = tuple(reads)
                    return claimed
                if need is None or ranks:
                    # Taken by another worker, its key is at its limit, its hold is too new, or a block of it is behind.
                    passed.add(candidate.job_id)
                    continue
        if need is not None and not grants.ask(need):
            full.add(need.kind)
        for dataset_id in reads:
            if dataset_id not in current:  # outside the transaction: the record is read before the ledger
                current[dataset_id] = reach(db, heads, dataset_id)


def _of_release(session: Session, worker: str, lease_s: float) -> ColumnElement[bool]:
    """The condition that a job waits for no worker of another release, or with another card.

    A job goes on from its checkpoint, and to the same bits, where the release that began it runs (decision 38). So it
    waits for a living worker of that release with its kind of device: `PATIENCE` leases, or as long as it has run
    (whole seconds), as that is the time that another release needs to repeat its steps. Such a worker may be busy or
    stuck, so no job waits longer. A GPU, its driver and cuDNN round as others do not: a job that ran on one waits for
    a worker with the same, too.
    """
    mine = select(Worker.release, Worker.finishes, Worker.card).where(Worker.name == worker)
    row = session.execute(mine).one_or_none()
    if row is None or row.release is None:
        return true()
    of_release = Job.release == str(row.release)
    began = and_(of_release, or_(Job.card.is_(None), Job.card == row.card))
    seen = Worker.seen_at > now_there(session) - timedelta(seconds=lease_s)
    has_device = or_(DEVICE != "cuda", Worker.devices[0]["kind"].as_string() == "cuda")
    same_card = or_(Job.card.is_(None), Worker.card == Job.card)
    able = exists().where(Worker.release == Job.release, seen, has_device, same_card)
    least_s, ran_s = PATIENCE * lease_s, cast(Job.ran_s, Integer)
    may = or_(Job.release.is_(None), began, ~able, due_for(case((ran_s > least_s, ran_s), else_=least_s)))
    return and_(of_release, may) if row.finishes else may


def _hold_within(session: Session, job: Row[Any], dataset_id: str, entries: int) -> bool:
    """True if the job's hold, or its study's, is among the first entries of a ledger; never if it is behind."""
    if entries == ALL:
        return True
    key = f"hold:{job.parent_id or job.id}"
    hold = select(LedgerEntry.seq).where(LedgerEntry.dataset_id == dataset_id, LedgerEntry.once == key)
    seq = session.scalar(hold)
    return seq is not None and seq <= entries


def may_run(devices: Collection[str], room: Room, full: Collection[str] = ()) -> ColumnElement[bool]:
    """The condition that a worker may run a job.

    Args:
        devices, room: see claim_next.
        full: the kinds of device for which it has no room now. A job that takes a GPU where there is one waits for it.
    """

    def up_to(limit: int) -> ColumnElement[bool]:
        return PROCESSES.in_(["auto", *map(str, range(1, limit + 1))]) | Job.device.is_not(None)

    on_gpus = and_(DEVICE.in_(["auto", "cuda"]), up_to(room.gpus)) if room.gpus and "cuda" not in full else false()
    of_processors = DEVICE == "cpu" if "cuda" in full else DEVICE != "cuda"
    on_processors = false() if "cpu" in full else and_(of_processors, up_to(room.ranks))
    return and_(DEVICE.in_(["auto", *devices]), or_(on_gpus, on_processors))


def size_that_waits(db: Database, free: int, limit: int) -> int | None:
    """How many ranks on processors the oldest job asks for that waits for more than are free, and for no more than
    `limit`."""
    sizes = [str(ranks) for ranks in range(free + 1, limit + 1)]
    if not sizes:
        return None
    waits = (Job.status == "queued", Job.study.is_(None), Job.device.is_(None), DEVICE != "cuda", IS_DUE)
    query = select(PROCESSES).where(*waits, PROCESSES.in_(sizes)).order_by(Job.created_at).limit(1)
    with db.read() as session:
        size = session.scalar(query)
    return None if size is None else int(size)


def _need(room: Room, job: Row[Any], full: Collection[str]) -> Need | None:
    """What the job needs there, or None if it cannot be claimed now: `may_run` cannot tell that a sharded job takes no
    GPUs."""
    need = room.need(StoredRuntime.of(job.spec).runtime, job.device, job.threads)
    return None if need is None or need.kind in full else need


def next_job(
    session: Session, may: ColumnElement[bool], passed: Collection[str] = (), behind: Collection[str] = ()
) -> Chosen | None:
    """Returns the job whose turn it is now.

    Args:
        may: the worker may run it (see may_run).
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
    waiting = _waiting(session, may, passed, behind)
    if not waiting:
        return None
    limits, weights = limits_and_weights(session, {name for each in waiting for name in each.pair})
    of_key = Counter[str]()
    for (_owner, key), count in running.items():
        of_key[key] += count
    # A claim counts a key's running jobs again, under a lock.
    free = [each for each in waiting if (limit := limits[each.key]) is None or of_key[each.key] < limit]
    return fairest(free, running, turns_of(session, {each.owner for each in free}), weights)


def _waiting(
    session: Session, may: ColumnElement[bool], passed: Collection[str], behind: Collection[str]
) -> list[Candidate]:
    """Returns the first job that may be taken, for each pair.

    The queue's index has the jobs of each key on each data set in their order, so that a claim reads the first ones,
    and those before them that this worker may not take, however many wait behind.
    """
    # PostgreSQL takes plain conditions for rarely true, and would sort a whole line. Of a CASE it knows nothing.
    able = case((and_(IS_DUE, may, Job.id.not_in(passed), _pays_on(behind).is_(False)), true()), else_=false())
    first = (
        select(Job.id)
        .where(Job.key_id == LINES.c.key_id, Job.dataset_id == LINES.c.dataset_id, *in_queue(Job), able)
        .order_by(*IN_ORDER)
        .limit(1)
        .correlate(LINES)
        .scalar_subquery()
    )
    firsts = select(first.label("id")).select_from(LINES).cte("firsts")
    rows = session.execute(
        select(*FOUND)
        .select_from(firsts)
        .join(FIRST, FIRST.id == firsts.c.id)
        .join(Dataset, Dataset.id == FIRST.dataset_id)
    )
    best: dict[Pair, tuple[int, datetime, str, Candidate]] = {}
    for owner, key, dataset_id, job_id, created_at, priority in rows:
        candidate = Candidate(owner, key, dataset_id, job_id, created_at)
        place = (-priority, candidate.created_at, candidate.job_id, candidate)
        best[candidate.pair] = min(place, best.get(candidate.pair, place), key=lambda entry: entry[:3])
    return [each[3] for each in best.values()]


def _pays_on(behind: Collection[str]) -> ColumnElement[bool]:
    """The condition that a job, or its study, holds on one of these data sets: others of the same data set go on."""
    if not behind:
        return false()
    key = "hold:" + func.coalesce(Job.parent_id, Job.id)
    return exists().where(LedgerEntry.dataset_id.in_(behind), LedgerEntry.once == key)


def limits_and_weights(session: Session, keys: Collection[str]) -> tuple[dict[str, int | None], dict[str, int]]:
    """Returns the limits of running jobs and the weights of keys."""
    rows = session.execute(select(ApiKey.id, ApiKey.max_running_jobs, ApiKey.weight).where(ApiKey.id.in_(keys))).all()
    return {row[0]: row[1] for row in rows}, {row[0]: row[2] for row in rows}
