"""Processes that claim the same job at the same moment: one gets it, and who held it before writes nothing any more."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select, text

from app.db.database import Database
from app.db.models import ClaimTurn, Job
from app.db.trip import Trip
from app.lifecycle import relay, sweeper
from app.lifecycle.attempts import AttemptLog
from app.lifecycle.claims import Claim
from app.lifecycle.queue import fair
from app.lifecycle.states import get_job
from app.lifecycle.sweeper import cut_off_silent, expire_all_leases, reap_expired
from app.settings import Settings
from core.errors import StaleAttempt
from tests import processes
from tests.by_night import but
from tests.factories import AT_ONCE, add_dataset, add_key
from tests.ledger.support import add_job
from tests.lifecycle.conftest import Submit, balances, job_row
from tests.lifecycle.contender import contend
from tests.lifecycle.standstill import STEPS, claim_and_stand_still
from tests.lifecycle.test_fair import NO_RECORDS
from tests.lifecycle.test_relay import relay_of

PROCESSES = 4


class Race:
    """Processes that claim every job at the same moment, once a round."""

    def __init__(self, db: Database, url: str, jobs: list[str], rounds: int) -> None:
        context = processes.quick()
        self.db, self.jobs = db, jobs
        self.together, self.won = context.Barrier(PROCESSES), context.Queue()
        self.go = context.Semaphore(0)
        arguments = (url, jobs, rounds, self.go, self.together, self.won)
        self.processes = [context.Process(target=contend, args=arguments, name=f"w{n}") for n in range(PROCESSES)]
        for process in self.processes:
            process.start()

    def round(self) -> list[Claim]:
        """The one claim of each job."""
        for _ in self.processes:
            self.go.release()
        claims = [held for _ in self.processes for held in self.won.get(timeout=300)]
        assert sorted(held.job_id for held in claims) == sorted(self.jobs)  # each once
        for held in claims:
            row = job_row(self.db, held.job_id)
            assert (row.status, row.worker, row.attempt) == ("running", held.worker, held.attempt)
        return claims


@pytest.mark.parametrize("jobs_at_once", but([16, 50], lambda each: each == 16))
def test_of_processes_that_claim_a_job_at_once_one_gets_it(
    db: Database, settings: Settings, submit: Submit, jobs_at_once: int
) -> None:
    dataset = add_dataset(db)
    cheap: dict[str, Any] = {"privacy": {"target_epsilon": 0.1}, "evaluation": None}
    jobs = [submit(dataset, **cheap) for _ in range(jobs_at_once)]
    race = Race(db, settings.effective_database_url, jobs, rounds=2)
    first = race.round()
    assert {held.attempt for held in first} == {1}
    assert len({held.worker for held in first}) > 1

    # All leases run out at once: the same race again, and the first holders are still alive and want to write.
    late = [AttemptLog(db, held, lease_s=60.0, max_attempts=3, cadence=AT_ONCE) for held in first]
    assert late[0].start_block(1, 50)
    expire_all_leases(db)
    assert reap_expired(db, 3) == jobs_at_once
    assert {held.attempt for held in race.round()} == {2}
    before = balances(db, jobs[0])
    for log in late:
        for write in (
            log.heartbeat,
            lambda log=log: log.start_block(1, 50),
            lambda log=log: log.record_digest(50, "ab" * 32),
            lambda log=log: log.succeed([], 50, []),
            lambda log=log: log.fail("x", "x"),
            lambda log=log: log.gone("lost"),
        ):
            with pytest.raises(StaleAttempt):
                write()
    assert balances(db, jobs[0]) == before
    assert {job_row(db, each).attempt for each in jobs} == {2}
    for process in race.processes:
        process.join(300)
        assert process.exitcode == 0


def waiting(db: Database) -> int:
    """How many sessions wait for a lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with db.read() as session:
        return int(session.scalar(text(query)) or 0)


def test_workers_that_claim_at_once_choose_once_each(
    db: Database, settings: Settings, backing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a claim waits for its job's row, the others have not chosen; then each knows the turns before its own."""
    dataset, workers = add_dataset(db), [Database.of(settings) for _ in range(4)]
    with db.write() as session:
        keys = [add_key(session, "analyst") for _ in range(5)]
        times = [datetime(2026, 1, 1, minute, tzinfo=UTC) for minute in range(10)]
        jobs = [add_job(session, dataset, key_id=keys[n % 5], created_at=at) for n, at in enumerate(times)]
    claims = list[str]()

    def claim(worker: Database) -> None:
        held = fair.claim_next(worker, NO_RECORDS, "w", 60.0)
        assert held is not None
        claims.append(held.job_id)

    for each in workers:
        claim(each)  # so it knows which ledger to compare
    choices, choose = list[str](), fair.next_job

    def next_job(trip: Trip, worker: str, *rest: Any) -> Any:
        choices.append(worker)
        return choose(trip, worker, *rest)

    monkeypatch.setattr(fair, "next_job", next_job)
    threads = [threading.Thread(target=claim, args=[each]) for each in workers]
    with db.write() as session:
        get_job(session, jobs[4], lock=True)
        for thread in threads:
            thread.start()
        if backing == "postgres":  # SQLite's writers wait before their first statement
            processes.until(lambda: waiting(db) == 4)
    for thread in threads:
        thread.join(300)
    assert claims[:4] == jobs[:4] and sorted(claims[4:]) == sorted(jobs[4:8])
    assert len(choices) == 4
    with db.read() as session:
        assert sorted(session.scalars(select(ClaimTurn.turn))) == [4, 5, 6, 7, 8]
    for each in workers:
        each.close()


@pytest.mark.parametrize("backing", ["postgres"])
@pytest.mark.parametrize("step", STEPS)
def test_a_claim_that_stands_still_is_cut_off(
    db: Database, settings: Settings, backing: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process stands still as the first in line: the relay lets the others pass, and it has claimed nothing."""
    dataset = add_dataset(db)
    with db.write() as session:
        key, times = add_key(session, "analyst"), [datetime(2026, 1, 1, minute, tzinfo=UTC) for minute in range(3)]
        jobs = [add_job(session, dataset, key_id=key, created_at=at) for at in times]
    context, cut = processes.quick(), list[int]()
    there, go_on = context.Event(), context.Event()
    arguments = (settings.effective_database_url, step, there, go_on)
    still = context.Process(target=claim_and_stand_still, args=arguments)
    monkeypatch.setattr(relay, "cut_off_silent", lambda db: cut.append(cut_off_silent(db)))
    still.start()
    try:
        assert there.wait(300)
        claims = list[Claim | None]()
        claim = partial(fair.claim_next, db, NO_RECORDS, "next", 3600.0)
        thread = threading.Thread(target=lambda: claims.append(claim()), daemon=True)
        thread.start()
        processes.until(lambda: waiting(db) == 1)
        passing = relay_of(db, settings, lambda _job: None)
        monkeypatch.setattr(sweeper, "SILENT_S", 3600.0)
        passing.run_once()
        assert (cut, claims) == ([0], [])  # it may go on still
        monkeypatch.setattr(sweeper, "SILENT_S", 0.0)
        # Not once more: the next in line, too, sends nothing while this process gets no processor.
        processes.until(lambda: passing.run_once() is not None and cut[-1])
        thread.join(300)
        assert [held.job_id for held in claims if held is not None] == jobs[1:2]
    finally:
        go_on.set()
        still.join(300)
    assert still.exitcode == 1  # its connection is lost
    with db.read() as session:
        assert session.scalars(select(Job.worker).order_by(Job.created_at)).all() == ["still", "next", None]
