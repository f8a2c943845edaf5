"""Why a job failed: callers are told what no private record can have caused, the operator is told the cause."""

from __future__ import annotations

from typing import get_args

import pytest
from prometheus_client import generate_latest
from sqlalchemy import select

from app.db.database import Database
from app.db.models import AuditEntry, JobEvent
from app.keys.service import Caller
from app.lifecycle.failures import TOLD
from app.lifecycle.measures import Measures
from app.settings import Settings
from app.system.prometheus import make_registry, registry_for
from core.contracts.stored_documents import Failure
from tests.by_night import ON_SQLITE_BY_DAY
from tests.factories import add_dataset
from tests.lifecycle.conftest import Submit, claimed, job_row
from worker.messages import FailureCode

# Each may follow from private data: how many records there are, how long, or what one of them is. A GPU that cannot be
# used fails no job (the supervisor takes the attempt for lost), and would be hidden like the rest.
HIDDEN = {"device", "out-of-memory", "privacy-invariant", "protocol", "internal", "worker-crashed"}
OF_ATTEMPTS = [*get_args(FailureCode), "nobody-thought-of-it"]


def test_every_code_of_an_attempt_is_decided_on() -> None:
    """A new one is told to callers only where app.lifecycle.failures says why no record can have caused it."""
    assert set(get_args(FailureCode)) <= HIDDEN | set(TOLD)
    assert not HIDDEN & set(TOLD)


@ON_SQLITE_BY_DAY
@pytest.mark.parametrize("code", OF_ATTEMPTS)
def test_on_private_data_a_cause_that_may_follow_from_them_is_internal(
    db: Database, submit: Submit, settings: Settings, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Claim: on private data a failure is of a closed set, whatever its cause
    Now: `internal`, but for causes that no record can have
    """
    job_id = submit()
    log = claimed(db, job_id)
    log.start_block(1, 2)
    log.fail(code, f"It failed: {code}.")
    failure = job_row(db, job_id).failure
    assert failure is not None and failure.code == (code if code in TOLD else "internal")
    with db.read() as session:
        event = session.scalars(select(JobEvent).where(JobEvent.job_id == job_id, JobEvent.type == "failed")).one()
        assert {name: event.data[name] for name in ("code", "message")} == failure.model_dump()
        entry = session.scalars(select(AuditEntry).where(AuditEntry.action == "job.failed")).one()
        assert (entry.target, entry.outcome, entry.details["because"]) == (job_id, "failed", code)
    if code not in TOLD and code != "internal":
        assert code not in str(failure) + str(event.data)
    assert f"job {job_id} failed: {code}" in caplog.messages
    whole = make_registry(db, settings, Measures(db))
    analyst, admin = (Caller(f"key_{role}", role, role) for role in ("analyst", "admin"))
    line = f'scrimp_job_failures{{cause="{code}"}} 1.0'
    assert line in generate_latest(registry_for(admin, db, whole)).decode()
    assert "scrimp_job_failures" not in generate_latest(registry_for(analyst, db, whole)).decode()


def test_on_public_data_the_cause_is_told(db: Database, submit: Submit) -> None:
    public = add_dataset(db, privacy={"sensitivity": "public", "records": 100})
    log = claimed(db, job_id := submit(public, privacy=None, evaluation=None))
    log.fail("out-of-memory", "The attempt ran out of memory.")
    assert job_row(db, job_id).failure == Failure(code="out-of-memory", message="The attempt ran out of memory.")


def test_a_crash_is_not_told_from_other_failures(db: Database, submit: Submit) -> None:
    """A process that dies by itself may have died of private lengths; a worker that is lost fails no job."""
    job_id = submit()
    for _ in range(30):
        log = claimed(db, job_id)
        log.start_block(1, 2)
        log.gone("lost")
    assert job_row(db, job_id).status == "queued"
    for _ in range(3):
        claimed(db, job_id).gone("crashed")
    failure = job_row(db, job_id).failure
    assert failure is not None and failure.code == "internal" and "crash" not in str(failure)
