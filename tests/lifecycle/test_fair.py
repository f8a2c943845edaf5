"""Owners and keys take turns at the workers, whatever the others have queued; what cannot run blocks nobody."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, update

from app.db import trip
from app.db.database import Database
from app.db.models import ApiKey, ClaimTurn, Job
from app.db.trip import Trip, round_trip
from app.ledger.behind import record
from app.ledger.transparency.heads import Heads
from app.lifecycle import claims
from app.lifecycle.attempts import AttemptLog
from app.lifecycle.queue import fronts
from app.lifecycle.queue.fair import Chosen, claim_next, fairest, size_that_waits
from app.lifecycle.queue.fronts import Able, Candidate
from app.lifecycle.queue.room import Room
from app.lifecycle.queue.turns import Pair, Turn, Turns
from app.lifecycle.settle import settle, settlement_of
from app.lifecycle.states import get_job
from tests.factories import add_dataset, add_key, numerics
from tests.lifecycle.conftest import Submit
from tests.lifecycle.conftest import claimed as claimed_again

BOTH = Room(1, 1)
NO_RECORDS = Heads(Path("there-is-no-such-folder"))
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
NUMBER, START = attrgetter("number"), attrgetter("owner_start")
Chooser = Callable[[Collection[Candidate], Mapping[Pair, int], Turns, Mapping[str, int]], Chosen | None]


class Model:
    """10,000 random arrivals at `workers` workers, in memory: who has what queued and running, and who was passed over.

    A greedy owner's greedy key sends nine jobs of ten; the workers are always behind.
    """

    def __init__(self, choose: Chooser, workers: int, seed: int) -> None:
        self.choose, self.workers, self.draw = choose, workers, random.Random(seed)
        self.queued: defaultdict[Pair, list[Candidate]] = defaultdict(list)
        self.running: list[Pair] = []
        self.turns: dict[Pair, Turn] = {}
        self.weights: defaultdict[str, int] = defaultdict(lambda: 1)
        # How many claims others had since this one began to wait or was served: by owner, and by key within an owner.
        self.owners: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.keys: defaultdict[Pair, Counter[Pair]] = defaultdict(Counter)
        self.worst_owner = self.worst_key = self.claims = 0
        self.unbalanced = 0

    def run(self, arrivals: int) -> Model:
        for number in range(arrivals):
            owner = "greedy" if self.draw.random() < 0.9 else f"owner{self.draw.randrange(3)}"
            key = "k0" if self.draw.random() < 0.9 else f"k{self.draw.randrange(1, 4)}"
            self.queued[owner, key].append(
                Candidate(owner, key, "ds", f"{number:06d}", BEGAN + timedelta(seconds=number))
            )
            while len(self.running) < self.workers and any(self.queued.values()):
                self.claim()
            if self.running and self.draw.random() < 0.8:
                self.running.pop(self.draw.randrange(len(self.running)))
        return self

    def claim(self) -> None:
        waiting = [jobs[0] for jobs in self.queued.values() if jobs]
        latest = [max((part(each) for each in self.turns.values()), default=0) for part in (NUMBER, START)]
        chosen = self.choose(waiting, Counter(self.running), Turns(self.turns, (latest[0], latest[1])), self.weights)
        assert chosen is not None
        taken, pair = chosen.job, chosen.job.pair
        running = Counter(owner for owner, _ in self.running)
        self.unbalanced += any(running[each.owner] < running[taken.owner] for each in waiting)
        self.queued[pair].pop(0)
        self.running.append(pair)
        self.turns[pair] = chosen.turn
        self.count(taken, waiting)

    def count(self, taken: Candidate, waiting: list[Candidate]) -> None:
        pair = taken.pair
        for owner in {each.owner for each in waiting} - {taken.owner}:
            self.owners[owner][taken.owner] += 1
            self.worst_owner = max(self.worst_owner, self.owners[owner][taken.owner])
        for other in {(each.owner, each.key) for each in waiting if each.owner == taken.owner} - {pair}:
            self.keys[other][pair] += 1
            self.worst_key = max(self.worst_key, self.keys[other][pair])
        self.owners[taken.owner].clear()
        self.keys[pair].clear()
        self.claims += 1


@pytest.mark.parametrize("seed", range(3))
def test_nobody_is_passed_over_twice_by_one_other(seed: int) -> None:
    """With one worker: an owner with something queued waits for one job of each other owner, and a key likewise."""
    model = Model(fairest, 1, seed).run(10_000)
    assert model.claims > 7000
    assert (model.worst_owner, model.worst_key) == (1, 1)


@pytest.mark.parametrize("workers", [2, 5])
def test_of_several_workers_nobody_has_more_while_another_waits_with_fewer(workers: int) -> None:
    assert Model(fairest, workers, 0).run(10_000).unbalanced == 0


def first_come(
    waiting: Collection[Candidate], _running: object, turns: Turns, weights: Mapping[str, int]
) -> Chosen | None:
    """What was there before."""
    found = min(waiting, key=lambda each: each.created_at, default=None)
    return None if found is None else Chosen(found, turns.next(found.pair, weights))


def test_a_planted_first_come_first_served_fails_all_of_that() -> None:
    one, two = Model(first_come, 1, 0).run(10_000), Model(first_come, 2, 0).run(10_000)
    assert one.worst_owner > 10 and one.worst_key > 10 and two.unbalanced > 10


def claimed(db: Database, count: int = 1) -> list[str]:
    """The next jobs; each has ended before the next one is claimed."""
    found = []
    for _ in range(count):
        held = claim_next(db, NO_RECORDS, "w", 30.0, BOTH)
        assert held is not None
        found.append(held.job_id)
        with db.write() as session:
            settle(session, settlement_of(session, get_job(session, held.job_id, lock=True), "cancelled"))
    return found


CHEAP = {"privacy": {"target_epsilon": 0.05}, "evaluation": None}


def test_claims_go_round_owners_and_their_keys(db: Database, submit: Submit) -> None:
    mine, yours = add_dataset(db), add_dataset(db)
    with db.write() as session:
        greedy, modest = add_key(session, "analyst"), add_key(session, "analyst")
    many = [submit(mine, greedy, str(number), **CHEAP) for number in range(4)]
    few = [submit(mine, modest, "few", **CHEAP)]
    others = [submit(yours, greedy, f"other-{number}", **CHEAP) for number in range(2)]
    assert claimed(db, 6) == [many[0], others[0], few[0], others[1], many[1], many[2]]
    assert claimed(db) == [many[3]]
    assert claim_next(db, NO_RECORDS, "w", 30.0, BOTH) is None
    with db.read() as session:
        assert session.query(ClaimTurn).count() == 3


def test_who_has_a_worker_waits_for_who_has_none(db: Database, submit: Submit) -> None:
    mine, yours = add_dataset(db), add_dataset(db)
    long = [submit(mine, **CHEAP) for _ in range(3)]
    running = claim_next(db, NO_RECORDS, "w1", 30.0, BOTH)
    assert running is not None and running.job_id == long[0]
    other = submit(yours, **CHEAP)
    taken = claim_next(db, NO_RECORDS, "w2", 30.0, BOTH)
    assert taken is not None and taken.job_id == other


def test_a_job_that_waits_for_a_device_blocks_nobody(db: Database, submit: Submit) -> None:
    """Attack (Doors): A job that waits for a GPU
    Now: blocks nobody
    """
    dataset = add_dataset(db)
    with db.write() as session:
        key = add_key(session, "analyst")
    waits = submit(dataset, key, "gpu", runtime={"device": "cuda"}, **CHEAP)
    runs = submit(dataset, key, "cpu", **CHEAP)
    held = claim_next(db, NO_RECORDS, "w", 30.0)
    assert held is not None and held.job_id == runs
    assert claim_next(db, NO_RECORDS, "w", 30.0) is None
    held = claim_next(db, NO_RECORDS, "gpu", 30.0, BOTH)
    assert held is not None and held.job_id == waits


def test_a_job_that_asks_for_more_processes_waits_for_them_and_blocks_nobody(db: Database, submit: Submit) -> None:
    """A gang is claimed as a whole or not at all. It keeps its turn: a worker that has enough takes it first."""
    dataset = add_dataset(db)
    with db.write() as session:
        key = add_key(session, "analyst")
    asked: tuple[int | str, ...] = (4, "auto", 3, 1, 8)
    jobs = [submit(dataset, key, str(each), runtime={"processes": each}, **CHEAP) for each in asked]
    taken = [claim_next(db, NO_RECORDS, "w", 30.0, Room(processes)) for processes in (1, 3, 4, 3, 7, 8)]
    wanted = [jobs[1], jobs[2], jobs[0], jobs[3], None, jobs[4]]
    assert [each and each.job_id for each in taken] == wanted


def test_a_job_that_was_ready_goes_on_with_fewer_processes(db: Database, submit: Submit) -> None:
    """Its model is the same to the bit with fewer, and a step that was started is better finished than kept waiting."""
    waits = submit(add_dataset(db), runtime={"processes": 4}, **CHEAP)
    held = claim_next(db, NO_RECORDS, "large", 30.0, Room(4))
    assert held is not None and held.job_id == waits
    log = AttemptLog(db, held, lease_s=30.0, max_attempts=5)
    log.ready("cpu", numerics(), processes=(11, 12, 13, 14))
    log.gone("lost")
    held = claim_next(db, NO_RECORDS, "small", 30.0, Room(1))
    assert held is not None and held.job_id == waits


def test_a_cluster_that_may_grow_is_told_the_size_of_the_oldest_job_that_waits(db: Database, submit: Submit) -> None:
    dataset = add_dataset(db)
    with db.write() as session:
        key = add_key(session, "analyst")
    runtimes: tuple[dict[str, Any], ...] = ({"processes": 8}, {"processes": 4, "device": "cuda"}, {"processes": 3}, {})
    for runtime in runtimes:
        submit(dataset, key, str(runtime), runtime=runtime, **CHEAP)
    sizes = [size_that_waits(db, ranks, most) for ranks, most in ((2, 7), (2, 8), (3, 7), (8, 8), (2, 0))]
    assert sizes == [3, 8, None, None, None]


def test_a_key_at_its_limit_blocks_nobody(db: Database, submit: Submit) -> None:
    dataset = add_dataset(db)
    with db.write() as session:
        key = add_key(session, "analyst")
        session.execute(update(ApiKey).where(ApiKey.id == key).values(max_running_jobs=1))
    mine = [submit(dataset, key, str(number), **CHEAP) for number in range(2)]
    other = submit(dataset, **CHEAP)
    taken = [claim_next(db, NO_RECORDS, "w", 30.0, BOTH) for _ in range(3)]
    assert [each and each.job_id for each in taken] == [mine[0], other, None]


def test_a_job_that_another_worker_took_in_between_is_passed_over(
    db: Database, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = add_dataset(db)
    first, second = submit(dataset, **CHEAP), submit(dataset, **CHEAP)

    class Lost(claims.Queued):
        """What a claim of the first job reads that came second."""

        def __init__(self, trip: Trip, job_id: str) -> None:
            super().__init__(trip, "none" if job_id == first else job_id)

    monkeypatch.setattr(claims, "Queued", Lost)
    held = claim_next(db, NO_RECORDS, "w", 30.0, BOTH)
    assert held is not None and held.job_id == second
    with db.read() as session:
        assert session.get_one(Job, first).status == "queued"


def test_a_claim_may_skip_thousands_of_jobs_and_data_sets(db: Database, submit: Submit) -> None:
    """Jobs whose holds no witness has seen yet, say: SQLite nests a thousand conditions, and no more."""
    behind, sound = add_dataset(db), add_dataset(db)
    with db.write() as session:
        key = add_key(session, "analyst")
    passed, other, waits = submit(sound, key, "passed", **CHEAP), submit(sound, **CHEAP), submit(behind, **CHEAP)
    able = Able(BOTH)
    fronts._front.cache_clear()
    for count in (1, 2, 3, 900, 1000, 1500, 2000):
        skipped = [f"a job {number}" for number in range(count - 1)] + [passed]
        data_sets = [f"a data set {number}" for number in range(count - 1)] + [behind]
        with db.read() as session, round_trip(session.connection()) as trip:
            reply = fronts.ask(trip, "w", 30.0, able, skipped, data_sets)
        assert [each.job_id for each in reply.rows()] == [other], count
    assert fronts._front.cache_info().currsize == 5, "for 1, 2, 4, 1024 and 2048"
    with db.read() as session, round_trip(session.connection()) as trip:
        reply = fronts.ask(trip, "w", 30.0, able)
    assert {each.job_id for each in reply.rows()} == {passed, other, waits}


def test_a_job_that_waits_after_a_crash_blocks_nobody(db: Database, submit: Submit) -> None:
    dataset = add_dataset(db)
    with db.write() as session:
        key = add_key(session, "analyst")
    waits, other = (submit(dataset, key, once, **CHEAP) for once in ("first", "second"))
    for _ in range(8):  # it waits for a minute now
        claimed_again(db, waits).gone("lost")
    held = claim_next(db, NO_RECORDS, "w", 30.0, BOTH)
    assert held is not None and held.job_id == other
    assert claim_next(db, NO_RECORDS, "w", 30.0, BOTH) is None


def test_jobs_of_a_ledger_that_is_behind_block_nobody(db: Database, submit: Submit, tmp_path: Path) -> None:
    lost, sound = add_dataset(db), add_dataset(db)
    with db.write() as session:
        key = add_key(session, "analyst")
    for once in ("one", "two", "three"):
        submit(lost, key, once, **CHEAP)
    other = submit(sound, key, "other", **CHEAP)
    heads = Heads(tmp_path / "heads")
    record(db, heads, lost)
    was = heads.read(lost)
    assert was is not None
    heads.replace(was.model_copy(update={"seq": was.seq + 1, "head": "ff" * 32}))
    held = claim_next(db, heads, "w", 30.0, BOTH)
    assert held is not None and held.job_id == other
    assert claim_next(db, heads, "w", 30.0, BOTH) is None
    heads.replace(was)
    assert claim_next(db, heads, "w", 30.0, BOTH) is not None


def test_a_ledger_is_compared_at_each_claim_also_where_the_last_one_was_on_it(
    db: Database, submit: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker begins with the ledger of its last claim: what it found then counts no longer."""
    dataset, heads = add_dataset(db), Heads(tmp_path / "heads")
    with db.write() as session:
        key = add_key(session, "analyst")
    for once in ("one", "two", "three"):
        submit(dataset, key, once, **CHEAP)
    record(db, heads, dataset)
    was = heads.read(dataset)
    assert was is not None and claim_next(db, heads, "w", 30.0, BOTH) is not None
    heads.replace(was.model_copy(update={"seq": was.seq + 1, "head": "ff" * 32}))
    assert claim_next(db, heads, "w", 30.0, BOTH) is None
    heads.replace(was)
    sent = list[str]()
    compiled = trip._compiled  # of a trip's statements on PostgreSQL, which SQLAlchemy does not send
    monkeypatch.setattr(trip, "_compiled", lambda *each: sent.append(str(each[0])) or compiled(*each))
    event.listen(db.engine, "before_cursor_execute", lambda *each: sent.append(each[2]))
    assert claim_next(db, heads, "w", 30.0, BOTH) is not None
    first = len(sent)
    submit(dataset, key, "four", **CHEAP)
    sent.clear()
    assert claim_next(db, heads, "w", 30.0, BOTH) is not None
    choices = sum("WITH RECURSIVE" in each for each in sent)
    assert choices == 1 and len(sent) < first, "it is chosen once"
