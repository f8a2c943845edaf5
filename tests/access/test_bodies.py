"""Large bodies of one key: what it may not send is not read, and of what it may send few are under way at once."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from app.sandbox.processes import give_memory_back, use_few_arenas
from app.settings import Settings
from app.web import places, problems
from app.web.body_limits import SMALL_BODY_BYTES, read_document
from app.web.places import BodyPlaces
from app.web.ratelimit import RequestLimits
from core.errors import TooManyRequests
from tests.access.test_doors import NESTED, Client
from tests.access.world import World

LARGE = b'{"records": [' + b"1," * 10_000 + b"1]}"


def sent(world: World, who: str, method: str, path: str, body: bytes = NESTED, **headers: str) -> Client:
    named = {"authorization": f"Bearer {world.tokens[who]}"} | headers
    return Client(method, path, body, **named).run(world.client.app)


@pytest.mark.parametrize(
    ("who", "method", "path", "status"),
    [
        ("viewer", "POST", "/v1/datasets", 403),
        ("viewer", "POST", "/v1/datasets/check", 403),
        ("viewer", "POST", "/v1/uploads", 403),
        ("viewer", "PATCH", "/v1/uploads/up_x", 403),
        ("owner", "POST", "/v1/keys", 403),
        ("viewer", "POST", "/v1/jobs/{job}/predict", 403),
        ("stranger", "POST", "/v1/jobs/{job}/predict", 404),
        ("trainer", "POST", "/v1/jobs/{queued}/predict", 409),
        ("trainer", "POST", "/v1/datasets/{dataset}/declarations", 403),
        ("stranger", "POST", "/v1/datasets/{dataset}/declarations", 404),
        ("viewer", "POST", "/v1/datasets/{dataset}/blocks", 403),
        ("admin", "POST", "/v1/nowhere", 404),
        ("admin", "POST", "/v1/datasets/{dataset}", 405),
    ],
)
def test_what_a_key_may_not_send_is_not_read(world: World, who: str, method: str, path: str, status: int) -> None:
    """Twelve bodies of 1 MB of a viewer, to a route that it may not use, took /healthz from 6 to 1,100 ms.

    Attack (Tenants): 12 parallel bodies of 1 MB of a viewer to a route that it may not use
    Now: 403 from the headers
    Also: tests/access/test_bodies.py::test_the_dashboard_reads_no_block_of_who_may_not_add_it
    """
    queued = world.queued_job(world.mine, "trainer") if "{queued}" in path else ""
    place = path.format(job=world.mine.job, dataset=world.mine.dataset, queued=queued)
    asked = sent(world, who, method, place)
    assert (asked.status, asked.asked) == (status, 0)


def test_what_it_may_send_is_read(shared_world: World) -> None:
    asked = sent(shared_world, "trainer", "POST", f"/v1/jobs/{shared_world.mine.job}/predict", LARGE)
    assert (asked.status, asked.asked) == (422, 1)


@pytest.mark.parametrize("path", ["draft", "check", "file"])
def test_the_dashboard_reads_no_declaration_of_an_analyst(shared_world: World, path: str) -> None:
    asked = sent(shared_world, "trainer", "POST", f"/dashboard/register/{path}", content_type="multipart/form-data")
    assert (asked.status, asked.asked) == (403, 0)


@pytest.mark.parametrize(("who", "status"), [("trainer", 403), ("granted-owner", 403), ("stranger", 404)])
def test_the_dashboard_reads_no_block_of_who_may_not_add_it(shared_world: World, who: str, status: int) -> None:
    address = f"/dashboard/datasets/{shared_world.mine.dataset}/manage/blocks"
    asked = sent(shared_world, who, "POST", address, content_type="multipart/form-data; boundary=x")
    assert (asked.status, asked.asked) == (status, 0)


class Slow(Client):
    """A body that arrives when it is let to."""

    def __init__(self, *arguments: Any, **headers: str) -> None:
        super().__init__(*arguments, **headers)
        self.let = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        found = await super().receive()
        await self.let.wait()
        return found


def test_two_large_bodies_of_a_key_are_under_way_and_the_others_are_not_read(shared_world: World) -> None:
    """Attack (Tenants): The same of a key that may send them
    Now: two under way, 16 wait unread; 64 MiB a minute; one document above 64 KiB is parsed at a time, once
    Also: tests/access/test_bodies.py::test_a_key_over_its_bytes_is_told_when_to_come_again
    """
    app, address = shared_world.client.app, f"/v1/jobs/{shared_world.mine.job}/predict"

    def body(who: str, content: bytes = LARGE, **headers: str) -> Slow:
        return Slow("POST", address, content, authorization=f"Bearer {shared_world.tokens[who]}", **headers)

    async def settled(bodies: list[Slow], count: int) -> None:
        async with asyncio.timeout(300):
            while sum(each.asked for each in bodies) < count:
                await asyncio.sleep(0.01)

    async def run() -> None:
        mine, other = [body("trainer") for _ in range(4)], body("granted-owner")
        tasks = [asyncio.create_task(app(each.scope, each.receive, each.send)) for each in [*mine, other]]  # type: ignore[arg-type]
        await settled([*mine, other], 3)
        assert other.asked == 1 and sum(each.asked for each in mine) == 2, "each key has its own places"
        small = body("trainer", b"{}", content_length="2")
        small.let.set()
        await app(small.scope, small.receive, small.send)  # type: ignore[arg-type]
        assert small.status == 422, "small ones need none"
        first = next(each for each in mine if each.asked)
        first.let.set()
        await settled(mine, 3)
        for each in [*mine, other]:
            each.let.set()
        await asyncio.gather(*tasks)
        assert [each.status for each in mine] == [422] * 4

    asyncio.run(run())


def test_who_waits_in_vain_or_is_cancelled_leaves_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "WAITING", 2)

    async def run() -> None:
        given = BodyPlaces(1, wait_s=0.05)

        async def hold() -> None:
            async with given.place("key"):
                pass

        async with given.place("key"):
            waiting = [asyncio.create_task(hold()) for _ in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(TooManyRequests):
                await hold()
            waiting[0].cancel()
            with pytest.raises(TooManyRequests):
                await waiting[1]
        await hold()
        assert given._lines == {}, "nothing stays of a key without bodies"

        patient = BodyPlaces(1, wait_s=60)

        async def hold_patiently() -> None:
            async with patient.place("key"):
                pass

        async with patient.place("key"):
            late = asyncio.create_task(hold_patiently())
            await asyncio.sleep(0)
        late.cancel()  # it has been given the place, and does not know it
        with pytest.raises(asyncio.CancelledError):
            await late
        await hold_patiently()
        assert patient._lines == {}

    asyncio.run(run())


def test_places_are_handed_on_between_event_loops() -> None:
    given, order = BodyPlaces(1, wait_s=60), []
    taken, leave = threading.Event(), threading.Event()

    def first() -> None:
        async def run() -> None:
            async with given.place("key"):
                taken.set()
                await asyncio.to_thread(leave.wait, 60)
                order.append("first")

        asyncio.run(run())

    def second() -> None:
        async def run() -> None:
            async with given.place("key"):
                order.append("second")

        asyncio.run(run())

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert taken.wait(300)
    threads[1].start()
    leave.set()
    for each in threads:
        each.join(300)
    assert order == ["first", "second"]


def test_bytes_a_minute_are_counted() -> None:
    limits = RequestLimits(Settings(limits_url="memory://", body_bytes_per_minute=1000))
    limits.body("key_a", 600)
    with pytest.raises(TooManyRequests) as refused:
        limits.body("key_a", 401)
    assert 1 <= refused.value.retry_after_s <= 60
    limits.body("key_b", 1000)


@pytest.mark.parametrize("length", [True, False], ids=["announced", "not announced"])
def test_a_key_over_its_bytes_is_told_when_to_come_again(world: World, length: bool) -> None:
    settings = world.settings.model_copy(update={"body_bytes_per_minute": len(LARGE)})
    world.client.app.state.limits = RequestLimits(settings)  # type: ignore[attr-defined]
    headers = {"content_length": str(len(LARGE))} if length else {}
    address = f"/v1/jobs/{world.mine.job}/predict"
    answers = [sent(world, "trainer", "POST", address, LARGE, **headers) for _ in range(2)]
    assert [each.status for each in answers] == [422, 429]
    assert answers[1].asked == (0 if length else 1)


def test_a_list_of_many_faults_is_not_built() -> None:
    """200,000 took 1.5 s, within which no other thread ran, and 200 MB that were not given back.

    Attack (Tenants): A declaration with 200,000 faults
    Now: counted, not listed; memory is given back
    """
    kind = TypeAdapter(list[str])

    def found(count: int) -> list[dict[str, Any]]:
        with pytest.raises(ValidationError) as error:
            kind.validate_json(json.dumps([1] * count))
        return problems.validation_errors(problems.errors_of(error.value))

    assert len(found(problems.MAX_LISTED)) == problems.MAX_SHOWN
    (told,) = found(problems.MAX_LISTED + 1)
    assert told["pointer"] == "" and str(problems.MAX_LISTED + 1) in told["detail"]


def test_a_declaration_with_many_faults_is_told_the_first(shared_world: World) -> None:
    columns = {"kind": "columns", "columns": ["a", *[1] * 5000]}
    asked = shared_world.ask("owner", "POST", "/v1/datasets", json={"features": columns})
    assert asked.status_code == 422, asked.text
    (pointer,) = (each["pointer"] for each in asked.json()["errors"] if "columns" in each["pointer"])
    assert pointer.endswith("/columns/1")


def test_large_documents_are_read_one_at_a_time() -> None:
    """Two at once, each twice, held Python's lock: everybody's answers waited behind both."""

    def at_once(size: int) -> list[bool]:
        both = threading.Barrier(2)

        def meets() -> bool:
            try:
                both.wait(0.5 if size > SMALL_BODY_BYTES else 60)
            except threading.BrokenBarrierError:
                return False
            return True

        async def run() -> list[bool]:
            return list(await asyncio.gather(*(read_document(meets, size) for _ in range(2))))

        return asyncio.run(run())

    assert at_once(SMALL_BODY_BYTES) == [True, True]
    assert at_once(SMALL_BODY_BYTES + 1) == [False, False]


def test_the_allocator_knows_its_calls() -> None:
    """Where there is no glibc they do nothing."""
    use_few_arenas()
    give_memory_back()
