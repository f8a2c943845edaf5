"""Gangs: k GPUs of one crew or none, no GPU twice, given back at every end, and nobody starves."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select, update

from app.db.database import Database
from app.db.models import Job, Outbox, Worker
from app.jobs import steering
from app.keys.service import Caller
from app.lifecycle.queue import crews
from app.lifecycle.queue.crews import Place, Pool
from app.lifecycle.queue.presence import GpuWorkers
from app.lifecycle.states import get_job
from app.lifecycle.sweeper import expire_all_leases, reap_expired
from core.contracts.runtime import Runtime
from tests.by_night import but
from tests.factories import NO_HEADS, add_dataset, add_key, numerics
from tests.lifecycle.conftest import Submit, job_row, no_wait
from tests.lifecycle.crew import Hand, crew_of, gpu, in_use, wake
from tests.lifecycle.test_devices import waiting_for

FREE: dict[str, Any] = {"privacy": None, "evaluation": None}


class Queue:
    """Jobs without privacy, each of a key that may use the one data set."""

    def __init__(self, db: Database, submit: Submit, keys: int = 1) -> None:
        self.db, self.submit, self.count = db, submit, 0
        self.dataset = add_dataset(db, privacy={"sensitivity": "public"})
        with db.write() as session:
            self.keys = [add_key(session, "analyst") for _ in range(keys)]

    def add(self, processes: int | str = 1, device: str = "cuda", key: int = 0) -> str:
        self.count += 1
        runtime = {"processes": processes, "device": device}
        return self.submit(self.dataset, self.keys[key], str(self.count), runtime=runtime, **FREE)


@pytest.fixture
def queue(db: Database, submit: Submit) -> Queue:
    return Queue(db, submit, keys=4)


def test_a_gang_is_claimed_with_all_its_gpus_or_not_at_all(db: Database, queue: Queue) -> None:
    hands = crew_of(db, 3)
    single, gang = queue.add(), queue.add(3)
    first = hands[0].claim()
    assert first is not None and (first.job_id, first.gpus) == (single, (0,))
    assert hands[1].claim() is None, "two are free, and it needs three"
    hands[0].end("succeeded")
    held = hands[1].claim()
    assert held is not None and (held.job_id, held.gpus) == (gang, (1, 0, 2)), "the leader's own comes first"
    assert in_use(db) == Counter((0, 1, 2))
    queue.add()
    assert hands[0].claim() is None and hands[2].claim() is None, "their GPUs are lent"


@pytest.mark.parametrize("how", ["succeeded", "failed", "lost", "crashed"])
def test_every_end_gives_all_gpus_back(db: Database, queue: Queue, how: str) -> None:
    hands = crew_of(db, 2)
    gang = queue.add(2)
    assert hands[0].claim() is not None
    single = queue.add(key=1)
    assert hands[1].claim() is None
    hands[0].end(how)
    assert not in_use(db) and (job_row(db, gang).status == "queued") == (how in ("lost", "crashed"))
    assert hands[1].claim() is not None and single


def test_a_cancelled_gang_holds_its_gpus_until_its_process_is_gone(db: Database, queue: Queue) -> None:
    hands = crew_of(db, 2)
    gang = queue.add(2)
    assert hands[0].claim() is not None
    with db.write() as session:
        get_job(session, gang, lock=True).status = "cancelling"
    queue.add(key=1)
    assert hands[1].claim() is None
    hands[0].log().stopped()
    assert hands[1].claim() is not None


def test_after_a_lapsed_lease_gpus_are_lent_a_lease_later_or_when_their_ranks_have_ended(
    db: Database, queue: Queue
) -> None:
    """The leader cannot reach the database, and its ranks may still be there."""
    hands = crew_of(db, 2)
    gang = queue.add(2)
    held = hands[0].claim()
    assert held is not None
    expire_all_leases(db)
    assert reap_expired(db, 3) == 1 and job_row(db, gang).status == "queued"
    queue.add(key=1)
    assert hands[1].claim() is None
    crews.release(db, gang, 1, held.gpus)
    again = hands[1].claim()
    assert again is not None and hands[0].held is held


def test_a_lapsed_single_s_gpu_is_not_borrowed_while_its_process_may_be_there(db: Database, queue: Queue) -> None:
    """Its own worker claims nothing before its process has ended; the others do not wait for that."""
    hands = crew_of(db, 3)
    single = queue.add()
    held = hands[0].claim()
    assert held is not None and held.gpus == (0,)
    expire_all_leases(db)
    assert reap_expired(db, 3) == 1
    queue.add(3, key=1)
    assert hands[1].claim() is None and hands[2].claim() is None, "one of the three is not free"
    crews.release(db, single, 1, held.gpus)
    gang = hands[1].claim()
    assert gang is not None and gang.gpus == (1, 0, 2)


def test_a_worker_that_was_started_anew_uses_its_own_gpu_at_once(db: Database, queue: Queue) -> None:
    hands = crew_of(db, 2)
    single = queue.add()
    assert hands[1].claim() is not None
    expire_all_leases(db)
    reap_expired(db, 3)
    held = Hand(db, 99, gpu(1), "crew").claim()
    assert held is not None and (held.job_id, held.gpus) == (single, (1,))


def test_releasing_wakes_the_workers_whose_gpus_were_borrowed(db: Database, queue: Queue) -> None:
    hands = crew_of(db, 3)
    queue.add(3)
    hands[2].claim()
    waiting = [queue.add(), queue.add(2), queue.add(), queue.add()]
    with db.write() as session:
        session.execute(Outbox.__table__.delete())  # type: ignore[attr-defined]
    hands[2].end("succeeded")
    with db.read() as session:
        woken = session.scalars(select(Outbox.job_id).where(Outbox.topic == "notify")).all()
    assert sorted(woken) == sorted(waiting[:2]), "the gang, and one for each of two GPUs"


@pytest.mark.parametrize("leave", [partial(steering.cancel, heads=NO_HEADS), steering.pause], ids=["cancel", "pause"])
def test_the_end_of_a_waiting_gang_wakes_the_workers_whose_gpus_were_kept(
    db: Database, queue: Queue, leave: Any
) -> None:
    """The messages of the jobs behind it have come and gone: without another they would wait for the next sweep."""
    hands = crew_of(db, 2)
    queue.add()
    assert hands[0].claim() is not None
    gang, single = queue.add(2, key=1), queue.add()
    assert hands[1].claim() is None
    with db.write() as session:
        session.execute(Outbox.__table__.delete())  # type: ignore[attr-defined]
    leave(db, Caller(queue.keys[1], "test", "admin"), gang)
    with db.read() as session:
        assert session.scalars(select(Outbox.job_id).where(Outbox.topic == "notify")).all() == [single]
    held = hands[1].claim()
    assert held is not None and held.job_id == single


def test_of_two_kinds_of_gpus_in_a_crew_one_is_kept(db: Database, queue: Queue) -> None:
    hands = crew_of(db, 2) + [Hand(db, index, gpu(index, "Another GPU"), "crew") for index in (2, 3)]
    queue.add()
    queue.add()
    assert hands[0].claim() is not None and hands[2].claim() is not None
    queue.add(2, key=1)
    single = queue.add()
    assert hands[1].claim() is None, "the first by index"
    held = hands[3].claim()
    assert held is not None and held.job_id == single


def test_a_gang_neither_blocks_nor_is_passed_over(db: Database, queue: Queue) -> None:
    """While it waits in its crew: jobs for a processor run there, and other workers go on with small jobs."""
    hands, alone, processor = crew_of(db, 2), Hand(db, 1, gpu(0)), Hand(db, 2, None)
    runs = queue.add()
    assert hands[0].claim() is not None
    gang = queue.add(2, key=1)
    small, small_too, on_cpu, on_cpu_too = queue.add(), queue.add(), queue.add(device="cpu"), queue.add(device="cpu")
    kept = hands[1].claim()
    assert kept is not None and (kept.job_id, kept.gpus) == (on_cpu, ()), "its GPU is kept; its processor is not"
    assert [held.job_id for held in wake([alone, processor])] == [small, on_cpu_too]
    hands[0].end("succeeded")
    held = hands[0].claim()
    assert held is not None and (held.job_id, held.gpus) == (gang, (0, 1)), "the other's GPU is free while it computes"
    assert job_row(db, runs).status == "succeeded" and job_row(db, small_too).status == "queued"


def test_of_two_crews_the_one_with_more_free_gpus_keeps_them(db: Database, queue: Queue) -> None:
    small, large = crew_of(db, 2, "a"), crew_of(db, 4, "b")
    assert len(wake([small[0], *large[:3]])) == 0
    for _ in range(4):
        queue.add()
    assert len(wake([small[0], large[0], large[1], large[2]])) == 4
    gang = queue.add(2, key=1)
    single = queue.add()
    assert small[1].claim() is None, "one is free in each: the first crew by name keeps it"
    held = large[3].claim()
    assert held is not None and held.job_id == single
    small[0].end("succeeded")
    held = small[0].claim()
    assert held is not None and (held.job_id, held.gpus) == (gang, (0, 1))


def test_auto_takes_the_gpus_that_are_free(db: Database, queue: Queue) -> None:
    hands = crew_of(db, 4)
    queue.add()
    assert hands[2].claim() is not None
    queue.add("auto", "auto")
    held = hands[1].claim()
    assert held is not None and held.gpus == (1, 0, 3)
    queue.add("auto", "cpu", key=1)
    assert [each.gpus for each in wake([hands[0], Hand(db, 2, None)])] == [()]


def test_only_equal_gpus_of_living_workers_make_a_gang(db: Database, queue: Queue) -> None:
    hands = [*crew_of(db, 2), Hand(db, 3, gpu(2, "Another GPU"), "crew")]
    gang = queue.add(3)
    assert not wake(hands)
    assert waiting_for(db, gang) == "gpus" and waiting_for(db, queue.add(2)) == "worker"
    with db.read() as session:
        assert crews.sizes(session, 30.0) == {"crew": 2} and crews.largest(session, 30.0) == 2
    fourth = Hand(db, 4, gpu(3), "crew")
    assert waiting_for(db, gang) == "worker"
    fourth.presence._leave()
    with db.write() as session:
        session.execute(
            update(Worker)
            .where(Worker.name == hands[1].presence.name)
            .values(seen_at=hands[1].presence.started_at.replace(year=2020))
        )
    assert waiting_for(db, gang) == "gpus" and GpuWorkers(db, 30.0).have_gpus(1)


def test_ranks_on_processors_where_there_are_no_gpus_for_each(db: Database, queue: Queue) -> None:
    """`auto`: a GPU for each rank, where the crew has so many; else the worker's processors."""
    processor, hands = Hand(db, 2, None, processes=2), crew_of(db, 2)
    jobs = [queue.add(2, "auto", key=number) for number in range(2)]
    first, second = processor.claim(), hands[1].claim()
    assert first is not None and second is not None
    assert {first.job_id, second.job_id} == set(jobs) and (first.gpus, second.gpus) == ((), (1, 0))
    assert waiting_for(db, queue.add(4, "auto")) == "processes"


def test_a_gang_that_was_ready_goes_on_with_fewer(db: Database, queue: Queue) -> None:
    hands = crew_of(db, 3)
    gang = queue.add(3)
    assert hands[0].claim() is not None
    log = hands[0].log()
    log.ready("cuda", numerics().model_copy(update={"device": "cuda"}), processes=(1, 2, 3))
    hands[2].presence._leave()
    hands[0].end("lost")
    no_wait(db, gang)
    held = hands[1].claim()
    assert held is not None and (held.job_id, held.gpus) == (gang, (1, 0))


def test_a_worker_that_is_not_listed_yet_takes_no_gpu(db: Database, queue: Queue) -> None:
    """The others cannot see its claim, nor it theirs."""
    (hand,) = crew_of(db, 1)
    hand.presence._leave()
    queue.add()
    assert hand.claim() is None
    hand.presence.beat()
    assert hand.claim() is not None


@pytest.mark.parametrize(
    ("runtime", "frozen", "most", "need"),
    [
        ({"processes": 4, "device": "cuda"}, None, 8, 4),
        ({"processes": 4}, None, 8, 4),
        ({"processes": 4}, None, 2, 0),
        ({"processes": 4, "shard": "optimizer"}, None, 8, 0),
        ({"processes": 4, "device": "cuda"}, "cuda", 2, 2),
        ({"processes": 4}, "cpu", 8, 0),
        ({"processes": "auto"}, None, 8, 1),
        ({"processes": "auto"}, None, 0, 0),
        ({}, None, 1, 1),
    ],
)
def test_how_many_gpus_a_job_needs(runtime: dict[str, Any], frozen: str | None, most: int, need: int) -> None:
    assert Place(most, "crew").needs(Runtime.model_validate(runtime), frozen) == need


class Shop:
    """Random arrivals of gangs, singles and jobs for a processor, and random ends, over a crew of four, another GPU and
    a processor. Notes how many ends each waiting gang saw in its crew."""

    def __init__(self, db: Database, queue: Queue, seed: int) -> None:
        self.db, self.queue, self.draw = db, queue, random.Random(seed)
        self.crew = crew_of(db, 4)
        self.hands = [*self.crew, Hand(db, 1, gpu(0)), Hand(db, 2, None)]
        self.waits: dict[str, int] = {}
        self.longest = self.gangs = self.singles = 0

    def run(self, turns: int) -> None:
        for _ in range(turns):
            self.arrive()
            self.draw.shuffle(self.hands)
            claims = wake(self.hands)
            held = in_use(self.db)
            assert all(count == 1 for count in held.values()), "no GPU is used twice"
            for each in claims:
                asked = job_row(self.db, each.job_id).spec["runtime"]["processes"]
                assert asked == 1 or len(each.gpus) == len(set(each.gpus)) == asked
                self.waits.pop(each.job_id, None)
                self.singles += asked == 1 and bool(each.gpus)
            self.end()

    def arrive(self) -> None:
        """Another key is greedy: its small jobs always wait."""
        while self.queued(1) < 4:
            self.queue.add()
        if self.draw.random() < 0.3 and len(self.waits) < 3:
            gang = self.queue.add(self.draw.choice((2, 3, 4)), key=1 + self.draw.randrange(3))
            self.waits[gang] = 0
            self.gangs += 1
        if self.draw.random() < 0.2:
            self.queue.add(device="cpu")

    def queued(self, processes: int) -> int:
        with self.db.read() as session:
            specs = session.scalars(select(Job.spec).where(Job.status == "queued")).all()
        return sum(each["runtime"]["processes"] == processes for each in specs)

    def end(self) -> None:
        busy = [hand for hand in self.hands if hand.held is not None]
        if not busy:
            return
        ended = self.draw.choice(busy)
        in_crew = ended.held is not None and bool(ended.held.gpus)
        job, was_gang = ended.held.job_id if ended.held else "", ended.held is not None and len(ended.held.gpus) > 1
        how = self.draw.choice(("succeeded", "failed", "failed", "lost"))
        ended.end(how)
        if how == "lost":
            no_wait(self.db, job)
            if was_gang:
                self.waits[job] = 0
        for each in self.waits if in_crew else ():
            self.waits[each] += 1
            self.longest = max(self.longest, self.waits[each])


# Each of the three other keys' gangs, and a round of the greedy key's, comes before a gang at most twice; each then
# sees at most four ends before it is claimed.
BOUND = 32


@pytest.mark.parametrize(("seed", "turns"), but([(1, 30), (2, 150), (3, 150)], lambda case: case[1] == 30))
def test_random_gangs_share_no_gpu_and_starve_neither_themselves_nor_others(
    db: Database, queue: Queue, seed: int, turns: int
) -> None:
    shop = Shop(db, queue, seed)
    shop.run(turns)
    assert shop.gangs > turns / 8 and shop.longest <= BOUND, shop.longest
    if turns > 100:
        assert shop.singles > 10, "small jobs go on"


def test_gangs_would_starve_if_no_gpu_were_kept(db: Database, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: small jobs take each GPU that becomes free."""
    monkeypatch.setattr(Place, "keeps", lambda self, need: False)
    hands = crew_of(db, 2)
    for _ in range(3):
        queue.add()
    wake(hands)
    gang = queue.add(2, key=1)
    for number in range(8):
        queue.add()
        hands[number % 2].end("succeeded")
        wake(hands)
    assert job_row(db, gang).status == "queued", "it saw eight ends; with kept GPUs it is claimed after two"


def test_who_keeps_gpus_is_one_crew() -> None:
    four = (0, 1, 2, 3)
    mine = Place(4, "b", (0, 1), (Pool("a", four, (2,)), Pool("c", (0, 1), (0, 1)), Pool("d", four, (0, 1))))
    assert mine.keeps(4), "no other has more, and it is the first of equal ones that are able"
    assert not Place(4, "e", (0, 1), mine.rivals).keeps(4) and not Place(4, "b", (0,), mine.rivals).keeps(2)
