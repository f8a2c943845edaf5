"""A cluster's room: all ranks of a job or none, and a job whose turn it is starves behind no smaller one."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select

from app.admission.request import Limits, Request
from app.db.database import Database
from app.db.models import Attempt, Job, Outbox
from app.jobs import steering
from app.keys.service import Caller
from app.lifecycle.queue.presence import GpuWorkers
from app.lifecycle.queue.room import Need, Room, wake
from core.contracts.job_spec import JobSpec
from core.contracts.runtime import Runtime
from core.errors import InvalidRequest
from tests.by_night import but
from tests.factories import NO_HEADS, job_spec, numerics
from tests.lifecycle.conftest import Submit, job_row, no_wait
from tests.lifecycle.drivers import Devices, Driver, Queue, wake_all
from tests.lifecycle.test_devices import waiting_for


@pytest.fixture
def queue(db: Database, submit: Submit) -> Queue:
    return Queue(db, submit)


def drivers_of(db: Database, size: int, **devices: int) -> list[Driver]:
    cluster = Devices(**devices)
    return [Driver(db, 1 + index, cluster) for index in range(size)]


def woken(db: Database) -> list[str]:
    """The jobs by whose messages workers were woken since the last look."""
    with db.write() as session:
        found = list(session.scalars(select(Outbox.job_id).where(Outbox.topic == "notify")))
        session.execute(Outbox.__table__.delete())  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_a_job_is_claimed_with_room_for_all_its_ranks_and_keeps_its_turn(db: Database, queue: Queue, kind: str) -> None:
    drivers = drivers_of(db, 3, **{kind: 3})
    first = queue.add(1, kind)
    assert [each.job_id for each in wake_all(drivers)] == [first]
    large, small = queue.add(3, kind, key=1), queue.add(1, kind)
    assert not wake_all(drivers) and job_row(db, large).status == "queued", "two are free, and it needs three"
    assert {each.ranks for each in drivers[1].asked} == {3}, "nobody asks for the small one's"
    drivers[0].end()
    held = drivers[1].claim()
    assert held is not None and (held.job_id, held.ranks) == (large, 3)
    assert not wake_all(drivers)
    with db.read() as session:
        assert session.scalars(select(Attempt.ranks).where(Attempt.job_id == large)).all() == [3]
    drivers[1].end()
    assert [each.job_id for each in wake_all(drivers)] == [small]


def test_jobs_for_another_kind_of_device_pass(db: Database, queue: Queue) -> None:
    drivers = drivers_of(db, 3, cuda=2, cpu=2)
    queue.add()
    assert drivers[0].claim() is not None
    large = queue.add(2, key=1)
    auto, on_processors = queue.add(1, "auto"), queue.add(2, "cpu")
    assert [each.job_id for each in wake_all(drivers)] == [on_processors]
    assert job_row(db, auto).status == job_row(db, large).status == "queued", "who is planned for a GPU waits for one"
    assert job_row(db, auto).spec["runtime"]["device"] == "cuda"


def test_a_job_on_processors_keeps_them_and_no_gpu(db: Database, queue: Queue) -> None:
    drivers = drivers_of(db, 3, cuda=2, cpu=2)
    queue.add(1, "cpu")
    assert drivers[0].claim() is not None
    queue.add(2, "cpu", key=1)
    queue.add(1, "cpu")
    sharded, on_gpu = queue.add(2, "auto", key=2, shard="optimizer"), queue.add()
    assert [each.job_id for each in wake_all(drivers)] == [on_gpu], "a sharded job runs on processors"
    assert job_row(db, sharded).status == "queued"


def test_a_job_larger_than_the_cluster_delays_nobody_and_says_what_it_waits_for(db: Database, queue: Queue) -> None:
    drivers = drivers_of(db, 1, cuda=2)
    large, two = queue.add(3), queue.add(2)
    assert (waiting_for(db, large), waiting_for(db, two)) == ("gpus", "worker")
    assert [each.job_id for each in wake_all(drivers)] == [two]
    assert GpuWorkers(db, 30.0).lack(Runtime(processes=2, device="cuda"), None) is None, "the cluster still has so many"


def test_auto_takes_the_gpus_that_are_free(db: Database, queue: Queue) -> None:
    drivers = drivers_of(db, 2, cuda=4)
    queue.add()
    assert drivers[0].claim() is not None
    queue.add("auto", "auto", key=1)
    held = drivers[1].claim()
    assert held is not None and held.ranks == 3


def test_a_job_that_was_ready_goes_on_with_fewer(db: Database, queue: Queue) -> None:
    (driver,) = drivers_of(db, 1, cuda=3)
    large = queue.add(3)
    assert driver.claim() is not None
    driver.log().ready("cuda", numerics().model_copy(update={"device": "cuda"}), processes=(1, 2, 3))
    driver.end("lost")
    no_wait(db, large)
    (smaller,) = drivers_of(db, 1, cuda=2)
    held = smaller.claim()
    assert held is not None and (held.job_id, held.ranks) == (large, 2)


@pytest.mark.parametrize("leave", [partial(steering.cancel, heads=NO_HEADS), steering.pause], ids=["cancel", "pause"])
def test_the_end_of_a_job_that_waits_wakes_who_waited_behind_it(db: Database, queue: Queue, leave: Any) -> None:
    """The messages of the jobs behind it have come and gone: without another they would wait for the next sweep."""
    drivers = drivers_of(db, 2, cuda=2)
    queue.add()
    assert drivers[0].claim() is not None
    large, small = queue.add(2, key=1), queue.add()
    assert drivers[1].claim() is None
    woken(db)
    leave(db, Caller(queue.keys[1], "test", "admin"), large)
    assert woken(db) == [small]
    held = drivers[1].claim()
    assert held is not None and held.job_id == small


def test_room_that_is_free_again_wakes_one_worker_of_each_queue(db: Database, queue: Queue) -> None:
    on_gpu, on_processor = queue.add(), queue.add(1, "cpu")
    queue.add()
    woken(db)
    with db.write() as session:
        wake(session)
    assert woken(db) == [on_gpu, on_processor]


def test_a_worker_by_itself_has_one_gpu(db: Database, queue: Queue) -> None:
    """Ranks share its processors; a job that was ready on several GPUs goes on with one."""
    assert Room(4, 1).need(Runtime.model_validate({"processes": 4, "device": "cpu"})) == Need("cpu", 4, 4)
    assert Room(4, 1).need(Runtime.model_validate({"processes": 4}), "cuda", 2) == Need("cuda", 1, 1, 2)


@pytest.mark.parametrize(
    ("runtime", "device", "gpus", "need"),
    [
        ({"processes": 4, "device": "cuda"}, None, 8, Need("cuda", 4, 4)),
        ({"processes": 4, "device": "cpu"}, None, 8, Need("cpu", 4, 4)),
        ({"processes": 4}, None, 8, Need("cpu", 4, 4)),
        ({"processes": 4, "device": "cuda"}, None, 2, None),
        ({"processes": 4, "shard": "optimizer"}, None, 8, Need("cpu", 4, 4)),
        ({"processes": 4, "device": "cuda", "threads": 3}, "cuda", 2, Need("cuda", 2, 2, 3)),
        ({"processes": 4}, "cpu", 8, Need("cpu", 4, 4)),
        ({"processes": 8}, "cpu", 8, Need("cpu", 6, 6)),
        ({"processes": 8}, None, 2, None),
        ({"processes": "auto", "device": "cuda"}, None, 8, Need("cuda", 1, 8)),
        ({"processes": "auto", "device": "cuda"}, None, 0, None),
        ({"processes": "auto", "device": "cpu"}, None, 8, Need("cpu", 1, 1)),
        ({"device": "cuda"}, None, 1, Need("cuda", 1, 1)),
        ({}, None, 1, Need("cpu", 1, 1)),
        ({}, "cuda", 1, Need("cuda", 1, 1)),
    ],
)
def test_what_a_job_needs(runtime: dict[str, Any], device: str | None, gpus: int, need: Need | None) -> None:
    assert Room(6, gpus).need(Runtime.model_validate(runtime), device) == need


def test_a_machine_without_processors_for_ranks_runs_none_there() -> None:
    """As a head has that keeps the cluster's books alone."""
    assert Room(0, 2).need(Runtime(), "cpu", 4) is None and Room(0, 2).need(Runtime(), "cuda") == Need("cuda", 1, 1)


@pytest.mark.parametrize(
    ("runtime", "refused"),
    [({"processes": 2, "device": "cuda"}, True), ({"processes": 2}, False), ({"device": "cuda"}, False)],
)
def test_several_gpus_are_refused_where_there_is_no_cluster(runtime: dict[str, Any], refused: bool) -> None:
    spec, caller = JobSpec.model_validate(job_spec("ds", runtime=runtime)), Caller("key", "test", "analyst")
    assert Request.of(caller, spec, Limits(has_cluster=True)).spec == spec
    if refused:
        with pytest.raises(InvalidRequest, match="ray start --head --num-gpus"):
            Request.of(caller, spec, Limits())
    else:
        assert Request.of(caller, spec, Limits()).spec == spec


class Shop:
    """Random arrivals of large and small jobs, and random ends, on a cluster of four GPUs and two processors. Notes how
    many ends on GPUs each large job saw while it waited."""

    def __init__(self, db: Database, queue: Queue, seed: int) -> None:
        self.db, self.queue, self.draw = db, queue, random.Random(seed)
        self.drivers = drivers_of(db, 6, cuda=4, cpu=2)
        self.waits: dict[str, int] = {}
        self.longest = self.large = self.small = 0

    def run(self, turns: int) -> None:
        for _ in range(turns):
            self.arrive()
            self.draw.shuffle(self.drivers)
            for each in wake_all(self.drivers):
                asked = job_row(self.db, each.job_id).spec["runtime"]
                assert each.ranks == asked["processes"]
                self.waits.pop(each.job_id, None)
                self.small += asked == {**asked, "processes": 1, "device": "cuda"}
            assert min(self.drivers[0].devices.free.values()) >= 0
            self.end()

    def arrive(self) -> None:
        """One key is greedy: its small jobs always wait."""
        while self.queued(1) < 4:
            self.queue.add()
        if self.draw.random() < 0.3 and len(self.waits) < 3:
            large = self.queue.add(self.draw.choice((2, 3, 4)), key=1 + self.draw.randrange(3))
            self.waits[large] = 0
            self.large += 1
        if self.draw.random() < 0.2:
            self.queue.add(device="cpu")

    def queued(self, processes: int) -> int:
        with self.db.read() as session:
            specs = session.scalars(select(Job.spec).where(Job.status == "queued")).all()
        return sum(each["runtime"]["processes"] == processes for each in specs)

    def end(self) -> None:
        busy = [each for each in self.drivers if each.held is not None]
        if not busy:
            return
        ended = self.draw.choice(busy)
        assert ended.held is not None and ended.need is not None
        job, is_large, on_gpu = ended.held.job_id, ended.held.ranks > 1, ended.need.kind == "cuda"
        how = self.draw.choice(("succeeded", "failed", "failed", "lost"))
        ended.end(how)
        if how == "lost":
            no_wait(self.db, job)
            if is_large:
                self.waits[job] = 0
        for each in self.waits if on_gpu else ():
            self.waits[each] += 1
            self.longest = max(self.longest, self.waits[each])


# Each of the three other keys' large jobs, and a round of the greedy key's, comes before one at most twice; each then
# sees at most four ends before it is claimed.
BOUND = 32


@pytest.mark.parametrize(("seed", "turns"), but([(1, 30), (2, 150), (3, 150)], lambda case: case[1] == 30))
def test_random_jobs_share_no_device_and_starve_neither_themselves_nor_others(
    db: Database, queue: Queue, seed: int, turns: int
) -> None:
    shop = Shop(db, queue, seed)
    shop.run(turns)
    assert shop.large > turns / 8 and shop.longest <= BOUND, shop.longest
    if turns > 100:
        assert shop.small > 10, "small jobs go on"
