"""Ends of runs and cancels at the same moment, on both databases."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from app.db.database import Database
from app.jobs import steering
from app.keys.service import Caller
from app.lifecycle.attempts import AttemptLog
from tests.conftest import BACKINGS
from tests.factories import NO_HEADS
from tests.hpo.conftest import Submit, account_of, artifacts_of, job_of, release, runs_of
from tests.lifecycle.conftest import claimed


@pytest.fixture(params=BACKINGS)
def backing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def at_once(*acts: Callable[[], object]) -> None:
    """Runs them at the same moment; what one raises is raised."""
    barrier, raised = threading.Barrier(len(acts)), list[BaseException]()

    def act(what: Callable[[], object]) -> None:
        barrier.wait(300)
        try:
            what()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=act, args=(what,)) for what in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not any(thread.is_alive() for thread in threads)
    if raised:
        raise raised[0]


def at_their_ends(db: Database, study: str) -> list[AttemptLog]:
    """An attempt at each of its runs, with nothing left to do but to say so."""
    logs = []
    for run in runs_of(db, study, "queued"):
        log = claimed(db, run.id)
        assert log.start_block(1, run.steps)
        log.record_digest(run.steps, "a" * 64)
        release(log, run, 0.5)
        logs.append(log)
    return logs


def test_the_last_two_pilots_end_at_once(db: Database, submit: Submit) -> None:
    study = submit(runs_per_level=1)
    pilots = runs_of(db, study)
    logs = zip(at_their_ends(db, study), pilots, strict=True)
    at_once(*(lambda log=log, run=run: log.succeed(artifacts_of(run), run.steps, []) for log, run in logs))
    assert [run.trial.role for run in runs_of(db, study, "queued") if run.trial] == ["final"]
    assert account_of(db, study).train_spent == sum(run.quote["charge"]["train"] for run in pilots)


def test_a_run_fails_while_another_ends(db: Database, submit: Submit) -> None:
    study = submit(runs_per_level=1)
    first, second = at_their_ends(db, study)
    run = runs_of(db, study)[0]
    at_once(
        lambda: first.succeed(artifacts_of(run), run.steps, []),
        lambda: second.fail("internal", "The attempt failed."),
    )
    ended, account = job_of(db, study), account_of(db, study)
    assert ended.status == "failed"
    assert (account.train_held, account.train_spent) == (0, ended.quote["charge"]["train"])


def test_a_cancel_while_the_last_pilot_ends(db: Database, submit: Submit) -> None:
    study = submit(runs_per_level=1)
    pilots = runs_of(db, study)
    first, last = at_their_ends(db, study)
    first.succeed(artifacts_of(pilots[0]), pilots[0].steps, [])
    caller = Caller(job_of(db, study).key_id, "test", "admin")
    at_once(
        lambda: last.succeed(artifacts_of(pilots[1]), pilots[1].steps, []),
        lambda: steering.cancel(db, caller, study, NO_HEADS),
    )
    account = account_of(db, study)
    assert (job_of(db, study).status, account.train_held) == ("cancelled", 0)
    assert account.train_spent == sum(run.quote["charge"]["train"] for run in pilots)
