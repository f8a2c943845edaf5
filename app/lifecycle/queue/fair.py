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
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from app.db.database import Database
from app.db.models import ApiKey, Dataset, Job, LedgerEntry
from app.db.trip import Trip, round_trip
from app.ledger.behind import ALL, reach
from app.ledger.block_accounts import ask_held
from app.ledger.transparency.heads import Heads
from app.lifecycle import claims
from app.lifecycle.queue import fronts
from app.lifecycle.queue.fronts import ROOM_FOR_ONE, Able, Candidate, Fronts
from app.lifecycle.queue.room import Grants, Need, OwnDevice, Room
from app.lifecycle.queue.turns import Pair, Turn, Turns, note_turn, rounds, wait_in_line
from app.lifecycle.states import IS_DUE, in_queue, in_work, lanes
from core.contracts.runtime import StoredRuntime

# By data set first: an index has both columns.
_COUNTS = (
    select(Job.dataset_id, Job.key_id, func.count().label("count"))
    .where(*in_work(Job))
    .group_by(Job.dataset_id, Job.key_id)
    .subquery()
)
RUNNING: Select[Any] = select(
    Dataset.owner_key.label("owner"), _COUNTS.c.key_id.label("key"), _COUNTS.c["count"].label("count")
).join(Dataset, Dataset.id == _COUNTS.c.dataset_id)
# The ledgers that the job of a process's last claim was held on.
_LAST: WeakKeyDictionary[Database, tuple[str, ...]] = WeakKeyDictionary()


OWN_DEVICE = OwnDevice()


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
    room: Room = ROOM_FOR_ONE,
    grants: Grants = OWN_DEVICE,
) -> claims.Claim | None:
    """Takes the job whose turn it is; None if no job waits that this worker may take.

    Args:
        worker: its name; its release is that of its row in the list of workers.
        heads: the recorded heads; jobs on a data set whose ledger is behind them are skipped, as they may have run.
        room: the most that it can ever run on each kind of device. A job that asks for more waits for a worker with so
            much, and delays no other job meanwhile.
        grants: who gives it room now. Without room for the job whose turn it is, it takes none of the same kind.
    """
    passed: set[str] = set()
    full: set[str] = set()  # the kinds of device for which there is no room now
    # How many entries of each data set's ledger are reliable, as checked for this claim. The next job is most often on
    # the ledgers of the last one: if it is not, it is chosen once more.
    current = {each: reach(db, heads, each) for each in _LAST.pop(db, ())}
    while True:
        # One transaction per try: it frees its place in line and its locked rows before the next try.
        need: Need | None = None
        with db.write(in_trips=True) as session:
            behind = [dataset_id for dataset_id, entries in current.items() if not entries]
            able = Able(room, frozenset(full))
            connection = session.connection()
            with round_trip(connection) as trip:
                wait_in_line(trip)
                first_in_turn = next_job(trip, worker, lease_s, able, passed, behind)
            line_head = first_in_turn()
            if line_head is None:
                return None
            candidate = line_head.job
            with round_trip(connection) as trip:
                queued, holds = claims.Queued(trip, candidate.job_id), ask_held(trip, candidate.holder)
            reads = [each.dataset_id for each in holds.rows()] or [candidate.dataset_id]
            job = queued.job
            if job is not None and all(each in current for each in reads):
                if queued.has_place and all(_hold_within(session, job, each, current[each]) for each in reads):
                    need = room.need(StoredRuntime.of(job.spec).runtime, job.device, job.threads)
                ranks = 0 if need is None else grants.granted(need)
                if ranks:
                    with round_trip(connection) as trip:
                        note_turn(trip, candidate.pair, line_head.turn)
                        claimed = claims.take(trip, job, worker, lease_s, ranks)
                        trip.commit()
                    _LAST[db] = tuple(reads)
                    return claimed
            if job is None or (need is None and all(each in current for each in reads)):
                # Cancelled meanwhile, its key is at its limit, its hold is too new, or a block of it is behind.
                passed.add(candidate.job_id)
        if need is not None and not grants.ask(need):
            full.add(need.kind)
        for dataset_id in reads:
            if dataset_id not in current:  # outside the transaction: the record is read before the ledger
                current[dataset_id] = reach(db, heads, dataset_id)


def _hold_within(session: Session, job: SimpleNamespace, dataset_id: str, entries: int) -> bool:
    """True if the job's hold, or its study's, is among the first entries of a ledger; never if it is behind."""
    if entries == ALL:
        return True
    key = f"hold:{job.parent_id or job.id}"
    hold = select(LedgerEntry.seq).where(LedgerEntry.dataset_id == dataset_id, LedgerEntry.once == key)
    seq = session.scalar(hold)
    return seq is not None and seq <= entries


def size_that_waits(db: Database, free: int, limit: int) -> int | None:
    """How many ranks on processors the oldest job asks for that waits for more than are free, and for no more than
    `limit`."""
    larger = lanes("cpu", limit)[free:]
    if not larger:
        return None
    query = select(Job.lane).where(*in_queue(Job), IS_DUE, Job.lane.in_(larger)).order_by(Job.created_at).limit(1)
    with db.read() as session:
        lane = session.scalar(query)
    return None if lane is None else free + 1 + larger.index(lane)


def next_job(
    trip: Trip, worker: str, lease_s: float, able: Able, passed: Collection[str] = (), behind: Collection[str] = ()
) -> Callable[[], Chosen | None]:
    """Asks for the job whose turn it is now; the answer is there after the trip.

    Args:
        worker, lease_s, able, passed, behind: see fronts.ask.
    """
    asked_running, asked_fronts = trip.send(RUNNING, {}), fronts.ask(trip, worker, lease_s, able, passed, behind)

    def chosen() -> Chosen | None:
        lines = Fronts.of(asked_fronts.rows())
        running, of_key = Counter[Pair](), Counter[str]()
        for row in asked_running.rows():
            running[row.owner, row.key] += row.count
            of_key[row.key] += row.count
        # A claim counts a key's running jobs again, under a lock.
        free = [each for each in lines.waiting if (limit := lines.limits[each.key]) is None or of_key[each.key] < limit]
        return fairest(free, running, lines.turns, lines.weights)

    return chosen


def limits_and_weights(session: Session, keys: Collection[str]) -> tuple[dict[str, int | None], dict[str, int]]:
    """Returns the limits of running jobs and the weights of keys."""
    rows = session.execute(select(ApiKey.id, ApiKey.max_running_jobs, ApiKey.weight).where(ApiKey.id.in_(keys))).all()
    return {row[0]: row[1] for row in rows}, {row[0]: row[2] for row in rows}
