"""Quotes of one key keep no other key from its own, nor anybody from what needs no price."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from app.db.database import Database
from app.pricing.service import WAITING, PricingService
from core.privacy import pricing_server
from tests.conftest import Api
from tests.factories import add_dataset, job_spec


class SlowDesk:
    """A process that answers when it is let to, and notes how many wait for it."""

    def __init__(self) -> None:
        self.let, self.asked, self.alive = threading.Semaphore(0), threading.Semaphore(0), True
        self.targets: list[float | None] = []

    def call(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.targets.append(asked["arguments"].get("target_epsilon"))
        self.asked.release()
        assert self.let.acquire(timeout=300)
        return pricing_server.answer(asked)

    def close(self) -> None:
        self.alive = False


@pytest.fixture
def slow(api: Api) -> Iterator[SlowDesk]:
    pricing: PricingService = api.client.app.state.pricing  # type: ignore[attr-defined]
    made, before = SlowDesk(), pricing.servers
    pricing.servers = [made, made]  # type: ignore[list-item]
    yield made
    for _ in range(1000):
        made.let.release()
    pricing.servers = before


def quote(api: Api, role: str, dataset: str, epsilon: float) -> int:
    spec = job_spec(dataset, privacy={"target_epsilon": epsilon}, evaluation=None)
    return int(api.client.post("/v1/quotes", json=spec, headers=api.headers(role)).status_code)


def until(done: list[Future[int]], count: int) -> None:
    deadline = time.monotonic() + 300
    while sum(each.done() for each in done) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_greedy_key_waits_and_another_does_not(api: Api, db: Database, slow: SlowDesk) -> None:
    dataset = add_dataset(db)
    with ThreadPoolExecutor(40) as pool:
        greedy = [pool.submit(quote, api, "analyst", dataset, 0.1 + number / 100) for number in range(24)]
        too_many = 24 - 1 - WAITING
        until(greedy, too_many)
        assert sorted(each.result() for each in greedy if each.done()) == [503] * too_many
        modest = [pool.submit(quote, api, "owner", dataset, 1.0 + number / 100) for number in range(8)]
        headers = api.headers("admin")
        assert [api.client.get("/v1/jobs", headers=headers).status_code for _ in range(3)] == [200] * 3
        while not all(each.done() for each in (*greedy, *modest)):
            slow.let.release()
            time.sleep(0.01)
        assert [each.result() for each in modest] == [200] * 8, "they were 503, eight of eight"
        assert sorted(each.result() for each in greedy) == [200] * (1 + WAITING) + [503] * too_many


def test_a_place_is_free_for_another_while_one_key_prices_all_it_can(api: Api, db: Database, slow: SlowDesk) -> None:
    """Both processes worked for one key before: another's quote waited for one of its prices to end.

    Attack (Tenants): 24 expensive quotes of one key at a time
    Now: one process of two, as for all keys with expensive prices together; two keys that alternated long and short
    ones took both, and now at most a fifth of the second one's time
    Also: tests/jobs/test_turns.py::test_expensive_keys_together_leave_a_place_to_the_others,
    tests/jobs/test_turns.py::test_keys_that_mix_long_and_short_turns_leave_a_place_most_of_the_time
    """
    dataset = add_dataset(db)
    with ThreadPoolExecutor(10) as pool:
        greedy = [pool.submit(quote, api, "analyst", dataset, 0.1 + number / 100) for number in range(3)]
        assert slow.asked.acquire(timeout=300)
        modest = pool.submit(quote, api, "owner", dataset, 1.0)
        assert slow.asked.acquire(timeout=300), "none of the first key's prices has ended"
        assert slow.targets[1] == 1.0, "the first key's others wait"
        while not all(each.done() for each in (*greedy, modest)):
            slow.let.release()
            time.sleep(0.01)
    assert [each.result() for each in (*greedy, modest)] == [200] * 4
