"""What jobs took: by month, data set and team, on both databases, in one statement that an index bounds."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.orm import Session

from app.db.database import Database
from app.db.models import ApiKey, Artifact, Attempt, Job, SpentByKey, SubAccount, SubAccountKey
from app.keys.service import Caller
from app.ledger import accounts
from app.ledger.accounts import filter_for
from app.usage.service import UsageRow, as_csv, usage
from core.errors import InvalidRequest
from core.ids import now
from tests.conftest import BACKINGS
from tests.factories import share
from tests.ledger.support import DELTA, OWNER, add_dataset, add_job, add_owner, open_ledger, post
from tests.work import of_session

ADMIN = Caller("key_admin", "admin", "admin")
OCTOBER = datetime(2026, 10, 31, 23, 59, 0, tzinfo=UTC)


@pytest.fixture(params=BACKINGS)
def backing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def add_key(session: Session, key: str, name: str, role: str = "analyst") -> None:
    fields: dict[str, Any] = {"created_at": now(), "created_by": None, "revoked_at": None}
    session.add(ApiKey(id=key, name=name, role=role, secret_hmac="00", **fields))
    session.flush()


def ended(session: Session, dataset: str, at: datetime, seconds: tuple[int, ...], **fields: Any) -> str:
    """A job that ended then, an attempt of so many seconds each, on the processor or on `gpus`."""
    gpus, processes = fields.pop("gpus", None), fields.pop("processes", 1)
    job = add_job(session, dataset, status="succeeded", finished_at=at, **fields)
    row = session.get_one(Job, job)
    row.spec = row.spec | {"runtime": row.spec["runtime"] | {"processes": processes}}
    for number, each in enumerate(seconds, 1):
        times = {"started_at": at - timedelta(seconds=each), "ended_at": at}
        device = "cpu" if gpus is None else "cuda"
        session.add(Attempt(job_id=job, number=number, worker="w", status="lost", device=device, ranks=gpus, **times))
    return job


def add_file(session: Session, job: str, size: int) -> None:
    session.add(Artifact(job_id=job, name="model", sha256="00", size_bytes=size, path=f"{job}/model"))


def rows(db: Database, caller: Caller = ADMIN, **asked: Any) -> list[UsageRow]:
    with db.read() as session:
        return usage(session, caller, **{"since": "2026-01", "until": "2026-12"} | asked).items


def test_attempts_and_files_are_summed_in_the_month_of_the_jobs_end(db: Database) -> None:
    add_owner(db)
    with db.write() as session:
        dataset = add_dataset(session, sensitivity="public")
        first = ended(session, dataset, OCTOBER, (10, 5), threads=2, processes=3)
        add_file(session, first, 100)
        study = ended(session, dataset, OCTOBER, ())
        trial = ended(session, dataset, OCTOBER, (7,), parent_id=study, trial_number=1, gpus=2, processes="auto")
        add_file(session, trial, 11)
        ended(session, dataset, OCTOBER + timedelta(minutes=1), (1000,), gpus=1)
        add_job(session, dataset, status="running")
    november, october = rows(db)
    # 15 s on three processes of two threads, and 7 s of a trial on two GPUs, each with a process
    assert (october.month, october.jobs, october.processor_s, october.gpu_s) == ("2026-10", 2, 15 * 3 * 2 + 7 * 2, 14)
    assert (october.bytes, october.epsilon, october.share, october.team) == (111, None, None, None)
    assert (november.month, november.jobs, november.gpu_s) == ("2026-11", 1, 1000)
    assert [each.month for each in rows(db, until="2026-10")] == ["2026-10"]
    assert as_csv(usage_of(db)).splitlines()[0].startswith("month,dataset,dataset_name,team,key_id,key_name,jobs,")


def usage_of(db: Database) -> Any:
    with db.read() as session:
        return usage(session, ADMIN, since="2026-01", until="2026-12")


def test_a_team_s_keys_are_one_and_their_epsilon_is_read_of_their_sum(db: Database) -> None:
    add_owner(db)
    dataset, month = open_ledger(db), now().strftime("%Y-%m")
    budget = {"epsilon": 1.0, "train_budget": 10**12, "holdout_budget": 0, "version": 1, "changed_by": OWNER}
    with db.write() as session:
        for key in ("key_a", "key_b", "key_c"):
            add_key(session, key, f"name of {key}")
        share(session, dataset)
        session.add(SubAccount(dataset_id=dataset, name="team", id="bud_1", changed_at=now(), **budget))
        session.flush()
        session.add_all(SubAccountKey(dataset_id=dataset, key_id=key, name="team") for key in ("key_a", "key_b"))
        jobs = [ended(session, dataset, now(), (60,), key_id=key) for key in ("key_a", "key_b", "key_c")]
    for job, amount in zip(jobs, (10**10, 2 * 10**10, 5 * 10**9), strict=True):
        spend_as(db, dataset, job, amount)
    other, team = rows(db, since=month, until=month)
    assert (team.team, team.key_id, team.jobs, team.processor_s) == ("team", None, 2, 120)
    assert (other.team, other.key_id, other.key_name) == (None, "key_c", "name of key_c")
    gdp = filter_for("gdp", None)
    assert team.epsilon == gdp.epsilon(3 * 10**10, DELTA) and other.epsilon == gdp.epsilon(5 * 10**9, DELTA)
    assert team.delta == DELTA and team.share == pytest.approx(6.0 * (other.share or 0.0), rel=1e-12)
    # Its own team, and all others as one, for who does not own the data set.
    of_a = rows(db, Caller("key_a", "a", "analyst"), since=month, until=month)
    assert [(each.team, each.key_id, each.jobs) for each in of_a] == [(None, None, 2), ("team", None, 1)]
    assert of_a[1].epsilon == gdp.epsilon(10**10, DELTA)
    assert rows(db, Caller("key_x", "x", "analyst"), since=month, until=month) == []
    assert len(rows(db, Caller(OWNER, "owner", "owner"), since=month, until=month)) == 2


def spend_as(db: Database, dataset: str, job: str, amount: int) -> None:
    with db.write() as session:
        key = session.get_one(Job, job).key_id
        accounts.hold(session, dataset_id=dataset, job_id=job, train=amount, holdout=0, actor=key)
    post(db, dataset, job, amount)


def test_months_are_few_and_in_order(db: Database) -> None:
    for since, until in (("2026-11", "2026-10"), ("2020-01", "2026-10")):
        with pytest.raises(InvalidRequest, match="months"):
            rows(db, since=since, until=until)
    with db.read() as session:
        usual = usage(session, ADMIN)
    assert usual.until == now().strftime("%Y-%m") and usual.since[5:] != usual.until[5:]


def test_pages_hold_every_row_once(db: Database) -> None:
    add_owner(db)
    with db.write() as session:
        dataset = add_dataset(session, sensitivity="public")
        for key in ("key_a", "key_b", "key_c"):
            add_key(session, key, "\t" + key)  # any text may be a key's name: no cursor holds it
            for month in (9, 10):
                ended(session, dataset, OCTOBER.replace(month=month, day=3), (1,), key_id=key)
    whole = rows(db)
    assert len(whole) == 6
    for limit in (1, 2, 4, 6, 7):
        read: list[UsageRow] = []
        after, pages = None, 0
        while pages == 0 or after is not None:
            with db.read() as session:
                page = usage(session, ADMIN, None, "2026-01", "2026-12", after, limit)
            assert len(page.items) <= limit and (page.since, page.until) == ("2026-01", "2026-12")
            read += page.items
            after, pages = page.next, pages + 1
        assert read == whole and pages == -(-6 // limit)
    with pytest.raises(InvalidRequest, match="cursor"):
        rows(db, after="nonsense")
    with db.read() as session:
        page = usage(session, ADMIN, None, "2026-01", "2026-12", None, 5)
    assert rows(db, since="2026-11", after=page.next) == []


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@a", "\t=1", "\r=1"])
def test_no_cell_is_a_formula(db: Database, name: str) -> None:
    add_owner(db)
    with db.write() as session:
        add_key(session, "key_a", name)
        ended(session, add_dataset(session, sensitivity="public"), OCTOBER, (1,), key_id="key_a")
    (line,) = csv.DictReader(io.StringIO(as_csv(usage_of(db)), newline=""))
    assert line["key_name"] == "'" + name and line["jobs"] == "1"


def test_a_month_s_spending_is_read_by_its_days(db: Database) -> None:
    add_owner(db)
    dataset = open_ledger(db)
    day = {"key_id": "key_a", "charges": 1, "family_charges": 1, "train": 1, "holdout": 0, "last_at": now()}
    with db.write() as session:
        add_key(session, "key_a", "a")
        session.add(SpentByKey(dataset_id=dataset, day="2026-10-31", **day))
        session.add(SpentByKey(dataset_id=dataset, day="", **day))
    with db.read() as session:
        done = of_session(session, "spent_by_key")
        (few,) = usage(session, ADMIN, since="2026-10", until="2026-10").items
        worked = done()
    assert few.share is not None and few.share > 0.0
    with db.write() as session:
        for number in range(300):
            at = datetime(2025, 1, 1, tzinfo=UTC) + timedelta(days=number)
            session.add(SpentByKey(dataset_id=dataset, day=at.strftime("%Y-%m-%d"), **day))
        session.flush()
        if db.engine.dialect.name == "postgresql":
            session.execute(text("ANALYZE"))
    with db.read() as session:
        done = of_session(session, "spent_by_key")
        assert usage(session, ADMIN, since="2026-10", until="2026-10").items == [few]
        assert done() <= worked + 20


def test_one_statement_sums_and_other_months_cost_nothing(db: Database) -> None:
    add_owner(db)
    with db.write() as session:
        dataset = add_dataset(session)
        ended(session, dataset, OCTOBER, (60,))
    few = work(db)
    with db.write() as session:
        for each in range(300):
            ended(session, dataset, OCTOBER - timedelta(days=200, minutes=each), (60,))
        if db.engine.dialect.name == "postgresql":
            session.execute(text("ANALYZE"))
    assert work(db) <= few + 20


def work(db: Database) -> int:
    """The work of October's usage."""
    said: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        said.append(statement)

    with db.read() as session:
        done = of_session(session, "jobs")
        event.listen(db.engine, "before_cursor_execute", note)
        assert [each.jobs for each in usage(session, ADMIN, since="2026-10", until="2026-10").items] == [1]
        event.remove(db.engine, "before_cursor_execute", note)
        found = done()
    assert sum("sum(" in each for each in said) == 1
    return found
