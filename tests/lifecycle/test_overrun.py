"""More was recorded than the hold covers: the job ends all the same, as failed, with its whole hold spent and no model.

A job that could not be settled was attempted for ever, each time with its hold open.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import select

from app.db.database import Database
from app.db.models import Artifact, Attempt, AuditEntry, Job, Metric, Outbox
from app.ledger.verification import verify
from app.lifecycle.attempts import AttemptLog
from app.lifecycle.settle import settle, settlement_of
from app.lifecycle.states import get_job
from app.lifecycle.sweeper import expire_all_leases, reap_expired
from core.contracts.stored_documents import ArtifactFile
from tests.factories import release
from tests.lifecycle.conftest import Submit, balances, claimed, job_row
from tests.lifecycle.test_attempts import DIGEST, METRIC

MODEL = ArtifactFile(name="model.safetensors", sha256="ab" * 32, size_bytes=1, path="jobs/x/model")


def succeed(log: AttemptLog, _db: Database) -> None:
    log.succeed([MODEL], 50, [])


def fail(log: AttemptLog, _db: Database) -> None:
    log.fail("privacy-invariant", "The attempt failed.")


def cancel(log: AttemptLog, _db: Database) -> None:
    log.cancelled()


def lose(log: AttemptLog, db: Database) -> None:
    """Its worker is lost while it is being cancelled."""
    with db.write() as session:
        get_job(session, log.held.job_id, lock=True).status = "cancelling"
    expire_all_leases(db)
    assert reap_expired(db, 3) == 1


def cancel_in_the_queue(log: AttemptLog, db: Database) -> None:
    log.gone("lost")
    with db.write() as session:
        settle(session, settlement_of(session, get_job(session, log.held.job_id, lock=True), "cancelled"))


def more_scores(db: Database, job_id: str) -> None:
    with db.write() as session:
        session.add_all(Metric(job_id=job_id, **METRIC | {"step": step}) for step in (48, 49))


def more_steps(db: Database, job_id: str) -> None:
    with db.write() as session:
        get_job(session, job_id, lock=True).steps_started = 51


@pytest.mark.parametrize("end", [succeed, fail, cancel, lose, cancel_in_the_queue])
@pytest.mark.parametrize("more", [more_scores, more_steps])
def test_it_fails_with_its_whole_hold_spent_and_no_model(
    db: Database,
    submit: Submit,
    end: Callable[[AttemptLog, Database], None],
    more: Callable[[Database, str], None],
) -> None:
    job_id = submit()
    _, train, _, holdout = balances(db, job_id)
    log = claimed(db, job_id)
    log.start_block(1, 50)
    log.record_digest(50, DIGEST)
    release(log, METRIC)
    more(db, job_id)
    end(log, db)
    job = job_row(db, job_id)
    assert (job.status, job.failure and job.failure.code) == ("failed", "internal")
    assert balances(db, job_id) == (train, 0, holdout, 0)
    with db.read() as session:
        assert session.scalars(select(Artifact)).all() == []
        assert session.scalars(select(AuditEntry.details).where(AuditEntry.action == "job.failed")).one()[
            "because"
        ] == ("privacy-invariant")
        wanted = set(session.scalars(select(Outbox.topic).where(Outbox.job_id == job_id)))
        assert ("discard" in wanted) == (end is succeed)
        assert set(session.scalars(select(Attempt.status))) <= {"failed", "cancelled", "lost", "lapsed"}
        assert verify(session, job.dataset_id).valid


def test_a_score_before_the_first_step_is_spent_too(db: Database, submit: Submit) -> None:
    job_id = submit()
    _, train, _, holdout = balances(db, job_id)
    log = claimed(db, job_id)
    more_scores(db, job_id)
    log.fail("internal", "The attempt failed.")
    assert job_row(db, job_id).status == "failed"
    assert balances(db, job_id) == (train, 0, holdout, 0)


def test_another_claim_finds_nothing(db: Database, submit: Submit) -> None:
    job_id = submit()
    log = claimed(db, job_id)
    log.start_block(1, 50)
    more_steps(db, job_id)
    log.fail("internal", "The attempt failed.")
    expire_all_leases(db)
    assert reap_expired(db, 3) == 0
    with db.read() as session:
        assert session.scalars(select(Job.status)).all() == ["failed"]
