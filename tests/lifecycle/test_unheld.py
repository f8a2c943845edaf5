"""A job whose hold is not in the ledger: it ends, and what it started is charged as far as the budget goes."""

from __future__ import annotations

import logging

import pytest
from sqlalchemy import select

from app.db.database import Database
from app.db.models import AuditEntry, LedgerEntry
from app.jobs import steering
from app.keys.service import Caller
from app.ledger.verification import verify
from app.lifecycle.sweeper import expire_all_leases, reap_expired
from app.settings import Settings
from tests.chaos.tamper import roll_back, unprotected
from tests.factories import NO_HEADS
from tests.hpo import conftest as hpo
from tests.hpo.conftest import job_of, runs_of
from tests.lifecycle.conftest import Submit, balances, claimed, job_row
from tests.lifecycle.test_restore import Refusing
from worker.attempt.supervisor import run_attempt

plain, submit_study = hpo.plain, hpo.submit


def forget(db: Database, job_id: str) -> str:
    """Takes the hold out of the ledger, as somebody with the database's password can. Returns the data set."""
    dataset = job_row(db, job_id).dataset_id
    with unprotected(db) as session:
        roll_back(session, dataset, 1)
    return dataset


def sound(db: Database, dataset: str) -> bool:
    with db.read() as session:
        return verify(session, dataset).valid


def test_a_job_without_a_hold_ends_with_its_first_attempt(
    db: Database, submit: Submit, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """It stayed `running`, and was tried for ever: an end without a hold was an error.

    Claim: a job without a hold ends
    Now: `failed`; what it started is charged
    """
    job_id = submit()
    dataset = forget(db, job_id)
    with caplog.at_level(logging.ERROR):
        run_attempt(claimed(db, job_id), settings, Refusing())
    row = job_row(db, job_id)
    assert (row.status, row.lease_until, row.worker) == ("failed", None, None)
    assert row.failure is not None and row.failure.code == "internal"
    assert f"job {job_id} failed: privacy-invariant" in caplog.text
    with db.read() as session:
        assert session.scalar(select(AuditEntry.action).where(AuditEntry.action == "job.failed")) is not None
    assert balances(db, job_id) == (0, 0, 0, 0) and sound(db, dataset)


def test_what_it_started_is_charged_as_its_whole_hold(db: Database, submit: Submit) -> None:
    job_id = submit()
    _, train, _, holdout = balances(db, job_id)
    log = claimed(db, job_id)
    assert log.start_block(1, 2)
    dataset = forget(db, job_id)
    log.cancelled()
    assert job_row(db, job_id).status == "failed"
    assert balances(db, job_id) == (train, 0, holdout, 0) and sound(db, dataset)
    with db.read() as session:
        kinds = session.scalars(select(LedgerEntry.kind).where(LedgerEntry.job_id == job_id).order_by(LedgerEntry.seq))
        assert list(kinds) == ["hold", "post"]


def test_what_does_not_fit_takes_what_is_left(db: Database, submit: Submit) -> None:
    job_id = submit(privacy={"target_epsilon": 3.0})
    dataset = job_row(db, job_id).dataset_id
    log = claimed(db, job_id)
    assert log.start_block(1, 2)
    forget(db, job_id)
    submit(dataset, once="twice", privacy={"target_epsilon": 3.0})
    log.cancelled()
    spent, held, _, _ = balances(db, job_id)
    with db.read() as session:
        opened = (LedgerEntry.dataset_id == dataset, LedgerEntry.seq == 1)
        budget = session.scalar(select(LedgerEntry.train).where(*opened))
    assert (job_row(db, job_id).status, spent + held) == ("failed", budget)


def test_a_cancel_and_a_lapse_end_it_too(db: Database, submit: Submit) -> None:
    first, second = submit(), submit()
    for each in (first, second):
        forget(db, each)
    steering.cancel(db, Caller(job_row(db, first).key_id, "test", "admin"), first, NO_HEADS)
    assert job_row(db, first).status == "failed"
    claimed(db, second)
    steering.cancel(db, Caller(job_row(db, second).key_id, "test", "admin"), second, NO_HEADS)
    expire_all_leases(db)
    assert reap_expired(db, 3) == 1
    assert job_row(db, second).status == "failed"


def test_a_study_without_a_hold_ends_with_its_trials(db: Database, submit_study: Submit, settings: Settings) -> None:
    study = submit_study()
    trial = runs_of(db, study)[0].id
    forget(db, study)
    run_attempt(claimed(db, trial), settings, Refusing())
    assert {each.status for each in runs_of(db, study)} == {"failed"}, "also those that no worker had"
    assert job_of(db, study).status == "failed"
