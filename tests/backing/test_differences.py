"""What SQLite and PostgreSQL do differently, and services must not notice. Each test here failed on one of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import func, select, text, update
from sqlalchemy.exc import DatabaseError

from app.db import database
from app.db.database import Database
from app.db.models import ApiKey, Job
from app.jobs import steering
from app.keys.service import Caller
from app.lifecycle.claims import claim
from app.pricing import service as pricing
from app.pricing.service import PricingService
from app.settings import Settings
from core.ids import now
from core.privacy.price_requests import OrderRequest
from tests.conftest import Api
from tests.e2e.conftest import until
from tests.factories import NO_HEADS, add_key
from tests.lifecycle.conftest import balances, job_row

Submit = Callable[..., str]


def test_a_read_sees_one_moment(db: Database) -> None:
    """PostgreSQL's default shows a session what others commit between two of its queries."""
    count = select(func.count()).select_from(ApiKey)
    with db.read() as session:
        assert session.scalar(count) == 0
        with db.write() as other:
            add_key(other)
        assert session.scalar(count) == 0
    with db.read() as session:
        assert session.scalar(count) == 1


@pytest.mark.parametrize("backing", ["postgres"], indirect=True)  # SQLite has no read-only transactions
def test_nothing_is_written_in_a_read(db: Database) -> None:
    with pytest.raises(DatabaseError), db.read() as session:
        add_key(session)


def test_a_job_that_is_claimed_while_it_is_cancelled_is_not_voided(db: Database, backing: str, submit: Submit) -> None:
    """Read `queued`, wait for the claim, settle as `queued`: the hold of a running job was given back."""
    job_id = submit()
    held = balances(db, job_id)[1]
    admin = Caller(job_row(db, job_id).key_id, "admin", "admin")
    cancelling = threading.Thread(target=steering.cancel, args=(db, admin, job_id, NO_HEADS))
    with db.write() as session:
        assert claim(session, job_id, "w", 30.0) is not None
        session.flush()
        cancelling.start()
        if backing == "postgres":
            until(lambda: _somebody_waits(db))
    cancelling.join(300)
    assert job_row(db, job_id).status == "cancelling"
    assert balances(db, job_id)[:2] == (0, held)


def _somebody_waits(db: Database) -> bool:
    waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    with db.read() as session:
        return bool(session.scalar(waiting))


def test_one_price_asked_for_by_two_at_once_is_kept_once(
    db: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    prices, both = PricingService(db, settings), threading.Barrier(2)

    class Desk:
        def call(self, _asked: Any) -> dict[str, Any]:
            return {"order": 4.0}

    def at_once() -> datetime:
        """Both are past the question whether the price is there; on SQLite one is, and the other waits its turn."""
        with suppress(threading.BrokenBarrierError):
            both.wait(0.5)
        return now()

    prices.servers = [Desk(), Desk()]  # type: ignore[list-item]
    monkeypatch.setattr(pricing, "now", at_once)
    monkeypatch.setattr(pricing, "WORTH_KEEPING_S", 0.0)
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(prices.choose_order, order_of(7)) for _ in range(2)]
        assert [answer.result() for answer in answers] == [4.0] * 2


@pytest.mark.parametrize(
    "path",
    [
        "/v1/jobs/job_%00",
        "/v1/jobs?dataset=%00",
        "/v1/jobs?q=%00",
        # ["a\u0000", "job_x"] and ["a\ud800", "job_x"]
        "/v1/jobs?sort=name&after=WyJhXHUwMDAwIiwiam9iX3giXQ",
        "/v1/jobs?sort=name&after=WyJhXHVkODAwIiwiam9iX3giXQ",
        "/v1/datasets/%00",
        "/v1/datasets/%00/ledger/entries?job=%00",
        "/v1/jobs/x/artifacts/%00",
        # ["2026-01-01T00:00:00Z", "job_\u0000"] and the same with half of a surrogate pair
        "/v1/jobs?after=WyIyMDI2LTAxLTAxVDAwOjAwOjAwWiIsImpvYl9cdTAwMDAiXQ",
        "/v1/jobs?after=WyIyMDI2LTAxLTAxVDAwOjAwOjAwWiIsImpvYl9cdWQ4MDAiXQ",
    ],
)
def test_a_text_that_no_database_holds_is_no_server_error(api: Api, path: str) -> None:
    """psycopg refuses a NUL in a text; SQLite finds nothing."""
    assert api.client.get(path, headers=api.headers("admin")).status_code in (404, 422, 200)


def test_jobs_are_found_in_any_case_and_pages_of_any_order_join(api: Api, db: Database, submit: Submit) -> None:
    """The databases collate names differently; a cursor goes by the same order as its page."""
    made = {submit(): name for name in ("Beta", "alpha", "beta_2", "100 %")}
    with db.write() as session:
        for job_id, name in made.items():
            session.get_one(Job, job_id).name = name
    headers, found, after = api.headers("admin"), [], ""
    while after is not None:
        page = api.client.get(f"/v1/jobs?sort=name&limit=1{after and f'&after={after}'}", headers=headers).json()
        found += [each["name"] for each in page["items"]]
        after = page["next"]
    assert sorted(found) == sorted(made.values())
    for q, names in (("BETA", {"Beta", "beta_2"}), ("100 %25", {"100 %"}), ("a_2", {"beta_2"}), ("a%252", set())):
        items = api.client.get(f"/v1/jobs?q={q}", headers=headers).json()["items"]
        assert {each["name"] for each in items} == names, q


def test_a_number_that_no_database_holds_is_no_server_error(api: Api, submit: Submit) -> None:
    headers = api.headers("admin", **{"Last-Event-ID": "99999999999999999999"})
    assert api.client.get(f"/v1/jobs/{submit()}/events", headers=headers).status_code in (200, 422)


def test_names_hold_no_nul(api: Api) -> None:
    key = api.client.post("/v1/keys", json={"name": "a\0b", "role": "analyst"}, headers=api.headers("admin"))
    assert key.status_code == 422
    for job, pointer in (({"dataset": "a\0b"}, "/dataset"), ({"name": "\0"}, "/name")):
        answer = api.client.post("/v1/jobs", json=job, headers=api.headers("admin", **{"Idempotency-Key": "k"}))
        assert answer.status_code == 422 and pointer in {error["pointer"] for error in answer.json()["errors"]}


@pytest.mark.parametrize("backing", ["postgres"], indirect=True)  # SQLite has no server to lose
def test_a_connection_that_was_cut_while_it_was_idle_is_not_handed_out(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "PING_AFTER_S", 0.0)
    others = text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid()"
    )
    with db.read() as first, db.read() as second:
        for session in (first, second):
            session.execute(text("SELECT 1"))
    with db.read() as session:
        assert session.scalar(others) is True
    for _ in range(3):
        with db.read() as first, db.quick_read() as second:
            assert first.scalar(text("SELECT 1")) == second.scalar(text("SELECT 1")) == 1


@pytest.mark.parametrize("backing", ["postgres"], indirect=True)  # SQLite's readers never wait for a writer
def test_reads_go_on_while_many_wait_to_write_the_same_row(db: Database, submit: Submit) -> None:
    """Thirty that wait for one lock would each sit on a connection, and the pool has twenty."""
    job_id = submit()
    rename = update(Job).where(Job.id == job_id)

    def write(number: int) -> None:
        with db.write() as session:
            session.execute(rename.values(name=f"n{number}"))

    with ThreadPoolExecutor(30) as pool:
        with db.write() as session:
            session.execute(rename.values(name="first"))
            waiting = [pool.submit(write, number) for number in range(30)]
            until(lambda: _somebody_waits(db))
            for _ in range(10):
                assert job_row(db, job_id).name != "first"
        for each in waiting:
            each.result(300)


def order_of(records: int) -> OrderRequest:
    return OrderRequest(cap_epsilon=4.0, cap_delta=1e-5, records=records, typical_job=None)


def test_a_price_is_asked_for_once(db: Database, settings: Settings) -> None:
    prices, asked = PricingService(db, settings), []

    class Desk:
        def call(self, question: Any) -> dict[str, Any]:
            asked.append(question)
            return {"order": float(len(asked))}

    prices.servers = [Desk(), Desk()]  # type: ignore[list-item]
    assert [prices.choose_order(order_of(n)) for n in (7, 7, 8, 7)] == [1.0, 1.0, 2.0, 1.0]
    for number in range(pricing.REMEMBERED + 5):
        prices._remember({"n": number}, {})
    assert len(prices._remembered) == pricing.REMEMBERED
