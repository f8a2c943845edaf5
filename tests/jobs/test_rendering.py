"""The rendered documents of jobs are those of `JobView`, whatever state a job is in."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
from sqlalchemy import select, update

from app.admission.choices import closed
from app.admission.job_rules import check
from app.admission.lookup import dataset_facts
from app.db.database import Database
from app.db.models import Attempt, Dataset, Job, LedgerEntry, Metric, table_of
from app.db.row_view import Column, Computed
from app.jobs import repository
from app.jobs.rendering import job_json, page_json
from app.jobs.schemas import JobSource, JobView
from app.keys.service import Caller
from app.ledger import accounts
from app.lifecycle.queue.presence import GpuWorkers
from core.contracts.job_spec import JobSpec
from core.ids import whole_second
from core.privacy.prices import Price, Units
from core.privacy.pricing import price
from tests.factories import add_dataset, add_key, admit, job_spec

STATES: list[dict[str, Any]] = [
    {},
    {"status": "running", "step": 3, "steps_started": 5, "device": "cpu", "attempt": 1},
    {"status": "succeeded", "step": 50, "steps_started": 50, "tags": "a,b", "notes": 'ü "x"\n'},
    {"status": "failed", "failure": {"code": "no", "message": "no"}, "warnings": ["first", "second"]},
]


# Columns that are the service's own: who submitted a job and how, its turn, its lease, its steps' noise.
NOT_SHOWN = {"key_id", "idempotency_key", "request_sha256", "traceparent", "notified_at", "cancel_requested_at"}
NOT_SHOWN |= {"attempt", "worker", "lease_until", "lease_clock", "threads", "fitted_rows", "ran_s", "events"}
NOT_SHOWN |= {"mechanism", "release", "segments", "trial", "trial_number", "card", "lane", "priority"}


class Planted(JobView):
    """A job's answer with members that a change might add."""

    worker: str | None
    seconds: Annotated[float, Computed(lambda of: of.job.ran_s, "ran_s")]
    key: Annotated[str, Column("key_id")]


def test_the_columns_and_the_members_follow_from_the_fields(db: Database) -> None:
    """A member is declared once."""
    assert Planted.columns() == (*JobView.columns(), "worker", "ran_s", "key_id")
    job = SimpleNamespace(**dict.fromkeys(Planted.columns()) | {"worker": "w", "ran_s": 2.5, "key_id": "key_1"})
    job = SimpleNamespace(**vars(job) | {"tags": "", "created_at": whole_second(), "steps": 1, "step": 0})
    nothing, parts = Units(train=0, holdout=0), {part: [] for part in repository.PARTS}
    more = Planted.members(JobSource(job, None, nothing, parts, GpuWorkers(db, 30.0)))
    assert [*more][-3:] == ["worker", "seconds", "key"] and (more["seconds"], more["key"]) == (2.5, "key_1")
    assert more.keys() | {"spec", "quote"} == Planted.model_fields.keys()


def unshown(columns: set[str]) -> set[str]:
    return columns - set(JobView.columns()) - NOT_SHOWN


def test_a_column_of_a_job_is_shown_or_is_said_not_to_be() -> None:
    """What no answer shows is not loaded for one. A new column is shown, or has its place in NOT_SHOWN."""
    columns = {each.name for each in table_of(Job).c}
    assert unshown(columns) == set() and columns - set(JobView.columns()) >= NOT_SHOWN
    assert unshown({*columns, "planted"}) == {"planted"}


def add(db: Database, dataset: str, number: int, **changes: Any) -> str:
    spec = JobSpec.model_validate(job_spec(dataset, name=f'nä"me {number}', **changes))
    with db.write() as session:
        key = add_key(session)
    with db.read() as session:
        facts = dataset_facts(session, session.get_one(Dataset, dataset))
        planned = check(closed(spec, facts).spec, facts)
    priced = price(planned.pricing) if planned.pricing else Price.nothing()
    with db.write() as session:
        return admit(session, Caller(key, "test", "admin"), planned, priced, f"once {number}")


@pytest.mark.parametrize("state", range(len(STATES)))
def test_a_rendered_job_is_its_view(db: Database, state: int) -> None:
    dataset = add_dataset(db)
    job_id = add(db, dataset, state, runtime={"device": "cuda"} if state == 0 else {})
    with db.write() as session:
        if STATES[state]:
            session.execute(update(Job).where(Job.id == job_id).values(started_at=whole_second(), **STATES[state]))
            at = whole_second()
            session.add(Attempt(job_id=job_id, number=1, worker="w", status="crashed", started_at=at, ended_at=at))
            number = {"value": 0.5, "std": 0.1, "on": "holdout", "released_by": "noisy_count"}
            session.add_all(Metric(job_id=job_id, name="accuracy", step=step, **number) for step in (1, 2))
        if STATES[state].get("status") == "succeeded":
            held = session.scalars(select(LedgerEntry).where(LedgerEntry.job_id == job_id)).one()
            amounts = {"train": held.train - 1, "holdout": held.holdout}
            accounts.post(session, dataset_id=dataset, job_id=job_id, actor="w", **amounts)
    gpus = GpuWorkers(db, 30.0)
    with db.read() as session:
        details = repository.details(session, [job_id])[job_id]
        view = JobView.of_job(session.get_one(Job, job_id), details, gpus)
        row = session.execute(select(*repository.SHOWN_AS_TEXT).where(table_of(Job).c.id == job_id)).one()
        rendered = job_json(row, details, gpus)
    assert json.loads(rendered) == json.loads(view.model_dump_json())
    assert json.loads(page_json([rendered] * 2, "next")) == {"items": [json.loads(rendered)] * 2, "next": "next"}
    assert json.loads(page_json([], None)) == {"items": [], "next": None}


def test_an_older_quote_is_completed(db: Database) -> None:
    job_id = add(db, add_dataset(db), 1)
    with db.write() as session:
        job = session.get_one(Job, job_id)
        job.quote = {name: value for name, value in job.quote.items() if name not in ("numerics", "model", "resolved")}
    with db.read() as session:
        row = session.execute(select(*repository.SHOWN_AS_TEXT).where(table_of(Job).c.id == job_id)).one()
        quote = json.loads(job_json(row, repository.details(session, [job_id])[job_id], GpuWorkers(db, 30.0)))["quote"]
    assert quote["numerics"] is None and quote["scores"] == [] and quote["jobs_that_fit"] is None
