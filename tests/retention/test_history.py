"""What is kept of jobs that ended long ago, and what nothing shortens."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import DatabaseError

from app.audit import audit_chain
from app.db.database import Database
from app.db.models import Attempt, Job, JobEvent, Metric
from app.ledger.certificates import verify as signed
from app.ledger.verification import verify
from app.lifecycle import mark_survey
from app.lifecycle.marks import Mark, Marks
from app.retention import history
from app.retention import service as retention
from app.settings import Settings
from app.system import collectors
from core.contracts.stored_documents import Number
from core.ids import now
from tests.conftest import BACKINGS
from tests.conftest import Api as Roles
from tests.factories import release
from tests.lifecycle.conftest import Submit, claimed
from tests.lifecycle.conftest import submit as submit_fixture
from tests.lifecycle.test_relay import relay_of

submit = submit_fixture
DAYS = 30.0
SHORT = {"history_kept_days": DAYS, "artifacts_kept_days": DAYS, "content_kept_days": DAYS}
# Tables that no setting shortens, whatever it is.
FOR_EVER = (
    *("accounts", "audit_entries", "blocks", "certificates", "datasets", "declarations", "jobs", "ledger_entries"),
    *("signing_keys", "spent_by_key"),
)
SCORE = {"name": "accuracy", "step": 50, "value": 0.5, "std": 0.01, "on": "holdout", "released_by": "noisy_count"}


@pytest.fixture(params=BACKINGS)  # triggers differ
def backing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def trained(db: Database, job_id: str) -> None:
    """An attempt that was lost, and one that ends with a score."""
    claimed(db, job_id).gone("lost")
    log = claimed(db, job_id)
    log.start_block(1, 50)
    log.record_digest(50, "ab" * 32)
    release(log, SCORE)
    log.succeed([], 50, [])


def ended_days_ago(db: Database, job_id: str, days: float) -> None:
    with db.write() as session:
        session.get_one(Job, job_id).finished_at = now() - timedelta(days=days)


def rows(db: Database, job_id: str) -> tuple[int, int, list[str]]:
    """Attempts, scores and the types of events that are here."""
    with db.read() as session:
        attempts, scores = (
            session.scalar(select(func.count()).where(table.job_id == job_id)) or 0 for table in (Attempt, Metric)
        )
        events = select(JobEvent.type).where(JobEvent.job_id == job_id).order_by(JobEvent.seq)
        return attempts, scores, list(session.scalars(events))


def counted(db: Database, table: str) -> int:
    with db.read() as session:
        return int(session.scalar(text(f"SELECT count(*) FROM {table}")) or 0)  # noqa: S608 - names of FOR_EVER


def attempts_shown(db: Database) -> dict[str, float]:
    """What /metrics says of attempts, by name and outcome."""
    with db.read() as session:
        families = list(collectors._attempts(session))
    return {f"{each.name} {one.labels.get('outcome', '')}": one.value for each in families for one in each.samples}


def test_a_job_that_ended_long_ago_is_shortened_and_its_certificate_stays(
    api: Roles, db: Database, settings: Settings, submit: Submit
) -> None:
    old, young = submit(), submit(once="two")
    for job_id in (old, young):
        trained(db, job_id)
    relay_of(db, settings, lambda _job: None).run_once()
    audit_chain.seal(db)
    ended_days_ago(db, old, DAYS + 1)
    ended_days_ago(db, young, DAYS - 1)
    path = f"/v1/jobs/{old}/certificate"
    certificate = api.client.get(path, headers=api.headers("admin")).json()
    full, shown = rows(db, young), attempts_shown(db)
    assert full[:2] == (2, 1) and rows(db, old) == full
    retention.sweep(db, settings.model_copy(update={"history_kept_days": DAYS}))
    assert rows(db, old) == (0, 0, [each for each in full[2] if each in (*history.LASTING, "certificate_issued")])
    assert rows(db, young) == full
    assert attempts_shown(db) == shown, "a counter never falls"
    assert shown["scrimp_attempts lost"] == 2 and shown["scrimp_claims "] == 4
    again = api.client.get(path, headers=api.headers("admin")).json()
    assert again == certificate and signed(again)
    assert [each["name"] for each in again["certificate"]["released"]["metrics"]] == ["accuracy"]
    view = api.client.get(f"/v1/jobs/{old}", headers=api.headers("admin"))
    assert view.status_code == 200 and view.json()["attempts"] == [] and view.json()["status"] == "succeeded"
    events = api.client.get(f"/v1/jobs/{old}/events", headers=api.headers("admin"))
    assert events.status_code == 200 and "succeeded" in events.text, "a reader who comes late gets its end"
    assert history.sweep(db, DAYS) == 0, "once more does nothing"


def test_nothing_is_shortened_before_its_certificate_is_there(db: Database, settings: Settings, submit: Submit) -> None:
    job_id = submit()
    trained(db, job_id)
    ended_days_ago(db, job_id, DAYS + 1)
    before = rows(db, job_id)
    assert history.sweep(db, DAYS) == 0 and rows(db, job_id) == before
    relay_of(db, settings, lambda _job: None).run_once()
    assert history.sweep(db, DAYS) == 1 and rows(db, job_id)[:2] == (0, 0)


def test_nothing_is_shortened_while_a_mark_is_compared_with_it(
    db: Database, settings: Settings, submit: Submit
) -> None:
    """A survey that found the released scores gone would close the data set, and a restore would post them again."""
    job_id, marks = submit(), Marks.of(settings)
    trained(db, job_id)
    ended_days_ago(db, job_id, DAYS + 1)
    relay_of(db, settings, lambda _job: None).run_once()
    with db.read() as session:
        dataset = session.get_one(Job, job_id).dataset_id
    released = Number.model_validate(SCORE)
    marks.append(Mark(job=job_id, dataset=dataset, attempt=2, steps_started=50, released=(released,)), after=0)
    retention.sweep(db, settings.model_copy(update={"history_kept_days": DAYS}))
    assert mark_survey.compare(db, marks).short == {}
    marks.remove(job_id)
    retention.sweep(db, settings.model_copy(update={"history_kept_days": DAYS}))
    assert rows(db, job_id)[:2] == (0, 0)


def test_a_sweep_is_bounded(db: Database, settings: Settings, submit: Submit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "AT_ONCE", 2)
    for number in range(3):
        job_id = submit(once=str(number))
        trained(db, job_id)
        ended_days_ago(db, job_id, DAYS + 1)
    relay_of(db, settings, lambda _job: None).run_once()
    assert [history.sweep(db, DAYS) for _ in range(3)] == [2, 1, 0]


def test_no_setting_shortens_the_ledger_the_audit_log_or_what_others_verify(
    api: Roles, db: Database, settings: Settings, submit: Submit
) -> None:
    job_id = submit()
    trained(db, job_id)
    relay_of(db, settings, lambda _job: None).run_once()
    audit_chain.seal(db)
    ended_days_ago(db, job_id, 10_000)
    before = {table: counted(db, table) for table in FOR_EVER}
    assert before["ledger_entries"] >= 3 and before["audit_entries"] >= 1 and before["blocks"] == 1
    retention.sweep(db, settings.model_copy(update=SHORT))
    assert rows(db, job_id)[:2] == (0, 0), "it was swept"
    after = {table: counted(db, table) for table in FOR_EVER}
    assert {table: after[table] - count for table, count in before.items() if after[table] < count} == {}
    with db.read() as session:
        dataset = session.get_one(Job, job_id).dataset_id
        assert verify(session, dataset).valid


@pytest.mark.parametrize("table", ["ledger_entries", "audit_entries"])
def test_the_database_refuses_to_shorten_ledger_and_audit_log(
    db: Database, settings: Settings, submit: Submit, api: Roles, table: str
) -> None:
    trained(db, submit())
    api.client.get("/v1/jobs", headers=api.headers("admin"))
    audit_chain.seal(db)
    before = counted(db, table)
    assert before > 0
    with pytest.raises(DatabaseError, match=r"DELETE is refused|append-only|sealed"), db.write() as session:
        session.execute(text(f"DELETE FROM {table}"))  # noqa: S608 - of the parameters
    assert counted(db, table) == before
