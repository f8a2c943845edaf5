"""Pause and resume: the hold stays, the replay is free, and a race with anything else has one outcome."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from app.db.database import Database
from app.db.models import ApiKey, Attempt, Job, JobEvent
from app.jobs import repository, steering
from app.jobs.schemas import JobView
from app.keys.service import Caller
from app.ledger.verification import verify
from app.lifecycle.claims import claim
from app.lifecycle.queue.presence import GpuWorkers
from app.lifecycle.sweeper import PAST, expire_all_leases, reap_expired
from app.lifecycle.wakeups import unclaimed
from app.settings import Settings
from core.errors import Conflict, ServiceError, StaleAttempt
from core.ids import whole_second
from tests.factories import NO_HEADS
from tests.lifecycle.conftest import Submit, balances, claimed, job_row
from worker.attempt.supervisor import _time_left_s

DIGEST = "0" * 64
ADMIN = Caller("key_admin", "admin", "admin")


def pause(db: Database, job: str) -> None:
    steering.pause(db, ADMIN, job)


def resume(db: Database, job: str) -> None:
    steering.resume(db, ADMIN, job)


def cancel(db: Database, job: str) -> None:
    steering.cancel(db, ADMIN, job, NO_HEADS)


def events(db: Database, job: str) -> list[str]:
    with db.read() as session:
        return list(session.scalars(select(JobEvent.type).where(JobEvent.job_id == job).order_by(JobEvent.seq)))


def attempts(db: Database, job: str) -> list[str]:
    with db.read() as session:
        return list(session.scalars(select(Attempt.status).where(Attempt.job_id == job).order_by(Attempt.number)))


def taken(db: Database, job: str) -> bool:
    with db.write() as session:
        return claim(session, job, "another", 30.0) is not None


def test_a_queued_job_pauses_at_once_and_keeps_its_hold(db: Database, submit: Submit) -> None:
    job = submit()
    hold = balances(db, job)
    pause(db, job)
    assert job_row(db, job).status == "paused" and balances(db, job) == hold
    assert not taken(db, job) and unclaimed(db, 0.0, 10) == []
    pause(db, job)  # again: nothing changes
    resume(db, job)
    assert job_row(db, job).status == "queued" and [each.id for each in unclaimed(db, 0.0, 10)] == [job]
    assert events(db, job) == ["queued", "pause_requested", "paused", "resumed"]
    assert taken(db, job)


def test_a_running_job_leaves_its_worker_and_goes_on_free_of_charge(db: Database, submit: Submit) -> None:
    job = submit()
    hold = balances(db, job)
    log = claimed(db, job)
    assert log.start_block(1, 25)
    log.record_digest(25, DIGEST)
    pause(db, job)
    assert job_row(db, job).status == "pausing" and log.heartbeat()
    assert not log.start_block(26, 50)
    log.stopped()
    row = job_row(db, job)
    assert (row.status, row.worker, row.lease_until, row.steps_started) == ("paused", None, None, 25)
    assert balances(db, job) == hold and attempts(db, job) == ["paused"]
    with pytest.raises(StaleAttempt):
        log.heartbeat()
    resume(db, job)
    again = claimed(db, job)
    recorded = again.recorded()[1]
    assert [each.digest for each in next(iter(recorded.values()))] == [DIGEST]  # what the replay is compared with
    assert again.start_block(1, 25) and job_row(db, job).steps_started == 25  # a replay is not counted again
    assert again.start_block(26, 50)
    again.record_digest(50, DIGEST)
    again.succeed([], 50, [])
    assert balances(db, job)[0] == hold[1] and job_row(db, job).status == "succeeded"


def test_a_paused_job_s_time_stands(db: Database, submit: Submit) -> None:
    job = submit()
    log = claimed(db, job)
    assert log.start_block(1, 25)
    log.record_digest(25, DIGEST)
    pause(db, job)
    log.stopped()
    began = whole_second() - timedelta(seconds=100)
    with db.write() as session:
        times = {"started_at": began, "ended_at": began + timedelta(seconds=40)}
        session.execute(update(Attempt).where(Attempt.job_id == job).values(**times))
    with db.read() as session:
        details = repository.details(session, [job])[job]
        shown = JobView.of_job(session.get_one(Job, job), details, GpuWorkers(db, 30.0)).progress
    assert (shown.step, shown.elapsed_s, shown.remaining_s) == (25, 40.0, None)


def test_a_pause_that_is_taken_back_in_time_changes_nothing(db: Database, submit: Submit) -> None:
    job = submit()
    log = claimed(db, job)
    pause(db, job)
    resume(db, job)
    assert job_row(db, job).status == "running" and not log.heartbeat()
    assert log.start_block(1, 50)


def test_a_pause_that_is_taken_back_too_late_queues_the_job(db: Database, submit: Submit) -> None:
    """Its worker has ended the process already."""
    job = submit()
    log = claimed(db, job)
    pause(db, job)
    assert log.heartbeat()
    resume(db, job)
    log.stopped()
    assert job_row(db, job).status == "queued" and attempts(db, job) == ["paused"]
    assert taken(db, job)


def test_a_paused_job_can_be_cancelled(db: Database, submit: Submit) -> None:
    job, other = submit(), submit(once="other")
    hold = balances(db, job)[1]
    log = claimed(db, job)
    assert log.start_block(1, 25)
    for each in (job, other):
        pause(db, each)
    log.stopped()
    for each in (job, other):
        cancel(db, each)
        assert job_row(db, each).status == "cancelled"
    spent, held, _, _ = balances(db, job)
    assert held == 0 and hold / 2 <= spent <= hold / 2 * (1 + 1e-6) + 1
    assert balances(db, other)[:2] == (0, 0)


def test_a_cancel_wins_over_a_pause(db: Database, submit: Submit) -> None:
    job = submit()
    log = claimed(db, job)
    pause(db, job)
    cancel(db, job)
    assert job_row(db, job).status == "cancelling"
    with pytest.raises(Conflict):
        resume(db, job)
    log.stopped()
    assert job_row(db, job).status == "cancelled" and balances(db, job)[:2] == (0, 0)


def test_a_job_that_ends_while_it_is_being_paused_has_ended(db: Database, submit: Submit) -> None:
    job = submit()
    log = claimed(db, job)
    assert log.start_block(1, 50)
    log.record_digest(50, DIGEST)
    pause(db, job)
    log.succeed([], 50, [])
    assert job_row(db, job).status == "succeeded"
    for how in (pause, resume):
        with pytest.raises(Conflict) as refused:
            how(db, job)
        assert refused.value.code == "wrong-state"


def test_a_worker_that_is_lost_while_it_pauses_leaves_a_paused_job(db: Database, submit: Submit) -> None:
    job = submit()
    log = claimed(db, job)
    assert log.start_block(1, 25)
    pause(db, job)
    expire_all_leases(db)
    assert reap_expired(db, 3) == 1
    assert job_row(db, job).status == "paused" and attempts(db, job) == ["lapsed"]
    with pytest.raises(StaleAttempt):
        log.stopped()
    assert reap_expired(db, 3) == 0
    with db.write() as session:  # a paused job has no lease; the sweeper would not take one back either
        session.execute(update(Job).where(Job.id == job).values(lease_until=0.0, lease_clock=PAST))
    assert reap_expired(db, 3) == 0 and job_row(db, job).status == "paused"


def test_a_crash_while_it_pauses_counts_as_one(db: Database, submit: Submit) -> None:
    """A cause that may depend on private data: pausing in time does not hide it."""
    job = submit()
    hold = balances(db, job)[1]
    for _ in range(2):
        log = claimed(db, job)
        assert log.start_block(1, 25)
        pause(db, job)
        log.gone("crashed")
        assert job_row(db, job).status == "paused"
        resume(db, job)
    cancel(db, job)
    assert balances(db, job)[:2] == (hold, 0)


def test_a_pause_gives_its_place_to_the_key_s_next_job(db: Database, submit: Submit) -> None:
    first = submit()
    with db.read() as session:
        row = session.get_one(Job, first)
        key, dataset = row.key_id, row.dataset_id
    second = submit(dataset, by=key, once="second", privacy={"target_epsilon": 0.1}, evaluation=None)
    with db.write() as session:
        session.execute(update(ApiKey).where(ApiKey.id == key).values(max_running_jobs=1))
    log = claimed(db, first)
    assert not taken(db, second)
    pause(db, first)
    log.stopped()
    assert taken(db, second)
    resume(db, first)
    assert not taken(db, first)  # it waits for its place


@pytest.mark.parametrize("other", ["cancel", "finish", "lose", "resume", "claim"])
def test_a_race_has_one_outcome(db: Database, submit: Submit, other: str) -> None:
    """Claim: a paused job goes on free of charge, whatever it races with
    Now: one outcome; the replay is not counted
    """
    job = submit(privacy={"target_epsilon": 0.1}, evaluation=None)
    log = None if other == "claim" else claimed(db, job)
    if log is not None:
        log.start_block(1, 50)
        log.record_digest(50, DIGEST)
    if other == "lose":
        expire_all_leases(db)
    others: dict[str, Callable[[], object]] = {
        "cancel": lambda: cancel(db, job),
        "finish": lambda: log.succeed([], 50, []) if log else None,
        "lose": lambda: reap_expired(db, 3),
        "resume": lambda: resume(db, job),
        "claim": lambda: taken(db, job),
    }
    start = threading.Barrier(2)

    def race(act: Callable[[], object]) -> None:
        start.wait(300)
        try:
            act()
        except ServiceError as error:
            assert error.code in ("wrong-state", "stale-attempt")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(race, (lambda: pause(db, job), others[other])))
    possible = {
        "cancel": {"cancelling"},
        "finish": {"succeeded"},
        "lose": {"paused"},
        "resume": {"pausing", "running"},
        "claim": {"paused", "pausing"},
    }
    status = job_row(db, job).status
    assert status in possible[other]
    held = balances(db, job)[1]
    assert (held == 0) == (status == "succeeded")
    with db.read() as session:
        assert verify(session, session.get_one(Job, job).dataset_id).valid


def test_a_paused_attempt_s_time_is_not_counted(db: Database, submit: Submit, settings: Settings) -> None:
    """The next attempt begins at the first step again: with what was left it might never come as far."""
    job = submit(runtime={"max_duration_s": 60})
    log = claimed(db, job)
    log.begin()
    log._began -= 40.0  # it ran that long
    assert log.start_block(1, 25)
    pause(db, job)
    log.stopped()
    resume(db, job)
    assert _time_left_s(claimed(db, job).begin(), settings) == 60.0


def test_a_replay_tells_no_step_twice(db: Database, submit: Submit) -> None:
    job = submit()
    log = claimed(db, job)
    for last in (5, 10):
        assert log.start_block(last - 4, last)
        log.record_digest(last, DIGEST)
    pause(db, job)
    log.stopped()
    resume(db, job)
    again = claimed(db, job)
    for last in (5, 10, 15):
        assert again.start_block(last - 4, last)
        again.record_digest(last, DIGEST)
        assert job_row(db, job).step == max(last, 10)
    assert events(db, job).count("progress") == 3


def test_a_job_s_time_stands_once_it_is_on_no_worker(db: Database, submit: Submit) -> None:
    job = submit()
    log = claimed(db, job)
    pause(db, job)
    log.stopped()
    began = whole_second() - timedelta(seconds=100)
    with db.write() as session:
        times = {"started_at": began, "ended_at": began + timedelta(seconds=40)}
        session.execute(update(Attempt).where(Attempt.job_id == job).values(**times))
    for act in (resume, cancel):
        act(db, job)
        with db.read() as session:
            details = repository.details(session, [job])[job]
            shown = JobView.of_job(session.get_one(Job, job), details, GpuWorkers(db, 30.0)).progress
        assert (shown.elapsed_s, shown.remaining_s) == (40.0, None)
