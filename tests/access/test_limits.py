"""Limits of a key: requests a minute, jobs in the queue, running jobs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import delete, select
from starlette.types import Message

from app.db.models import Job, Outbox
from app.jobs.event_stream import EventHub, EventStream, follow
from app.lifecycle.attempts import AttemptLog
from app.lifecycle.claims import claim
from app.main import create_app
from app.settings import Settings
from app.web import ratelimit
from app.web.ratelimit import RequestLimits
from core.errors import TooManyRequests
from tests import servers
from tests.access.world import World
from tests.conftest import BACKINGS
from tests.factories import AT_ONCE, job_spec


@pytest.fixture(params=BACKINGS)
def backing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def redis() -> Iterator[servers.Redis]:
    """A server of the test's own, which it may kill."""
    with servers.redis() as server:
        yield server


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that stands still for a moment is not away, and one that is away stays so until a test ends the pause."""
    monkeypatch.setattr(ratelimit, "TIMEOUT_S", 300.0)
    monkeypatch.setattr(ratelimit, "PAUSE_S", 300.0)


def refused(limits: RequestLimits, key: str = "key_a", limit: int | None = None) -> int | None:
    """Seconds to wait; None where the request is let through."""
    try:
        limits.request(key, limit)
    except TooManyRequests as error:
        return error.retry_after_s
    return None


def limits_at(url: str, **changes: Any) -> RequestLimits:
    return RequestLimits(Settings(limits_url=url, **({"requests_per_minute": 3} | changes)))


def test_requests_of_a_key_are_counted() -> None:
    limits = limits_at("memory://")
    assert [refused(limits) for _ in range(3)] == [None] * 3
    wait_s = refused(limits)
    assert wait_s is not None and 1 <= wait_s <= 60
    assert refused(limits, "key_b") is None, "another key's own"
    assert [refused(limits, "key_c", 1) is None for _ in range(2)] == [True, False], "a limit of its own"


def test_processes_that_share_a_store_count_together(redis: servers.Redis) -> None:
    one, two = limits_at(redis.url()), limits_at(redis.url())
    assert [refused(each) for each in (one, two, one)] == [None] * 3
    for each in (one, two, two):
        wait_s = refused(each)
        assert wait_s is not None and 1 <= wait_s <= 60


def test_a_broker_that_is_redis_is_the_store(redis: servers.Redis) -> None:
    one, two = (RequestLimits(Settings(broker_url=redis.url(), requests_per_minute=1)) for _ in range(2))
    assert refused(one) is None
    assert refused(two) is not None


def test_a_store_that_dies_costs_no_request_and_one_line(
    redis: servers.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    limits = limits_at(redis.url())
    assert refused(limits) is None
    redis.kill()
    with caplog.at_level(logging.WARNING):
        assert [refused(limits) for _ in range(3)] == [None] * 3, "this process counts for itself, from here"
        assert refused(limits) is not None
    assert [record.message for record in caplog.records] == [
        "the store of request limits does not answer (ConnectionError): this process counts for itself"
    ]
    redis.start()
    limits._away_until = 0.0  # the pause is over
    assert refused(limits, "key_b") is None
    assert limits._store() is limits._shared


def test_a_store_that_never_was_costs_no_start() -> None:
    limits = limits_at(f"redis://127.0.0.1:{servers.free_port()}/0")
    assert [refused(limits) is None for _ in range(4)] == [True, True, True, False]


def test_addresses_that_guess_keys_are_slowed() -> None:
    limits = limits_at("memory://", failed_sign_ins_per_minute=2)
    for same in (("10.0.0.1", "10.0.0.1", "10.0.0.1"), ("2001:db8::1", "2001:db8::2", "2001:db8::ffff")):
        for address in same[:2]:
            limits.failure(address)
        with pytest.raises(TooManyRequests):
            limits.failure(same[2])
    limits.failure("2001:db8:0:1::1")  # the next network
    limits.failure(None)


def test_the_answer_says_when_to_come_back(world: World) -> None:
    world.add_key("slow", "analyst", limits=_own(requests_per_minute=2))
    assert [world.ask("slow", "GET", "/v1/keys/self").status_code for _ in range(2)] == [200, 200]
    answer = world.ask("slow", "GET", "/v1/jobs")
    assert (answer.status_code, answer.json()["type"]) == (429, "/problems/too-many-requests")
    assert 1 <= int(answer.headers["Retry-After"]) == answer.json()["retry_after_s"] <= 60
    page = world.ask("slow", "GET", "/dashboard")
    assert page.status_code == 429 and "Retry-After" in page.headers
    assert world.ask("trainer", "GET", "/v1/jobs").status_code == 200


def test_failed_sign_ins_are_slowed_and_good_keys_are_not(world: World) -> None:
    settings = world.settings.model_copy(update={"failed_sign_ins_per_minute": 3})
    world.client.app.state.limits = RequestLimits(settings)  # type: ignore[attr-defined]
    answers = [world.ask("unknown", "GET", "/v1/jobs").status_code for _ in range(5)]
    assert answers == [401, 401, 401, 429, 429]
    assert world.ask("revoked", "GET", "/v1/jobs").status_code == 429
    assert world.ask("nobody", "GET", "/v1/jobs").status_code == 429, "no key counts as well"
    assert world.ask("trainer", "GET", "/v1/jobs").status_code == 200, "an office or a proxy has one address"


def _own(**limits: int) -> Any:
    from app.keys.service import OwnLimits

    return OwnLimits(**limits)


def submit(world: World, who: str, once: str) -> Any:
    spec = job_spec(world.mine.dataset, privacy={"target_epsilon": 0.01}, evaluation=None)
    return world.ask(who, "POST", "/v1/jobs", json=spec, headers={"Idempotency-Key": once})


def test_the_queue_of_a_key_is_bounded(world: World) -> None:
    world.add_key("busy", "analyst", limits=_own(max_queued_jobs=2))
    world.grant("busy", "train")
    made = [submit(world, "busy", str(number)) for number in range(2)]
    assert [each.status_code for each in made] == [201, 201]
    ledger = f"/v1/datasets/{world.mine.dataset}/ledger"
    before = world.ask("busy", "GET", ledger).json()["accounts"]
    refusal = submit(world, "busy", "2")
    assert (refusal.status_code, refusal.json()["type"]) == (409, "/problems/too-many-jobs")
    assert (refusal.json()["limit"], refusal.json()["queued"]) == (2, 2)
    assert world.ask("busy", "GET", ledger).json()["accounts"] == before
    assert submit(world, "busy", "0").json()["id"] == made[0].json()["id"], "a replay is the job that is there"
    assert submit(world, "trainer", "x").status_code == 201
    assert world.ask("busy", "POST", f"/v1/jobs/{made[0].json()['id']}/cancel").status_code == 202
    assert submit(world, "busy", "3").status_code == 201


def test_a_priority_above_the_key_s_largest_is_refused_and_costs_nothing(world: World) -> None:
    world.add_key("calm", "analyst", limits=_own(max_priority=2))
    world.grant("calm", "train")
    ledger = f"/v1/datasets/{world.mine.dataset}/ledger"
    before = world.ask("calm", "GET", ledger).json()["accounts"]

    def asked(path: str, priority: object) -> Any:
        spec = job_spec(world.mine.dataset, privacy={"target_epsilon": 0.01}, evaluation=None, priority=priority)
        return world.ask("calm", "POST", path, json=spec, headers={"Idempotency-Key": f"once-{priority}"})

    for path in ("/v1/jobs", "/v1/quotes"):
        for priority in (3, 11, -11, 1.5, "2"):
            refusal = asked(path, priority).json()
            assert (refusal["status"], refusal["errors"][0]["pointer"]) == (422, "/priority")
    assert "priorities up to 2" in asked("/v1/jobs", 3).json()["errors"][0]["detail"]
    assert world.ask("calm", "GET", ledger).json()["accounts"] == before
    plain, ranked = asked("/v1/quotes", 0).json(), asked("/v1/quotes", 2).json()
    assert (plain["mechanism"], plain["charge"]) == (ranked["mechanism"], ranked["charge"])
    made = asked("/v1/jobs", 2)
    assert (made.status_code, made.json()["spec"]["priority"]) == (201, 2)
    lowered = world.ask("admin", "PATCH", f"/v1/keys/{world.ids['calm']}", json={"max_priority": 0})
    assert lowered.status_code == 200
    assert asked("/v1/jobs", 2).json()["id"] == made.json()["id"], "a replay is the job that is there"


def test_a_selection_longer_than_the_key_s_jobs_may_run_is_refused_and_costs_nothing(world: World) -> None:
    """It would be ended before its result leaves, and an end by a time limit spends the whole hold."""
    world.add_key("brief", "analyst", limits=_own(max_job_s=60))
    world.grant("brief", "train")
    hpo = {
        "strategy": "random_size",
        "distribution": {"kind": "negative_binomial", "eta": 0.0, "gamma": 0.5},
        "most_runs": 2,
        "space": {"learning_rate": [0.1, 1.0]},
    }
    ledger = f"/v1/datasets/{world.mine.dataset}/ledger"
    before = world.ask("brief", "GET", ledger).json()["accounts"]
    for path in ("/v1/jobs", "/v1/quotes"):
        for seconds, pointer in ((60, "/hpo/duration_s"), (59, None)):
            spec = job_spec(world.mine.dataset, privacy={"target_epsilon": 0.01}, hpo=hpo | {"duration_s": seconds})
            answer = world.ask("brief", "POST", path, json=spec, headers={"Idempotency-Key": f"{seconds}"}).json()
            pointers = [each["pointer"] for each in answer.get("errors", ())]
            assert (pointer in pointers) == (pointer is not None), answer
            assert "/hpo/duration_s" not in pointers or seconds == 60
    assert world.ask("brief", "GET", ledger).json()["accounts"] == before


def test_two_submissions_can_not_both_take_the_last_place(world: World) -> None:
    world.add_key("busy", "analyst", limits=_own(max_queued_jobs=3))
    world.grant("busy", "train")
    assert submit(world, "busy", "first").status_code == 201  # also warms the price
    start = Barrier(8)

    def race(number: int) -> int:
        start.wait()
        return int(submit(world, "busy", f"race-{number}").status_code)

    with ThreadPoolExecutor(8) as pool:
        codes = sorted(pool.map(race, range(8)))
    assert codes == [201] * 2 + [409] * 6
    with world.db.read() as session:
        assert len(session.scalars(select(Job.id).where(Job.key_id == world.ids["busy"])).all()) == 3


def take(world: World, job: str, worker: str = "w") -> AttemptLog | None:
    with world.db.write() as session:
        held = claim(session, job, worker, 600.0)
    return None if held is None else AttemptLog(world.db, held, lease_s=600.0, max_attempts=3, cadence=AT_ONCE)


def notifiers(world: World) -> list[str]:
    """The jobs that a worker is notified for; the relay's work is done by this."""
    with world.db.write() as session:
        found = session.scalars(select(Outbox.job_id).where(Outbox.topic == "notify").order_by(Outbox.id)).all()
        session.execute(delete(Outbox).where(Outbox.topic == "notify"))
        return list(found)


@pytest.mark.parametrize("end", ["succeeded", "failed", "cancelled"])
def test_a_key_runs_as_many_jobs_as_it_may(world: World, end: str) -> None:
    world.add_key("one", "analyst", limits=_own(max_running_jobs=1))
    first, second, third = (world.queued_job(world.mine, "one") for _ in range(3))
    other = world.queued_job(world.mine, "trainer")
    running = take(world, first)
    assert running is not None
    assert take(world, second) is None, "it stays in the queue"
    with world.db.read() as session:
        assert session.get_one(Job, second).status == "queued"
    assert take(world, other) is not None, "another key's"
    assert take(world, first) is None, "a doubled message"
    notifiers(world)
    if end == "succeeded":
        running.succeed([], 0, [])
    elif end == "failed":
        running.fail("training-failed", "no")
    else:
        running.cancelled()
    assert notifiers(world) == [second], "the next one, in the same transaction; not the one after it"
    assert take(world, second) is not None
    assert take(world, third) is None


def test_two_places_that_are_free_at_once_are_both_notified_for(world: World) -> None:
    world.add_key("two", "analyst", limits=_own(max_running_jobs=2))
    jobs = [world.queued_job(world.mine, "two") for _ in range(4)]
    logs = [take(world, job) for job in jobs[:2]]
    assert take(world, jobs[2]) is None
    notifiers(world)
    for log in logs:
        assert log is not None
        log.cancelled()
    # Both places are free before anybody came: the second end rings for both.
    assert notifiers(world) == [jobs[2], jobs[2], jobs[3]]


def test_workers_at_once_do_not_pass_the_limit(world: World) -> None:
    """And none is left without a notifier: whoever was refused is notified when the one that runs ends."""
    world.add_key("two", "analyst", limits=_own(max_running_jobs=2))
    jobs = [world.queued_job(world.mine, "two") for _ in range(6)]
    start = Barrier(6)

    def work(job: str) -> AttemptLog | None:
        start.wait()
        return take(world, job, f"w-{job}")

    done: set[str] = set()
    with ThreadPoolExecutor(6) as pool:
        running = {job: log for job, log in zip(jobs, pool.map(work, jobs), strict=True) if log is not None}
        notifiers(world)
        while len(done) < len(jobs):
            assert len(running) == min(2, len(jobs) - len(done))
            list(pool.map(lambda log: log.cancelled(), running.values()))
            done |= set(running)
            notified = [job for job in dict.fromkeys(notifiers(world)) if job not in done]
            running = {job: log for job in notified if (log := take(world, job)) is not None}
    assert done == set(jobs)


@pytest.mark.parametrize("backing", ["postgres"])
def test_cancels_at_once_of_one_key_wait_for_each_other_in_one_order(world: World) -> None:
    """A settlement rings another job of the key: it must not wait for a row that waits for it."""
    world.add_key("busy", "analyst", limits=_own(max_running_jobs=1))
    world.grant("busy", "train")
    for _ in range(10):
        jobs = [world.queued_job(world.mine, "busy") for _ in range(2)]
        start = Barrier(2)

        def cancel(job: str, start: Barrier = start) -> int:
            start.wait()
            return int(world.ask("busy", "POST", f"/v1/jobs/{job}/cancel").status_code)

        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(cancel, jobs)) == [202, 202]


def test_the_app_starts_without_its_store(world: World) -> None:
    url = f"redis://127.0.0.1:{servers.free_port()}/0"
    app = create_app(world.settings.model_copy(update={"limits_url": url}))
    app.state.pricing.close()
    app.state.db.close()


def test_open_event_streams_are_bounded(world: World) -> None:
    hub = EventHub(world.db, places=3, places_of_key=2)
    world.client.app.state.hub = hub  # type: ignore[attr-defined]
    path = f"/v1/jobs/{world.mine.job}/events"

    def stream(who: str) -> Any:
        """The job has ended: so does its stream."""
        return world.ask(who, "GET", path, headers={"Accept": "text/event-stream"})

    assert stream("trainer").status_code == 200
    with hub.place(world.ids["trainer"]), hub.place(world.ids["trainer"]):
        refusal = stream("trainer")
        assert (refusal.status_code, refusal.json()["type"]) == (429, "/problems/too-many-requests")
        assert refusal.headers["Retry-After"] == "10"
        assert world.ask("trainer", "GET", path).status_code == 200, "pages of events are no streams"
        assert stream("looker").status_code == 200, "another key's own"
        with hub.place(world.ids["looker"]):
            refusal = stream("viewer")
            assert (refusal.status_code, refusal.json()["type"]) == (503, "/problems/unavailable")
    assert stream("trainer").status_code == 200, "every place was given back"


def test_a_reader_that_goes_away_gives_its_place_back(world: World) -> None:
    hub = EventHub(world.db, places=1, places_of_key=1)
    job = world.queued_job(world.mine, "trainer")
    sent: list[str] = []

    async def read() -> None:
        arrived = asyncio.Event()

        async def receive() -> Message:
            await arrived.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message["type"])
            if message["type"] == "http.response.body":
                arrived.set()

        scope = {"type": "http", "asgi": {"spec_version": "2.0"}}
        for _ in range(2):
            arrived.clear()
            caller = world.caller("trainer")
            await EventStream(hub, caller, follow(hub, caller, job, 0))(scope, receive, send)

    asyncio.run(read())
    assert sent.count("http.response.start") == 2
    with hub.place("key_other"):
        assert hub._readers == {}
