"""Searches and counts over many jobs read what they find, and say what all rows together say."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete, event, func, insert, select, text, update

from app.audit import record as audit
from app.audit.audit_chain import seal
from app.db.database import Database
from app.db.models import AuditEntry, AuditHead, Job, JobTag, table_of
from app.jobs import counts, labels, repository
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


def found(db: Database, search: Any, *, lasting: bool = False) -> set[str]:
    with db.read() as session:
        among = repository.among_found(session, search, lasting=lasting)
        return set(session.scalars(select(Job.id).where(among)))


@pytest.mark.parametrize(("bound", "few"), [(500, 2_000), (3, 2_000), (1, 2)], ids=["by id", "by index", "many"])
@pytest.mark.parametrize("lasting", [False, True])
def test_a_search_finds_the_same_however_many_there_are(
    db: Database, dataset: str, monkeypatch: pytest.MonkeyPatch, bound: int, few: int, lasting: bool
) -> None:
    monkeypatch.setattr(repository, "MOST_BOUND", bound)
    monkeypatch.setattr(repository, "FEW", few)
    jobs = add(db, dataset, 12)
    for tag in ("paper", 'QUOTED "x"', "50%_off\\", "50", "pap", ""):
        has_it = {job for n, job in enumerate(jobs) if tag.lower() in TAGS[n % len(TAGS)]}
        assert found(db, labels.tagged(tag), lasting=lasting) == has_it, tag
    for words, right in (("OF THE n", set(jobs)), ("run 1", {jobs[1], *jobs[10:]}), ("xyzzy", set()), ("%", set())):
        assert found(db, repository.named_like(words), lasting=lasting) == right, words
    assert found(db, repository.named_like(jobs[5][:-2]), lasting=lasting) == {jobs[5]}


def test_a_page_of_a_common_tag_takes_one_step_for_each_job_it_reads(
    db: Database, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite read all jobs of the tag for each job of the list: 88 s of processor time at 200,000 jobs."""
    monkeypatch.setattr(repository, "MOST_BOUND", 1)
    monkeypatch.setattr(repository, "FEW", 2)
    add(db, dataset, 4)
    with db.write() as session:
        row = dict(session.execute(select(table_of(Job)).limit(1)).mappings().one())
        rows = [
            row
            | {"id": f"job_{n}", "idempotency_key": f"job_{n}", "tags": labels.stored(["old"] if n < 300 else [])}
            | {"created_at": row["created_at"] + timedelta(seconds=n)}
            for n in range(600)
        ]
        session.execute(insert(table_of(Job)), rows)
        if db.engine.dialect.name == "postgresql":  # as its housekeeping does
            session.execute(text("ANALYZE jobs, job_tags"))
        among = repository.among_found(session, labels.tagged("old"), lasting=False)
        page = repository.PageOfJobs(among, None, None, 10, "newest")
        work = of_session(session, "job_tags")
        newest = [f"job_{n}" for n in range(299, 288, -1)]
        assert [each.id for each in page.rows(session, [repository.JOB.id])] == newest
        assert work() < 400  # hundreds of SQLite's steps: 47; 4,703 with the tag alone


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


def test_a_page_counts_the_newest_jobs_that_a_search_finds(
    db: Database, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = add(db, dataset, 12)
    with db.read() as session:
        all_of_them = counts.newest_by_status(session, Job.id.in_(jobs))
        assert sum(all_of_them.by_status.values()) == 12 and not all_of_them.is_partial
        monkeypatch.setattr(counts, "MOST_COUNTED", 5)
        some = counts.newest_by_status(session, Job.id.in_(jobs))
    assert some.is_partial
