"""The few statements of an admission answer what the plain ones answer one by one, on both databases."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from app.admission import hold, job_rows, standing
from app.admission.choices import closed
from app.admission.hold import new_job
from app.admission.job_rows import NewJob
from app.admission.job_rules import check
from app.admission.lookup import dataset_facts, look_up
from app.admission.price import Priced
from app.admission.request import Limits, Request
from app.admission.standing import Standing
from app.datasets.repository import check_content
from app.db.database import Database
from app.db.models import (
    Account,
    AuditEntry,
    Dataset,
    Job,
    JobEvent,
    LedgerCheck,
    Outbox,
    Webhook,
    WebhookEvent,
    table_of,
)
from app.db.statement_batch import Together, row_of
from app.db.trip import round_trip
from app.grants import service as grants
from app.keys.service import Caller, create
from app.ledger import accounts, behind
from app.ledger.transparency.heads import Head
from core.contracts.job_spec import JobSpec
from core.errors import Conflict, NotFound, ServiceError
from core.ids import now
from core.privacy.pricing import price
from tests.factories import add_dataset, job_spec, share

PEPPER = b"p" * 32
Made = tuple[Priced, NewJob]


def callers(db: Database, dataset: str) -> list[Caller]:
    """An admin, the data set's owner, another owner, an analyst with a grant and one without, a viewer."""
    with db.write() as session:
        owner = session.get_one(Dataset, dataset).owner_key
        keys = [create(session, PEPPER, name=role, role=role, created_by=None)[0] for role in ("admin", "analyst")]
        share(session, dataset)
        keys += [create(session, PEPPER, name=role, role=role, created_by=None)[0] for role in ("owner", "analyst")]
        found = [Caller(key.id, key.name, key.role) for key in keys]
    return [Caller(owner, "owner", "owner"), *found]


def made(db: Database, caller: Caller, dataset: str, once: str) -> Made:
    """A priced job that is not written yet."""
    spec = JobSpec.model_validate(job_spec(dataset))
    with db.read() as session:
        facts = dataset_facts(session, session.get_one(Dataset, dataset))
        checked = check(closed(spec, facts).spec, facts)
    assert checked.pricing is not None
    priced = Priced(checked, price(checked.pricing))
    return priced, new_job(Request(caller, spec, Limits()), priced, once)


def write(db: Database, caller: Caller, priced: Priced, job: NewJob) -> Any:
    with db.write() as session, round_trip(session.connection()) as trip:
        key = job_rows.write(trip, job, priced.price.charge)
    return key.one_or_none()


def stands(session: Session, caller: Caller, dataset: str, recorded: Head | None, limit: int) -> Standing:
    with round_trip(session.connection()) as trip:
        replies = standing.ask(trip, caller.id, {dataset: recorded}, limit)
    return standing.read(caller, replies, {dataset: recorded})


def queued(session: Session, key_id: str) -> int:
    jobs = select(func.count()).where(Job.key_id == key_id, Job.status.in_(("queued", "paused")))
    return session.scalar(jobs) or 0


def plain(session: Session, caller: Caller, dataset: str, once: str) -> Any:
    try:
        row, access = grants.find(session, caller, dataset)
    except NotFound:
        return None
    before = session.execute(hold.ONCE, {"key": caller.id, "once": once}).one_or_none()
    return access, dataset_facts(session, row), None if before is None else tuple(before)


def test_looking_up_finds_what_plain_queries_find(db: Database) -> None:
    private, public = add_dataset(db), add_dataset(db, privacy={"sensitivity": "public"})
    for caller in callers(db, private):
        priced, job = made(db, caller, private, "mine")
        assert write(db, caller, priced, job).id == caller.id
        with db.read() as session:
            names = [private, public, session.get_one(Dataset, private).name, "missing", ""]
            for name in names:
                for once in ("mine", "other"):
                    found = look_up(session.connection(), caller, name, once, 30.0)
                    said = None if found is None else (found.access, found.facts, found.before)
                    assert said == plain(session, caller, name, once)


def problem(session: Session, recorded: Head | None, dataset: str) -> str | None:
    try:
        behind.require_current(session, recorded, dataset)
    except Conflict as error:
        return str(error.members["problem"])
    return None


def test_standing_is_what_plain_queries_say(db: Database) -> None:
    dataset = add_dataset(db)
    with db.write() as session:
        for number in range(3):
            named: dict[str, Any] = {"dataset_id": dataset, "job_id": f"job_{number}", "actor": "test"}
            accounts.hold(session, **named, train=5, holdout=0)
        account = session.get_one(Account, dataset)
        head = Head.of(account, "owner", ())
    wrong, later = head.model_copy(update={"head": "0" * 64}), head.model_copy(update={"seq": head.seq + 1})
    older = head.model_copy(update={"seq": 2})
    for caller in callers(db, dataset):
        for number in range(2):
            priced, job = made(db, caller, dataset, f"{number}")
            write(db, caller, priced, job)
        for recorded in (None, head, wrong, later, older):
            with db.write() as session:
                found = stands(session, caller, dataset, recorded, 10)
                assert found.access == grants.access_by_id(session, caller, dataset)
                assert found.queued == queued(session, caller.id) == 2
                assert found.problem == problem(session, recorded, dataset)
                assert stands(session, caller, dataset, recorded, 0).queued == 1
    with db.write() as session:
        session.add(LedgerCheck(dataset_id=dataset, problem="broken"))
    with db.write() as session:
        assert stands(session, caller, dataset, head, 10).problem == "broken"


@pytest.mark.parametrize("column", ["retired_at", "content_deleted_at"])
def test_standing_refuses_content_that_is_gone(db: Database, column: str) -> None:
    dataset = add_dataset(db)
    caller = callers(db, dataset)[0]
    with db.write() as session:
        session.execute(update(Dataset).where(Dataset.id == dataset).values({column: now() - timedelta(hours=1)}))
    for read in (
        lambda s: stands(s, caller, dataset, None, 1),
        lambda s: check_content(s, [dataset]),
    ):
        with db.write() as session, pytest.raises(ServiceError) as refused:
            read(session)
        assert refused.value.code == "content-deleted"


@pytest.mark.parametrize("announced", [False, True])
def test_a_job_is_written_with_everything_that_belongs_to_it(db: Database, announced: bool) -> None:
    dataset = add_dataset(db)
    caller = callers(db, dataset)[0]
    if announced:
        with db.write() as session:
            session.add(webhook(caller))
    priced, job = made(db, caller, dataset, "one")
    assert write(db, caller, priced, job).id == caller.id
    with db.read() as session:
        stored = session.execute(select(table_of(Job)).where(table_of(Job).c.id == job.id)).one()._mapping
        assert {name: stored[name] for name in vars(job)} == vars(job)
        assert (stored["attempt"], stored["ran_s"], stored["started_at"]) == (0, 0.0, None)
        event = session.scalars(select(JobEvent).where(JobEvent.job_id == job.id)).one()
        assert (event.seq, event.type, event.data) == (
            1,
            "queued",
            {"charge": priced.price.charge.model_dump(mode="json")},
        )
        message = session.scalars(select(Outbox).where(Outbox.job_id == job.id)).one()
        assert message.topic == "notify"
        entry = session.scalars(select(AuditEntry).where(AuditEntry.target == job.id)).one()
        assert (entry.action, entry.outcome, entry.details) == ("job.submitted", "done", {"dataset": dataset})
        assert session.scalar(select(func.count()).select_from(WebhookEvent)) == int(announced)


def webhook(caller: Caller) -> Webhook:
    named = {"id": "wh_1", "key_id": caller.id, "url": "http://127.0.0.1:1", "description": "", "secret": "s"}
    return Webhook(**named, events=[], enabled=True, created_at=now())


def test_a_part_needs_every_value_that_only_python_knows() -> None:
    with pytest.raises(ValueError, match="jobs: give a value for attempt"):
        row_of(table_of(Job), "id")


def test_parts_and_the_last_statement_happen_together_or_not_at_all(db: Database) -> None:
    outbox = table_of(Outbox)
    whole = Together(select(func.count()).select_from(table_of(Job)), row_of(outbox, "topic", "job_id", "created_at"))
    values = {"outbox_topic": "notify", "outbox_job_id": "missing", "outbox_created_at": now()}
    with pytest.raises(Exception, match=r"(?i)foreign key"), db.write() as session:
        whole.execute(session.connection(), values).one()
    with db.read() as session:
        assert session.scalar(select(func.count()).select_from(Outbox)) == 0
