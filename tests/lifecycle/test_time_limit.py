"""A job that runs for as long as it may fails, and its whole hold is spent, wherever it was."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from app.db.database import Database
from app.db.models import ApiKey, Dataset, Job
from app.lifecycle.sweeper import expire_all_leases, reap_expired
from app.settings import Settings
from tests.factories import add_dataset
from tests.lifecycle.conftest import Submit, balances, claimed, job_row
from tests.lifecycle.test_watch import FrozenForkServer
from worker.attempt import supervisor


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "STOPPING", threading.Event())


def started(db: Database, job_id: str) -> None:
    """So that an attempt can be described to its process, which reads nothing."""
    with db.write() as session:
        dataset = session.get_one(Dataset, session.get_one(Job, job_id).dataset_id)
        dataset.parts = {"train": {"path": "nowhere", "sha256": "0" * 64}}


def run(db: Database, settings: Settings, job_id: str, **changes: Any) -> None:
    """One attempt with a process that never ends."""
    started(db, job_id)
    fork_server = FrozenForkServer()
    supervisor.run_attempt(claimed(db, job_id), settings.model_copy(update=changes), fork_server)
    assert fork_server.child.wait(300) == -signal.SIGKILL


def failed_by_time(db: Database, job_id: str, hold: tuple[int, int, int, int]) -> None:
    job = job_row(db, job_id)
    assert (job.status, job.failure and job.failure.code) == ("failed", "time-limit")
    assert balances(db, job_id) == (hold[1], 0, hold[3], 0), "the whole hold is spent"


def test_a_job_past_the_limit_that_it_asked_for_fails(db: Database, settings: Settings, submit: Submit) -> None:
    """Also before its first step: that loading took so long depends on the data.

    Attack (Reliability): A job runs for ever
    Now: `time-limit`, the whole hold spent
    Also: tests/lifecycle/test_time_limit.py::test_a_keys_limit_and_the_settings_hold_too
    """
    job_id = submit(runtime={"max_duration_s": 0.5})
    hold = balances(db, job_id)
    run(db, settings, job_id)
    failed_by_time(db, job_id, hold)
    assert job_row(db, job_id).ran_s >= 0.5


def test_a_keys_limit_and_the_settings_hold_too(db: Database, settings: Settings, submit: Submit) -> None:
    of_key, of_settings = submit(runtime={"max_duration_s": 500.0}), submit()
    holds = balances(db, of_key), balances(db, of_settings)
    with db.write() as session:
        session.get_one(ApiKey, session.get_one(Job, of_key).key_id).max_job_s = 1
    run(db, settings, of_key)
    run(db, settings, of_settings, max_job_s=0.5)
    failed_by_time(db, of_key, holds[0])
    failed_by_time(db, of_settings, holds[1])


def test_attempts_are_counted_together_and_waiting_is_not(db: Database, settings: Settings, submit: Submit) -> None:
    job_id = submit(runtime={"max_duration_s": 5000.0})
    hold = balances(db, job_id)
    log = claimed(db, job_id)
    log.begin()
    log._began -= 5000.0  # it ran that long
    log.start_block(1, 10)
    expire_all_leases(db)
    reap_expired(db, 3)
    assert job_row(db, job_id).status == "queued"
    assert 5000.0 <= job_row(db, job_id).ran_s < 5600.0
    run(db, settings, job_id)
    failed_by_time(db, job_id, hold)


def test_without_a_limit_a_job_is_not_ended(db: Database, settings: Settings, submit: Submit) -> None:
    log = claimed(db, submit())
    assert supervisor._time_left_s(log.begin(), settings) == float("inf")


def test_a_public_job_has_no_hold_to_spend(db: Database, settings: Settings, submit: Submit) -> None:
    public = add_dataset(db, privacy={"sensitivity": "public"}, holdout=None)
    job_id = submit(public, privacy=None, evaluation=None, runtime={"max_duration_s": 0.3})
    run(db, settings, job_id)
    assert str(job_row(db, job_id).failure).startswith("code='time-limit'")
