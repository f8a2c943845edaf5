"""Claims from a queue of many keys are those of a serial model of turns, which reads every job and knows no SQL."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest
from sqlalchemy import delete, event, insert, select, text, update

from app.db.database import Database
from app.db.models import ApiKey, ClaimTurn, Dataset, Job, table_of
from app.db.trip import _compiled, round_trip
from app.lifecycle.queue.fair import RUNNING, claim_next, next_job
from app.lifecycle.queue.fronts import Able
from app.lifecycle.queue.room import Room
from tests.factories import add_dataset, add_key
from tests.ledger.support import add_job
from tests.lifecycle.test_fair import NO_RECORDS
from tests.work import of_session

JOBS = table_of(Job)
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Waiting:
    """A queued job as the model knows it."""

    owner: str
    key: str
    job: str
    at: datetime
    priority: int
    device: str
    processes: int | str

    @property
    def place(self) -> tuple[int, datetime, str]:
        """Among its key's jobs."""
        return (-self.priority, self.at, self.job)


@dataclass
class Model:
    """Start-time fair queueing in exact fractions, among owners and then among the keys on each owner's data."""

    weights: dict[str, int]
    queue: list[Waiting] = field(default_factory=list)
    running: list[Waiting] = field(default_factory=list)
    last: dict[tuple[str, str], tuple[int, Fraction, Fraction]] = field(default_factory=dict)
    claims: int = 0

    def claim(self, room: Room) -> Waiting | None:
        """Takes the job whose turn it is at a worker; a stored `auto` is a processor, and one process."""
        able = [each for each in self.queue if self._fits(each, room)]
        if not able:
            return None
        firsts: dict[tuple[str, str], Waiting] = {}
        for each in sorted(able, key=lambda waiting: waiting.place):
            firsts.setdefault((each.owner, each.key), each)
        least = min(self.weights[owner] for owner, _ in firsts)

        def order(first: Waiting) -> tuple[Any, ...]:
            owner, key = first.owner, first.key
            least_key = min(self.weights[name] for of, name in firsts if of == owner)
            of_owner = (self._rounds(owner, None, least), self._start(owner), self._number(owner))
            number = self.last.get((owner, key), (0,))[0]
            of_key = (self._rounds(owner, key, least_key), self._key_start(owner, key), number)
            return (*of_owner, *of_key, first.at, first.job)  # of new ones the oldest job decides

        job = min(firsts.values(), key=order)
        owner, key = job.owner, job.key
        self.claims += 1
        self.last[owner, key] = (self.claims, self._start(owner), self._key_start(owner, key))
        self.queue.remove(job)
        self.running.append(job)
        return job

    def _fits(self, waiting: Waiting, room: Room) -> bool:
        limit = room.gpus if waiting.device == "cuda" else room.ranks
        return limit >= (1 if waiting.processes == "auto" else int(waiting.processes))

    def _rounds(self, owner: str, key: str | None, least: int) -> int:
        count = sum(each.owner == owner and key in (None, each.key) for each in self.running)
        return count * least // self.weights[key or owner]

    def _start(self, owner: str) -> Fraction:
        latest = max((turn[1] for turn in self.last.values()), default=Fraction(0))
        mine = [turn[1] for (name, _), turn in self.last.items() if name == owner]
        return max(latest, max(mine) + Fraction(1, self.weights[owner])) if mine else latest

    def _number(self, owner: str) -> int:
        return max((turn[0] for (name, _), turn in self.last.items() if name == owner), default=0)

    def _key_start(self, owner: str, key: str) -> Fraction:
        latest = max((turn[2] for (name, _), turn in self.last.items() if name == owner), default=Fraction(0))
        mine = self.last.get((owner, key))
        return latest if mine is None else max(latest, mine[2] + Fraction(1, self.weights[key]))


@pytest.mark.parametrize("seed", range(2))
def test_claims_are_those_of_a_serial_model(db: Database, seed: int) -> None:
    draw = random.Random(seed)
    datasets = [add_dataset(db) for _ in range(5)]  # of an owner each
    with db.write() as session:
        # The last data set belongs to the first one's owner: a key's jobs on both are one line of turns.
        session.get_one(Dataset, datasets[4]).owner_key = session.get_one(Dataset, datasets[0]).owner_key
        keys = [add_key(session, "analyst") for _ in range(6)]
        session.execute(delete(ClaimTurn))
        for each in session.scalars(select(ApiKey)):
            each.weight = draw.choice((1, 1, 2, 3))
        session.flush()
        model = Model({each.id: each.weight for each in session.scalars(select(ApiKey))})
        owners = {each.id: each.owner_key for each in session.scalars(select(Dataset))}
    number = 0
    for _ in range(60):
        with db.write() as session:
            for _ in range(draw.randrange(4)):
                number += 1
                dataset, key = draw.choice(datasets), draw.choice(keys)
                device, priority = draw.choice(("auto", "auto", "cpu", "cuda")), draw.choice((0, 0, 0, 5, -3))
                processes: int | str = draw.choice((1, 1, 1, "auto", 2, 4))
                at = BEGAN + timedelta(seconds=draw.randrange(40))
                job = add_job(session, dataset, key_id=key, created_at=at)
                row = session.get_one(Job, job)
                runtime = row.spec["runtime"] | {"device": device, "processes": processes}
                row.spec = row.spec | {"priority": priority, "runtime": runtime}
                model.queue.append(Waiting(owners[dataset], key, job, at, priority, device, processes))
        room = draw.choice((Room(1), Room(3), Room(0, 1), Room(8, 2), Room(4, 4)))
        expected = model.claim(room)
        held = claim_next(db, NO_RECORDS, f"worker-{room.ranks}-{room.gpus}", 30.0, room)
        assert (held and held.job_id) == (expected and expected.job)
        while len(model.running) > draw.randrange(6):
            ended = model.running.pop(draw.randrange(len(model.running)))
            with db.write() as session:
                session.execute(update(Job).where(Job.id == ended.job).values(status="cancelled"))
    assert model.claims > 30 and len(Counter(model.last)) > 10


@pytest.mark.parametrize(
    ("spec", "device", "waits"),
    [
        ({"runtime": {"device": "cuda", "processes": 4}, "priority": -3}, None, ("cuda:4", -3)),
        ({"runtime": {"device": "cuda", "processes": 4}}, "cuda", ("cuda:1", 0)),
        ({"runtime": {"device": "cuda", "processes": 4}}, "cpu", ("cpu:1", 0)),
        ({"runtime": {"device": "auto", "processes": "auto"}, "priority": 7}, None, ("cpu:1", 7)),
        ({"runtime": {"device": "auto", "processes": 2}}, "cuda", ("cuda:1", 0)),
        ({"runtime": {}, "priority": None}, None, ("cpu:1", 0)),
        ({}, None, ("cpu:1", 0)),
    ],
)
def test_a_job_s_lane_follows_what_is_written(
    db: Database, spec: dict[str, Any], device: str | None, waits: tuple[str, int]
) -> None:
    """Whoever writes it, first or later: a process of the last release names neither column."""
    dataset = add_dataset(db)
    with db.write() as session:
        first = add_job(session, dataset, key_id=add_key(session, "analyst"))
        row = dict(session.execute(select(JOBS).where(JOBS.c.id == first)).mappings().one())
        del row["lane"], row["priority"]
        added = row | {"id": "job_2", "idempotency_key": "2", "spec": spec, "device": device}
        session.execute(insert(JOBS), added)
        session.execute(update(JOBS).where(JOBS.c.id == first).values(spec=spec))
        session.execute(update(JOBS).where(JOBS.c.id == first).values(device=device, status="paused"))
        session.execute(update(JOBS).where(JOBS.c.id == first).values(status="queued"))
        lanes = session.execute(select(JOBS.c.lane, JOBS.c.priority)).all()
    assert [tuple(each) for each in lanes] == [waits, waits]


def test_a_claim_builds_no_statement(db: Database) -> None:
    dataset = add_dataset(db)
    with db.write() as session:
        for _ in range(3):
            add_job(session, dataset, key_id=add_key(session, "analyst"))
    assert claim_next(db, NO_RECORDS, "w", 30.0) is not None
    built = list[str]()
    event.listen(db.engine, "before_cursor_execute", lambda *of: built.append(of[2]))
    misses = _compiled.cache_info().misses
    assert claim_next(db, NO_RECORDS, "w", 30.0) is not None
    # PostgreSQL is sent texts, in four round trips; SQLite runs the same statements one by one.
    assert len(built) <= (0 if db.engine.dialect.name == "postgresql" else 15)
    assert _compiled.cache_info().misses == misses


@pytest.mark.parametrize("runtime", [{}, {"device": "cuda"}, {"processes": 4}], ids=str)
def test_a_claim_reads_the_front_of_each_line_however_many_wait(db: Database, runtime: dict[str, Any]) -> None:
    """Also where they wait for another worker, before the only jobs that this one may take."""
    dataset = add_dataset(db)
    with db.write() as session:
        keys = [add_key(session, "analyst") for _ in range(3)]
        first = add_job(session, dataset, key_id=keys[0])
        row = dict(session.execute(select(JOBS).where(JOBS.c.id == first)).mappings().one())
        spec = row["spec"] | {"runtime": row["spec"]["runtime"] | runtime}
        times = {"created_at": BEGAN, "spec": spec}
        rows = [
            row | times | {"id": f"job_{n}", "idempotency_key": f"job_{n}", "key_id": keys[n % 3]} for n in range(3_000)
        ]
        session.execute(insert(JOBS), rows)
        if db.engine.dialect.name == "postgresql":  # as its housekeeping does
            session.execute(text("ANALYZE jobs"))
        work = of_session(session, "jobs")
        with round_trip(session.connection()) as trip:
            chosen_of = next_job(trip, "worker", 30.0, Able())
        chosen = chosen_of()
        assert chosen is not None and (chosen.job.created_at == BEGAN) == (not runtime)
        assert work() < 60  # 3,000 rows, or as many hundreds of steps, where all are ranked


def test_who_runs_is_counted_in_an_index(db: Database) -> None:
    with db.write() as session:
        if db.engine.dialect.name == "postgresql":  # which reads a small table in full
            session.execute(text("SET LOCAL enable_seqscan = off"))
        explain = "EXPLAIN" if db.engine.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN"
        plan = str(session.execute(text(f"{explain} {RUNNING.compile(db.engine)}")).all())
    assert "Index Only Scan using ix_jobs_running" in plan or "SCAN jobs USING INDEX ix_jobs_running" in plan
