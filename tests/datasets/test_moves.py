"""Races and restores around a move between two filters: what is held is what fits, and nothing is spent twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from app.admission.hold import hold
from app.admission.price import price
from app.admission.request import Limits, Request, resolve_once
from app.admission.service import Admission
from app.db.database import Database
from app.db.models import Job
from app.keys.service import Caller
from app.ledger.transparency.heads import Heads
from app.ledger.verification import verify
from app.lifecycle.settle import settle, settlement_of
from app.pricing.service import PricingService
from app.settings import Settings
from core.contracts.job_spec import JobSpec
from core.errors import PrivacyError
from core.privacy.filters import GdpFilter, RdpFilter
from tests.conftest import BACKINGS
from tests.datasets.conftest import MIB, Api
from tests.datasets.test_block_jobs import account, held, submit
from tests.datasets.test_plans import HALF, POISSON, ledgers, planned, spend
from tests.factories import job_spec
from tests.hpo.conftest import PlainPricing

TRIES = 3  # data sets: each can move once


@pytest.fixture(params=BACKINGS)
def backing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def api(settings: Settings, db: Database) -> Iterator[Api]:
    """Over each of the databases."""
    made = Api(settings.model_copy(update={"parse_memory_bytes": 1024 * MIB}), db)
    yield made
    made.close()


def assert_sound(api: Api, dataset: str) -> None:
    """Each ledger verifies and is within its budget, and all of the first was carried."""
    first, second = (account(api, ledger) for ledger in ledgers(api, dataset))
    to = RdpFilter(second.order or 0.0)
    assert second.train_spent + second.train_held <= second.train_budget
    carried = GdpFilter().carried(first.train_spent + first.train_held, to)
    assert carried is not None and carried <= second.train_spent
    with api.db.read() as session:
        assert all(verify(session, ledger).valid for ledger in (first.dataset_id, second.dataset_id))


def test_two_jobs_at_once_move_once_and_each_is_counted(api: Api) -> None:
    for number in range(TRIES):
        first = planned(api, name=f"racing-{number}", file=content(number))
        spend(api, first, HALF, f"charge-{number}")
        begin = threading.Barrier(2)

        def job(once: str, changes: dict[str, object], first: str = first, begin: threading.Barrier = begin) -> str:
            begin.wait(300)
            made = submit(api, first, f"{once} on {first}", **changes)
            assert made.status_code == 201, made.text
            return str(made.json()["id"])

        with ThreadPoolExecutor(2) as pool:
            sampled, full = pool.submit(job, "sampled", POISSON), pool.submit(job, "full", {})
            jobs = sampled.result(), full.result()
        assert len(ledgers(api, first)) == 2
        _, second = ledgers(api, first)
        assert held(api, jobs[0]) == [second] and held(api, jobs[1]) in ([first], [second])
        assert_sound(api, first)


def test_a_charge_of_one_filter_is_held_on_no_ledger_of_the_other(api: Api) -> None:
    first = planned(api)
    caller = Caller(api.key_ids["owner"], "owner", "owner")
    pricing = cast(PricingService, PlainPricing())
    asked = Request.of(caller, JobSpec.model_validate(job_spec(first, **POISSON)), Limits())
    resolved = resolve_once(api.db, asked, "once")
    assert not isinstance(resolved, str)
    priced = price(pricing, resolved)
    with pytest.raises(PrivacyError, match="another filter's units"):
        hold(Admission(api.db, pricing, Heads.of(api.settings)), resolved, priced, "once")
    assert ledgers(api, first) == [first] and account(api, first).train_held == 0


def test_a_settle_during_the_move_is_carried_as_it_was_held(api: Api) -> None:
    """Whichever is first: what was carried is at least what the first ledger has in the end."""
    for number in range(TRIES):
        first = planned(api, name=f"settling-{number}", file=content(number))
        running = submit(api, first, f"running on {first}").json()["id"]
        begin = threading.Barrier(2)

        def end(running: str = running, begin: threading.Barrier = begin) -> None:
            begin.wait(300)
            with api.db.write() as session:
                settle(session, settlement_of(session, session.get_one(Job, running), "cancelled"))

        def move(first: str = first, begin: threading.Barrier = begin) -> int:
            begin.wait(300)
            return int(submit(api, first, f"sampled on {first}", **POISSON).status_code)

        with ThreadPoolExecutor(2) as pool:
            ended, moved = pool.submit(end), pool.submit(move)
            ended.result()
            assert moved.result() == 201
        assert account(api, first).train_held == 0
        assert_sound(api, first)


def content(number: int) -> str:
    return "a,b,y\n" + "".join(f"{i + number / 8},{i * i % 7},{i % 2}\n" for i in range(60))
