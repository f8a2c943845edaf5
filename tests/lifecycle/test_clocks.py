"""Leases are judged by one clock, whatever the processes' own clocks say; and nothing goes round in circles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest
from sqlalchemy import delete, func, select

from app.db import clock
from app.db.database import Database
from app.db.models import Attempt, Job, Outbox, Worker
from app.db.skew import skew_s
from app.lifecycle import claims
from app.lifecycle.attempts import AttemptLog
from app.lifecycle.claims import claim
from app.lifecycle.queue.presence import Presence
from app.lifecycle.sweeper import expire_all_leases, reap_expired
from app.lifecycle.wakeups import unclaimed
from app.settings import Settings
from app.system import health
from tests.lifecycle.conftest import Submit, balances, claimed, job_row

LEASE_S = 8.0


@contextmanager
def ahead(by_s: float) -> Iterator[None]:
    """A process whose own clock is wrong."""
    wrong = SimpleNamespace(now=lambda zone: datetime.now(zone) + timedelta(seconds=by_s))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("core.ids.datetime", wrong)
        yield


@pytest.mark.parametrize("skew_s", [-20.0, 20.0, 3600.0])
def test_a_worker_whose_clock_is_wrong_keeps_its_job(db: Database, submit: Submit, skew_s: float) -> None:
    """+20 s between worker and relay, against a lease of 8 s, took a job back 50 times in 69 s and failed it."""
    job_id = submit()
    with ahead(skew_s), db.write() as session:
        held = claim(session, job_id, "w", LEASE_S)
    assert held is not None
    assert reap_expired(db, 3) == 0
    log = AttemptLog(db, held, lease_s=LEASE_S, max_attempts=3)
    with ahead(skew_s):
        log.heartbeat()
    assert reap_expired(db, 3) == 0
    with ahead(-skew_s):
        assert reap_expired(db, 3) == 0
    assert (job_row(db, job_id).status, job_row(db, job_id).attempt) == ("running", 1)


@pytest.mark.parametrize("skew_s", [-3600.0, 3600.0])
def test_a_lost_worker_is_noticed_by_whatever_clock_it_had(db: Database, submit: Submit, skew_s: float) -> None:
    job_id = submit()
    with ahead(skew_s), db.write() as session:
        assert claim(session, job_id, "w", 0.0) is not None
    assert reap_expired(db, 3) == 1
    assert job_row(db, job_id).status == "queued"


def test_a_machine_that_was_started_again_holds_no_lease(
    db: Database, submit: Submit, backing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's clock begins anew with the machine: an old lease would look as if it held for days.

    Attack (Reliability): A machine with SQLite is started again, or sleeps
    Now: by the time since the boot, with its id
    Also: tests/lifecycle/test_clocks.py::test_sqlite_counts_the_time_that_the_machine_sleeps
    """
    if backing != "sqlite":
        pytest.skip("PostgreSQL's clock goes on")
    job_id = submit()
    claimed(db, job_id)
    assert reap_expired(db, 3) == 0
    monkeypatch.setattr(clock, "boot", lambda: "another boot")
    monkeypatch.setattr(clock, "boottime", lambda: 1.0)
    assert reap_expired(db, 3) == 1
    assert claimed(db, job_id).held.attempt == 2


def test_sqlite_counts_the_time_that_the_machine_sleeps(
    db: Database, submit: Submit, backing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backing != "sqlite":
        pytest.skip("PostgreSQL has a clock of its own")
    job_id, at = submit(), clock.boottime()
    with db.write() as session:
        assert claim(session, job_id, "w", LEASE_S) is not None
    monkeypatch.setattr(clock, "boottime", lambda: at + LEASE_S - 1)
    assert reap_expired(db, 3) == 0
    monkeypatch.setattr(clock, "boottime", lambda: at + LEASE_S + 60)
    assert reap_expired(db, 3) == 1


def test_a_few_takebacks_fail_no_job(db: Database, submit: Submit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack (Reliability): A job is taken back again and again
    Now: it waits 1, 2, 4, … 60 s and goes on
    Also: tests/lifecycle/test_clocks.py::test_a_job_that_is_taken_back_again_waits_before_it_runs_again
    """
    monkeypatch.setattr(claims, "LONGEST_BACKOFF_S", 0.0)
    job_id = submit()
    for _ in range(12):  # four times as often as it may fail
        claimed(db, job_id).start_block(1, 2)
        expire_all_leases(db)
        assert reap_expired(db, 3) == 1
    assert (job_row(db, job_id).status, job_row(db, job_id).attempt) == ("queued", 12)


def test_a_job_that_nobody_survives_ends_as_one_that_crashed(
    db: Database, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job whose attempts end their supervisors would be tried for ever. It spends its whole hold.

    Attack (Doors): A job whose attempts kill their supervisors
    Now: after ten times as many lapsed leases as it may have crashes it fails, its whole hold spent; workers that stop
    in order are not counted
    """
    monkeypatch.setattr(claims, "LONGEST_BACKOFF_S", 0.0)
    job_id = submit()
    hold = balances(db, job_id)
    for _ in range(30):
        log = claimed(db, job_id)
        log.start_block(1, 2)
        log.gone("lost")  # a worker that stops: never counted
    for left in range(30, 0, -1):
        assert job_row(db, job_id).status == "queued", left
        claimed(db, job_id)
        expire_all_leases(db)
        assert reap_expired(db, 3) == 1
    job = job_row(db, job_id)
    assert job.status == "failed" and balances(db, job_id) == (hold[1], 0, hold[3], 0), "the whole hold is spent"
    assert job.failure is not None and job.failure.code == "internal" and reap_expired(db, 3) == 0


def test_a_job_that_is_taken_back_again_waits_before_it_runs_again(db: Database, submit: Submit) -> None:
    job_id = submit()
    assert [claims.backoff_s(gone) for gone in (1, 2, 3, 4, 20, 10_000)] == [0.0, 1.0, 2.0, 4.0, 60.0, 60.0]
    for attempt in (1, 2):
        with db.write() as session:
            session.execute(delete(Outbox))
        assert claimed(db, job_id).held.attempt == attempt  # the first time it is queued, and notified for, at once
        expire_all_leases(db)
        reap_expired(db, 3)
        with db.read() as session:
            assert session.scalar(select(func.count()).select_from(Outbox)) == (1 if attempt == 1 else 0)
    with db.write() as session:
        session.get_one(Job, job_id).lease_until = clock.in_seconds(3600.0)  # the second however busy this machine is
    with db.write() as session:
        assert claim(session, job_id, "w", LEASE_S) is None
    assert unclaimed(db, 0.0, 9) == []
    with db.write() as session:
        session.get_one(Job, job_id).lease_until = clock.in_seconds(-1.0)
    assert [each.id for each in unclaimed(db, 0.0, 9)] == [job_id]
    assert claimed(db, job_id).held.attempt == 3


def test_crashes_wait_too_and_fail_the_job_as_before(db: Database, submit: Submit) -> None:
    job_id = submit()
    for _ in range(3):
        with db.write() as session:
            session.get_one(Job, job_id).lease_until = None
        claimed(db, job_id).gone("crashed")
    assert job_row(db, job_id).status == "failed"
    with db.read() as session:
        assert session.scalars(select(Attempt.status).where(Attempt.job_id == job_id)).all() == ["crashed"] * 3


def test_a_wrong_clock_is_shown(db: Database, settings: Settings, backing: str) -> None:
    """Attack (Reliability): A clock goes wrong unnoticed
    Now: `/readyz`, `/metrics` and `GET /v1/workers` do
    """
    assert health.checks(db, settings)["clock"] == "ok"
    with ahead(20.0):
        Presence(db, "late", 1, 5.0).beat()
        own = skew_s(db)
    found = health.skews(db, settings.lease_s)
    if backing == "sqlite":  # one machine, one clock
        assert (own, found["late:1"], health.checks(db, settings)["clock"]) == (0.0, 0.0, "ok")
        return
    assert own == pytest.approx(20.0, abs=5.0) and found["late:1"] == pytest.approx(20.0, abs=5.0)
    assert found["api"] == pytest.approx(0.0, abs=5.0)
    checks = health.checks(db, settings)
    assert (checks["clock"], health.status(checks)) == ("ClockSkewError", "degraded")


def test_whether_a_worker_lives_is_seen_by_the_databases_clock(db: Database, backing: str) -> None:
    if backing == "sqlite":
        pytest.skip("one machine, one clock")
    with ahead(-3600.0):
        Presence(db, "slow", 1, 5.0).beat()
    with db.read() as session:
        assert abs((session.get_one(Worker, "slow:1").seen_at - clock.now_there(session)).total_seconds()) < 60
