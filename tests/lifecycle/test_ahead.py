"""The forecast of a start is what the claims then do: by turns, weights, priorities and limits."""

from __future__ import annotations

from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from sqlalchemy import delete, update

from app.db.database import Database
from app.db.models import ApiKey, Dataset, Job, Worker
from app.lifecycle.queue.fair import claim_next
from app.lifecycle.queue.queue_forecast import Ahead, ahead_of
from app.lifecycle.settle import settle, settlement_of
from app.lifecycle.states import ACTIVE, get_job
from core.contracts.job_spec import JobSpec
from core.ids import now
from tests.by_night import but
from tests.factories import add_dataset, add_key, job_spec
from tests.lifecycle.conftest import Submit
from tests.lifecycle.test_fair import BOTH, CHEAP, NO_RECORDS


@pytest.fixture
def backing() -> str:
    return "sqlite"


def add_workers(db: Database, count: int, *kinds: str) -> None:
    with db.write() as session:
        for number in range(count):
            devices = [{"kind": kind, "index": 0, "name": kind, "memory_bytes": 1} for kind in kinds or ("cpu",)]
            found = Worker(name=f"{kinds}{number}", host="h", pid=1, started_at=now(), seen_at=now(), devices=devices)
            session.add(found)


def forecast(db: Database, key: str, dataset: str, **changes: Any) -> Ahead | None:
    with db.read() as session:
        owner = session.get_one(Dataset, dataset).owner_key
        return ahead_of(session, key, owner, JobSpec.model_validate(job_spec(dataset, **CHEAP, **changes)), 30.0)


def claims_until(db: Database, job_id: str, workers: int) -> tuple[int, int]:
    """Claims as so many workers do, the oldest of whose jobs ends first. Returns how many other jobs were claimed
    before, and how many ended."""
    with db.read() as session:
        running = [job.id for job in session.query(Job).filter(Job.status.in_(ACTIVE)).order_by(Job.started_at, Job.id)]
    claims = ends = 0
    while True:
        if len(running) >= workers or (held := claim_next(db, NO_RECORDS, "w", 600.0, BOTH)) is None:
            with db.write() as session:
                settle(session, settlement_of(session, get_job(session, running.pop(0)), "cancelled"))
            ends += 1
            continue
        if held.job_id == job_id:
            return claims, ends
        running.append(held.job_id)
        claims += 1


# By day each number of workers, and each priority, once.
BY_DAY = [(1, -3), (2, 0), (3, 5)]


@pytest.mark.parametrize(("workers", "priority"), but(product([1, 2, 3], [-3, 0, 5]), BY_DAY.__contains__))
def test_claims_come_as_forecast(db: Database, submit: Submit, workers: int, priority: int) -> None:
    """Two owners; a heavy key, a limited key, one with jobs of several priorities; two jobs run already."""
    mine, other = add_dataset(db), add_dataset(db)
    with db.write() as session:
        me, heavy, limited = add_key(session), add_key(session), add_key(session)
        session.execute(update(ApiKey).where(ApiKey.id == heavy).values(weight=3))
        session.execute(update(ApiKey).where(ApiKey.id == limited).values(max_running_jobs=1))
        session.get_one(Dataset, other).owner_key = heavy
    queue = [(mine, me, 0), (mine, me, 5), (mine, heavy, 0), (other, limited, 10), (mine, limited, 0), (mine, me, -3)]
    for number, (dataset, key, own) in enumerate(queue * 2):
        submit(dataset, key, f"k{number}", priority=own, **CHEAP)
    for _ in range(min(2, workers)):
        claim_next(db, NO_RECORDS, "w", 600.0, BOTH)
    add_workers(db, workers)
    found = forecast(db, me, mine, priority=priority)
    job_id = submit(mine, me, "new", priority=priority, **CHEAP)
    claims, ends = claims_until(db, job_id, workers)
    assert found == Ahead(claims, ends / workers) and claims > 0


def test_a_free_worker_takes_it_at_once_and_without_one_there_is_no_forecast(db: Database, submit: Submit) -> None:
    dataset = add_dataset(db)
    with db.write() as session:
        key = add_key(session)
    assert forecast(db, key, dataset) is None
    add_workers(db, 1)
    with db.write() as session:
        session.execute(update(Worker).values(volume="vol_a"))
    assert forecast(db, key, dataset) is None, "an ingest worker runs no job"
    with db.write() as session:
        session.execute(delete(Worker))
    add_workers(db, 2)
    assert forecast(db, key, dataset) == Ahead(0, 0.0)
    assert forecast(db, key, dataset, runtime={"device": "cuda"}) is None
    add_workers(db, 1, "cuda")
    assert forecast(db, key, dataset, runtime={"device": "cuda"}) == Ahead(0, 0.0)
    with db.write() as session:
        session.execute(update(Worker).values(seen_at=now() - timedelta(minutes=5)))
    assert forecast(db, key, dataset) is None


def test_a_worker_with_a_gpu_is_taken_by_jobs_of_both_kinds(db: Database, submit: Submit) -> None:
    dataset = add_dataset(db)
    with db.write() as session:
        key = add_key(session)
    add_workers(db, 1, "cuda")
    for number in range(2):
        submit(dataset, key, f"k{number}", runtime={"device": "cuda"}, **CHEAP)
    held = claim_next(db, NO_RECORDS, "('cuda',)0", 600.0, BOTH)
    assert held is not None
    assert forecast(db, key, dataset) == Ahead(1, 2.0), "its only worker runs a GPU's job, and one more waits before it"
    add_workers(db, 1)
    assert forecast(db, key, dataset) == Ahead(0, 0.0), "a processor is free, and the job that waits is none for it"
    with db.write() as session:
        session.execute(update(Worker).where(Worker.name != "('cuda',)0").values(finishes=True))
    assert forecast(db, key, dataset) == Ahead(1, 2.0), "one that finishes its release's jobs takes no new one"


def test_a_long_queue_is_played_to_a_bound(db: Database, submit: Submit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.lifecycle.queue.queue_forecast.MOST_CLAIMS", 2)
    dataset = add_dataset(db)
    with db.write() as session:
        key = add_key(session)
    for number in range(4):
        submit(dataset, key, f"k{number}", **CHEAP)
    add_workers(db, 1)
    found = forecast(db, key, dataset)
    assert found == Ahead(2, 1.0, is_whole=False)
