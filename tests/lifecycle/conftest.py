"""An admitted job without the API: row, hold, event, message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import update

from app.admission.choices import closed
from app.admission.job_rules import check
from app.admission.lookup import dataset_facts
from app.admission.request import on_device
from app.db.database import Database
from app.db.models import Account, Dataset, Job
from app.keys.service import Caller
from app.lifecycle.attempts import AttemptLog
from app.lifecycle.claims import claim
from app.lifecycle.queue.presence import MOST_GPUS
from core.contracts.job_spec import JobSpec
from core.privacy.price_requests import PlanRequest
from core.privacy.prices import Price
from core.privacy.pricing import price
from tests.conftest import BACKINGS
from tests.factories import AT_ONCE, add_dataset, add_key, admit, job_spec

Submit = Callable[..., str]


@pytest.fixture(params=BACKINGS)
def backing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class PlainPricing:
    """The real prices, made in this process: the helper process has tests of its own."""

    def of(self, _key_id: str) -> PlainPricing:
        return self

    def price(self, request: PlanRequest) -> Price:
        return price(request)


@pytest.fixture
def submit(db: Database) -> Submit:
    """Admits a job on a fresh data set (10,000 records, hold-out of a fifth, cap 4 at 1e-5, filter gdp)."""

    def submitted(dataset: str | None = None, by: str | None = None, once: str = "once", **changes: Any) -> str:
        dataset = dataset or add_dataset(db)
        with db.write() as session:
            key = by or add_key(session)
        spec = JobSpec.model_validate(job_spec(dataset, **changes))
        with db.read() as session:
            facts = dataset_facts(session, session.get_one(Dataset, dataset))
            most_gpus = session.execute(MOST_GPUS, {"lease_s": 30.0}).scalar_one()
            planned = check(closed(on_device(spec, most_gpus)[0], facts).spec, facts)
        priced = PlainPricing().price(planned.pricing) if planned.pricing else Price.nothing()
        with db.write() as session:
            return admit(session, Caller(key, "test", "admin"), planned, priced, once)

    return submitted


def claimed(db: Database, job_id: str, worker: str = "w") -> AttemptLog:
    """A claim of a queued job, also while it waits for having been taken back."""
    no_wait(db, job_id)
    with db.write() as session:
        held = claim(session, job_id, worker, 30.0)
    assert held is not None
    return AttemptLog(db, held, lease_s=30.0, max_attempts=3, cadence=AT_ONCE)


def no_wait(db: Database, job_id: str) -> None:
    with db.write() as session:
        queued = update(Job).where(Job.id == job_id, Job.status == "queued")
        session.execute(queued.values(lease_until=None))


def job_row(db: Database, job_id: str) -> Job:
    with db.read() as session:
        return session.get_one(Job, job_id)


def balances(db: Database, job_id: str) -> tuple[int, int, int, int]:
    """(train spent, train held, hold-out spent, hold-out held) of the job's data set."""
    with db.read() as session:
        row = session.get_one(Account, session.get_one(Job, job_id).dataset_id)
        return row.train_spent, row.train_held, row.holdout_spent, row.holdout_held
