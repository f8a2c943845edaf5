"""Searches and counts over many jobs read what they find, and say what all rows together say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from sqlalchemy import delete, event, func, insert, select, text, update
from sqlalchemy.orm import Session

from app.audit import record as audit
from app.audit.audit_chain import seal
from app.db.database import Database
from app.db.models import AuditEntry, AuditHead, Dataset, Job, JobTag, table_of
from app.jobs import counts, labels, repository
from app.jobs.list_routes import JobsQuery, page_asked
from app.jobs.repository import JOB
from app.keys.service import Caller
from app.lifecycle.states import FINISHED
from core.ids import now
from tests.chaos.tamper import unprotected
from tests.conftest import BACKINGS
from tests.ledger.support import add_job, add_owner, open_ledger
from tests.work import of_session

TAGS: tuple[list[str], ...] = (["paper"], ["paper", 'quoted "x"'], ["50%_off\\"], [])


@pytest.fixture(params=BACKINGS)
def backing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def dataset(db: Database) -> str:
    add_owner(db)
    return open_ledger(db)


def add(db: Database, dataset: str, count: int) -> list[str]:
    """Jobs of each status, with tags and names of their own."""
    made = []
    with db.write() as session:
        for n in range(count):
            job = session.get_one(Job, add_job(session, dataset))
            job.name, job.tags = f"Run {n} of the night", labels.stored(TAGS[n % len(TAGS)])
            job.status = (*FINISHED, "queued")[n % 4]
            job.finished_at = None if job.status == "queued" else now() - timedelta(hours=7 * n)
            made.append(job.id)
    return made


def pages(db: Database, **query: Any) -> tuple[list[str], int]:
    """The ids of all jobs that an admin's search finds, page by page; and how many pages that took."""
    ids, count, admin = list[str](), 0, Caller("key_admin", "admin", "admin")
    asked = JobsQuery.model_validate({"limit": 3} | query)
    with db.read() as session:
        page = page_asked(session, admin, asked)
        while True:
            rows, end = page.rows(session, [JOB.id, JOB.name, JOB.created_at])
            assert len(rows) <= page.limit
            ids, count = ids + [row.id for row in rows], count + 1
            if end is None:
                return ids, count
            page = replace(page, after=end)


TRUE_OF: dict[str, dict[str, Callable[[Any], bool]]] = {
    "tag": {
        tag: lambda job, tag=tag: f",{tag.lower()}," in job.tags  # type: ignore[misc]
        for tag in ("paper", 'QUOTED "x"', "50%_off\\", "50", "pap")
    },
    "q": {
        "OF THE n": lambda job: True,
        "run 1": lambda job: job.name.startswith("Run 1"),
        "xyzzy": lambda job: False,
        "%": lambda job: False,
        "job_": lambda job: True,
    },
    "status": {status: lambda job, status=status: job.status == status for status in ("failed", "queued")},  # type: ignore[misc]
}
ORDERS = {"newest": ("created_at", True), "oldest": ("created_at", False), "name": ("name", False)}


@pytest.mark.parametrize("bound", [1, 4, 1_000])
def test_a_search_finds_the_same_however_many_rows_a_page_looks_at(
    db: Database, dataset: str, monkeypatch: pytest.MonkeyPatch, bound: int
) -> None:
    for limit in ("LOOKED_AT", "LOOKED_UP"):
        monkeypatch.setattr(repository, limit, bound)
    add(db, dataset, 12)
    with db.read() as session:
        jobs = session.execute(select(table_of(Job))).all()
    for tag, text_, status in product(*([None, *values] for values in TRUE_OF.values())):
        query = {name: value for name, value in zip(TRUE_OF, (tag, text_, status), strict=True) if value is not None}
        right = [job for job in jobs if all(TRUE_OF[name][value](job) for name, value in query.items())]
        for sort, (column, falling) in ORDERS.items():
            right.sort(key=lambda job: (getattr(job, column), job.id), reverse=falling)
            assert pages(db, sort=sort, **query)[0] == [job.id for job in right], (query, sort)
    job = jobs[5].id
    assert pages(db, q=job[:-2])[0] == [job]
    assert pages(db, q=job) == ([job], 1), "a whole id is looked up"


def add_history(session: Session, start: int, count: int) -> None:
    """Copies of a job, a second apart: the first fifth has the tag `old`, all have `all`."""
    row = dict(session.execute(select(table_of(Job)).limit(1)).mappings().one())
    rows = [
        row
        | {"id": f"job_{n}", "idempotency_key": f"job_{n}", "tags": labels.stored(["all"] + ["old"] * (n < 100))}
        | {"created_at": row["created_at"] + timedelta(seconds=n), "name": f"Run {n}", "status": "failed"}
        for n in range(start, start + count)
    ]
    session.execute(insert(table_of(Job)), rows)
    if session.get_bind().dialect.name == "postgresql":  # as its housekeeping does
        session.execute(text("ANALYZE jobs, job_tags"))


SEARCHES: tuple[dict[str, str], ...] = (
    {"tag": "old"},
    {"tag": "old", "sort": "name"},
    {"tag": "all"},
    {"tag": "all", "status": "queued"},
    {"tag": "all", "q": "xyzzy"},
    {"tag": "nowhere"},
    {"q": "xyzzy"},
    {"q": "xyzzy", "sort": "name"},
    {"q": "xyzzy", "status": "failed"},
    {"q": "xyzzy", "dataset": ""},
    {"q": "run"},
)


def test_a_page_takes_the_same_work_however_many_jobs_there_are(
    db: Database, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tag that only old jobs had took 108 ms at 200,000 jobs, a search in vain 73 ms, one of a common tag 88 s."""
    for limit in ("LOOKED_AT", "LOOKED_UP"):
        monkeypatch.setattr(repository, limit, 50)
    add(db, dataset, 1)
    queries = [query | ({"dataset": dataset} if "dataset" in query else {}) for query in SEARCHES]
    # An owner sees all of these jobs by rights that are conditions.
    with db.read() as session:
        owner = Caller(session.get_one(Dataset, dataset).owner_key, "owner", "owner")
    readers = [(Caller("key_admin", "admin", "admin"), query) for query in queries] + [(owner, {}), (owner, {"q": "x"})]

    def work() -> list[int]:
        effort = []
        with db.read() as session:
            for caller, query in readers:
                page = page_asked(session, caller, JobsQuery.model_validate(query | {"limit": 10}))
                done = of_session(session, "jobs")
                page.rows(session, [JOB.id, JOB.name, JOB.created_at])
                effort.append(done())
        return effort

    with db.write() as session:
        add_history(session, 0, 500)
    few = work()
    with db.write() as session:
        add_history(session, 500, 1_500)
    many = work()
    for query, small, large in zip(readers, few, many, strict=True):
        assert large <= small + 15, query


def test_rows_of_tags_follow_the_column_whoever_writes_it(db: Database, dataset: str) -> None:
    job = add(db, dataset, 1)[0]

    def rows() -> list[str]:
        with db.read() as session:
            return sorted(session.scalars(select(JobTag.tag).where(JobTag.job_id == job)))

    assert rows() == ["paper"]
    for tags, right in ((",b,a,", ["a", "b"]), ("", []), (",ö,", ["ö"])):
        with db.write() as session:  # as a process of an older release does
            session.execute(text("UPDATE jobs SET tags = :tags WHERE id = :job"), {"tags": tags, "job": job})
        assert rows() == right


def test_counts_are_those_of_all_rows_as_jobs_come_and_end(db: Database, dataset: str) -> None:
    """What ended a day ago is counted once."""
    other = open_ledger(db)

    def right(*conditions: Any) -> dict[str, int]:
        with db.read() as session:
            return dict(Counter(session.scalars(select(Job.status).where(*conditions))))

    def counted(dataset_id: str | None = None) -> dict[str, int]:
        with db.read() as session:
            return counts.jobs_by_status(db, session, None, dataset_id)

    assert counted() == {}
    # No job ends in the past: the count begins with these.
    counts._KEPT.pop(db)
    jobs = [*add(db, dataset, 16), *add(db, other, 8)]
    assert counted() == right() and sum(counted().values()) == 24
    assert counted(other) == right(Job.dataset_id == other)
    with db.write() as session:
        ended = {"status": "failed", "finished_at": now()}
        session.execute(update(Job).where(Job.id.in_(jobs[3:8]), Job.status == "queued").values(ended))
    assert counted() == right()
    caller = Caller("key_nobody", "nobody", "analyst")
    with db.read() as session:
        assert counts.jobs_by_status(db, session, caller) == {}
        assert session.scalar(select(func.count()).select_from(Job)) == 24


def test_counts_read_no_job_that_ended_long_ago(db: Database, dataset: str) -> None:
    """After the first count: what has not ended, and what ended since the moment that is counted up to."""
    add(db, dataset, 40)
    statements = list[tuple[str, Any]]()
    with db.read() as session:
        counts.jobs_by_status(db, session, None)
    event.listen(db.engine, "before_cursor_execute", lambda *a: statements.append((a[2], a[3])))
    with db.read() as session:
        counts.jobs_by_status(db, session, None)
    statements = [each for each in statements if "count(" in each[0]]
    assert len(statements) == 2 and all("finished_at" in each[0] for each in statements)


def test_counts_of_failures_read_no_entry_that_was_counted(db: Database) -> None:
    """`/metrics` read each failure's entry at each scrape, to find that all were sealed."""
    effort = list[int]()
    for failures in (200, 2_000):
        with db.write() as session:
            for _ in range(failures):
                audit.record(session, "job.failed", "job_1", because="its own error")
        while seal(db):
            pass
        with db.write() as session:
            if db.engine.dialect.name == "postgresql":  # as its housekeeping does
                session.execute(text("ANALYZE audit_entries"))
        with db.read() as session:
            counts.failures_by_cause(db, session)
            done = of_session(session, "audit_entries")
            counted = counts.failures_by_cause(db, session)
            effort.append(done())
    assert counted == {"its own error": 2_200} and effort[1] <= effort[0] + 15


def test_counts_begin_anew_when_a_backup_was_restored_under_the_process(db: Database, dataset: str) -> None:
    """Of what was counted, the backup may lack a part: the last audit entry that was sealed then is not there."""

    def failed() -> str:
        with db.write() as session:
            job = add_job(session, dataset)
            session.get_one(Job, job).status, ended = "failed", now() - timedelta(days=3)
            session.get_one(Job, job).finished_at = ended
            audit.record(session, "job.failed", job, because="its own error")
        seal(db)
        return job

    def counted() -> tuple[dict[str, int], dict[str, int]]:
        with db.read() as session:
            return counts.jobs_by_status(db, session, None, dataset), counts.failures_by_cause(db, session)

    failed()
    counts._KEPT.pop(db, None)
    before = counted()
    with db.read() as session:
        head = session.execute(select(AuditHead.seq, AuditHead.hash)).one()
    lost = failed()
    counts._KEPT.pop(db, None)
    assert counted() != before
    with unprotected(db) as session:  # the backup: neither the job nor what was sealed since
        session.execute(delete(AuditEntry).where(AuditEntry.target == lost))
        session.execute(delete(JobTag).where(JobTag.job_id == lost))
        session.execute(delete(Job).where(Job.id == lost))
        session.execute(update(AuditHead).values(seq=head.seq, hash=head.hash))
    assert counted() == before
    failed()
    assert counted()[1] != before[1], "and goes on from there"
