"""Workers of a crew that claim at the same moment: no GPU is held twice, on both databases."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from app.db.database import Database
from app.lifecycle.claims import Claim
from app.lifecycle.claims import claim as claim_job
from app.lifecycle.queue.crews import Member, place_of
from tests.factories import add_dataset, add_key
from tests.lifecycle.conftest import Submit
from tests.lifecycle.crew import LEASE_S, crew_of, gpu, in_use

ROUNDS = 4


@pytest.fixture
def add(db: Database, submit: Submit) -> Any:
    dataset = add_dataset(db, privacy={"sensitivity": "public"})
    with db.write() as session:
        keys = [add_key(session, "analyst") for _ in range(2)]

    def added(once: str, processes: int, key: int = 0) -> str:
        runtime = {"processes": processes, "device": "cuda"}
        return submit(dataset, keys[key], once, runtime=runtime, privacy=None, evaluation=None)

    return added


def test_workers_that_claim_at_once_hold_no_gpu_twice(db: Database, add: Any) -> None:
    hands = crew_of(db, 4)
    for number in range(2 * ROUNDS):
        add(f"gang{number}", 2 + number % 2)
        add(f"single{number}", 1, key=1)
    together = threading.Barrier(len(hands))

    def claim(hand: Any) -> Claim | None:
        together.wait(300)
        found: Claim | None = hand.claim()
        return found

    claims = []
    with ThreadPoolExecutor(len(hands)) as threads:
        for _ in range(ROUNDS):
            claims += [held for held in threads.map(claim, hands) if held is not None]
            held = in_use(db)
            assert held and set(held.values()) == {1}, held
            for hand in hands:
                if hand.held is not None:
                    hand.end("succeeded")
    assert any(len(held.gpus) > 1 for held in claims) and len(claims) == len({held.job_id for held in claims})


def test_a_claim_waits_for_the_one_that_takes_its_gpu(db: Database, add: Any) -> None:
    """The second claim begins while the first one has not ended, and then sees all that it holds."""
    hands = crew_of(db, 2)
    gang, _single = add("gang", 2), add("single", 1, key=1)
    seen: list[bool] = []

    def second() -> None:
        with db.write() as session:
            seen.append(place_of(session, hands[1].presence.name, Member("crew", gpu(1)), LEASE_S).is_lent)

    thread = threading.Thread(target=second)
    with db.write() as session:
        place = place_of(session, hands[0].presence.name, Member("crew", gpu(0)), LEASE_S)
        assert place.free == (0, 1)
        thread.start()
        thread.join(0.3)
        assert not seen, "it waits for the crew's rows"
        assert claim_job(session, gang, hands[0].presence.name, LEASE_S, "crew", place.free) is not None
    thread.join(300)
    assert seen == [True]
