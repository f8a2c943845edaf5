"""Which queued jobs the end of a job of a limited key wakes: the first ones, found without sorting all."""

from __future__ import annotations

import random
from typing import Any

import pytest
from sqlalchemy import event, select, update

from app.db.clock import ClockName, in_seconds
from app.db.database import Database
from app.db.models import ApiKey, Job
from app.lifecycle.settle import waiting_for
from app.lifecycle.states import IN_ORDER, get_job
from tests.ledger.support import OWNER, add_job, add_owner, open_ledger


@pytest.fixture
def queue(db: Database) -> list[str]:
    """Jobs of one key on three data sets, of several priorities; the first one runs, others wait after a crash."""
    chance, jobs = random.Random(5), list[str]()
    add_owner(db)
    datasets = [open_ledger(db) for _ in range(3)]
    with db.write() as session:
        for number in range(40):
            jobs.append(add_job(session, chance.choice(datasets)))
            job = session.get_one(Job, jobs[-1])
            job.spec = job.spec | {"priority": chance.randrange(4)}
            if number % 7 == 3:
                session.flush()
                later = {"lease_until": in_seconds(3600.0), "lease_clock": ClockName()}
                session.execute(update(Job).where(Job.id == job.id).values(later))
        session.get_one(Job, jobs[0]).status = "running"
        add_job(session, datasets[0], study={"version": 1}, name="a study is claimed by nobody")
    return jobs


@pytest.mark.parametrize("limit", [0, 1, 2, 9, 100])
def test_the_first_jobs_are_those_of_all_in_order(db: Database, queue: list[str], limit: int) -> None:
    with db.write() as session:
        session.execute(update(ApiKey).where(ApiKey.id == OWNER).values(max_running_jobs=limit))
    with db.write() as session:
        ended = get_job(session, queue[0], lock=True)
        due = (Job.status == "queued", Job.study.is_(None), Job.lease_until.is_(None))
        right = list(session.scalars(select(Job.id).where(*due).order_by(*IN_ORDER)))
        assert len(right) > 30 and waiting_for(session, ended) == right[:limit]
        waits = get_job(session, right[0], lock=True)  # one that is paused while it waits: another may run for it
        assert waiting_for(session, waits) == right[1:][: max(0, limit - 1)]


def test_no_statement_sorts_the_queue(db: Database, queue: list[str]) -> None:
    if db.engine.dialect.name != "sqlite":  # its plan depends on statistics: bench_claims measures it
        return
    with db.write() as session:
        session.execute(update(ApiKey).where(ApiKey.id == OWNER).values(max_running_jobs=1))
    sent = list[tuple[str, Any]]()
    event.listen(db.engine, "before_cursor_execute", lambda *each: sent.append((each[2], each[3])))
    with db.write() as session:
        waiting_for(session, get_job(session, queue[0], lock=True))
    with db.engine.connect() as connection:
        for statement, values in [each for each in sent if "SELECT" in each[0]]:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()
            assert not any("TEMP B-TREE" in row[3] for row in plan), statement
