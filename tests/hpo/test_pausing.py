"""A study pauses with its trials, and goes on with them; its one hold stays."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from app.db.database import Database
from app.db.models import JobEvent
from app.jobs import steering
from app.keys.service import Caller
from tests.by_night import SQLITE_BY_DAY
from tests.factories import NO_HEADS
from tests.hpo.conftest import Submit, account_of, artifacts_of, job_of, play, release, runs_of
from tests.lifecycle.conftest import claimed

ADMIN = Caller("key_admin", "admin", "admin")


@pytest.fixture(params=SQLITE_BY_DAY)
def backing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def statuses(db: Database, study: str) -> list[str]:
    return [run.status for run in runs_of(db, study)]


def test_a_study_pauses_with_its_trials_and_goes_on(db: Database, submit: Submit) -> None:
    study = submit(runs_per_level=1)
    held = account_of(db, study).train_held
    first, second = runs_of(db, study)
    log = claimed(db, first.id)
    assert log.start_block(1, 2)
    steering.pause(db, ADMIN, study)
    assert (job_of(db, study).status, statuses(db, study)) == ("pausing", ["pausing", "paused"])
    assert log.heartbeat()
    log.stopped()
    assert (job_of(db, study).status, statuses(db, study)) == ("paused", ["paused", "paused"])
    assert account_of(db, study).train_held == held
    steering.resume(db, ADMIN, study)
    assert (job_of(db, study).status, statuses(db, study)) == ("running", ["queued", "queued"])
    for run in (first, second):
        play(db, run)
    (final,) = runs_of(db, study, "queued")
    play(db, final)
    ended, account = job_of(db, study), account_of(db, study)
    assert ended.status == "succeeded"
    assert (account.train_held, account.train_spent) == (0, held)


def test_a_study_that_has_not_begun_pauses_at_once(db: Database, submit: Submit) -> None:
    study = submit(runs_per_level=1)
    steering.pause(db, ADMIN, study)
    assert (job_of(db, study).status, statuses(db, study)) == ("paused", ["paused", "paused"])
    steering.resume(db, ADMIN, study)
    assert (job_of(db, study).status, statuses(db, study)) == ("queued", ["queued", "queued"])


def test_a_trial_that_ends_while_its_study_pauses_starts_no_other(db: Database, submit: Submit) -> None:
    study = submit(runs_per_level=1)
    first, second = runs_of(db, study)
    play(db, first)
    log = claimed(db, second.id)
    assert log.start_block(1, second.steps)
    log.record_digest(second.steps, "a" * 64)
    release(log, second, 0.5)
    steering.pause(db, ADMIN, study)
    log.succeed(artifacts_of(second), second.steps, [])
    assert (job_of(db, study).status, statuses(db, study)) == ("paused", ["succeeded", "succeeded", "paused"])
    steering.resume(db, ADMIN, study)
    (final,) = runs_of(db, study, "queued")
    play(db, final)
    assert job_of(db, study).status == "succeeded"


def test_a_paused_study_is_cancelled_at_once(db: Database, submit: Submit) -> None:
    study = submit(runs_per_level=1)
    first, _second = runs_of(db, study)
    log = claimed(db, first.id)
    assert log.start_block(1, 2)
    steering.pause(db, ADMIN, study)
    log.stopped()
    steering.cancel(db, ADMIN, study, NO_HEADS)
    account = account_of(db, study)
    assert (job_of(db, study).status, statuses(db, study)) == ("cancelled", ["cancelled", "cancelled"])
    assert account.train_held == 0 and 0 < account.train_spent <= first.quote["charge"]["train"]
    with db.read() as session:
        told = session.scalars(select(JobEvent).where(JobEvent.job_id == study).order_by(JobEvent.seq)).all()
    ended = [(each.data["number"], each.data["status"]) for each in told if each.type == "trial_ended"]
    assert ended == [(0, "cancelled"), (1, "cancelled")] and told[-1].data["runs"] == 2


def test_a_trial_that_fails_while_its_study_pauses_ends_it(db: Database, submit: Submit) -> None:
    study = submit(runs_per_level=1)
    first, _second = runs_of(db, study)
    log = claimed(db, first.id)
    assert log.start_block(1, 2)
    steering.pause(db, ADMIN, study)
    log.fail("internal", "The attempt failed.")
    ended, account = job_of(db, study), account_of(db, study)
    assert ended.status == "failed"
    assert (account.train_held, account.train_spent) == (0, ended.quote["charge"]["train"])
