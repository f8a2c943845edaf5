"""Open lists: one look for all readers of a process, and each sees what its own list shows."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
from sqlalchemy import delete, event, select

from app.dashboard.job_list import asked_jobs
from app.dashboard.list_stream import page_of
from app.db.changes import Changes
from app.db.database import Database
from app.db.models import ApiKey, Dataset, Grant, Job
from app.grants import service as grants
from app.jobs.list_routes import page_of_jobs
from app.keys.service import Caller, generation_of, still
from app.lifecycle.queue.presence import GpuWorkers
from app.web.open_lists import EMPTY, KEEP_ALIVE, ListHub, Reader, changes_of, state_of
from core.errors import NotFound
from tests.dashboard.scene import Key, Scene

CHEAP: dict[str, Any] = {"privacy": {"target_epsilon": 0.05}, "evaluation": None}
FILTERS: list[dict[str, Any]] = [
    {},
    {"status": "running"},
    {"tag": "paper"},
    {"q": "other"},
    {"sort": "name"},
    {"dataset": "mine"},
    {"dataset": "mine", "status": "queued", "q": "job"},
]


T = TypeVar("T")


@pytest.fixture
def backing() -> str:
    return "sqlite"


def run(work: Coroutine[Any, Any, T]) -> T:
    """In a thread: this one's event loop may be the browser's (conftest.chromium)."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def caller_of(db: Database, key: Key) -> Caller:
    with db.read() as session:
        row = session.get_one(ApiKey, key.id)
        return still(row, generation_of(row.secret_hmac))


def reader_of(db: Database, key: Key, **asked: Any) -> Reader:
    caller = caller_of(db, key)
    return Reader(page_of(db, caller, asked_jobs(**asked)), key.id, lambda row: still(row, caller.generation))


def add_job(scene: Scene, dataset: str, name: str) -> str:
    with scene.db.read() as session:
        dataset_id = session.scalar(select(Dataset.id).where(Dataset.name == dataset))
    return scene.job(str(dataset_id), name, **CHEAP)


@pytest.fixture
def shared(scene: Scene) -> Scene:
    """Two data sets with two jobs each, one of which an analyst may look at."""
    for dataset in ("mine", "theirs"):
        scene.dataset(dataset)
    with scene.db.write() as session:
        session.execute(delete(Grant))
        grants.give(session, scene.owner.caller, "mine", scene.analyst.id, "view", None)
    for dataset, name in (("mine", "a job"), ("mine", "b job"), ("theirs", "other job"), ("theirs", "z other")):
        add_job(scene, dataset, name)
    with scene.db.write() as session:
        for job in session.query(Job).filter(Job.name.like("%b job%") | Job.name.like("z%")):
            job.tags, job.status = ",paper,", "running"
    return scene


@pytest.fixture
def hub(scene: Scene) -> ListHub:
    return ListHub(scene.db, look_s=0.0)


def plain_state(scene: Scene, key: Key, **asked: Any) -> str:
    """The state of the page as the list itself shows it: its jobs, and what their rows say."""
    query = asked_jobs(**asked)
    page = page_of_jobs(scene.db, caller_of(scene.db, key), GpuWorkers(scene.db, 10.0), query)
    with scene.db.read() as session:
        return state_of([(job.id, job.status, session.get_one(Job, job.id).events) for job in page.items])


def test_every_reader_s_state_is_that_of_its_own_list(shared: Scene, hub: ListHub) -> None:
    stranger = shared.key("analyst")
    keys = (shared.admin, shared.owner, shared.analyst, stranger)
    asked = [(key, filters) for key in keys for filters in FILTERS if not (key is stranger and "dataset" in filters)]
    found = hub.look([reader_of(shared.db, key, **filters) for key, filters in asked])
    assert found == [plain_state(shared, key, **filters) for key, filters in asked]
    assert len(set(found)) == 7 and found[-1] == EMPTY, "a key without a grant sees no job"
    with pytest.raises(NotFound):
        reader_of(shared.db, stranger, dataset="mine")


def test_fifty_readers_cost_the_statements_of_one(shared: Scene, hub: ListHub) -> None:
    with_keys = [shared.key("analyst") for _ in range(25)]
    readers = [reader_of(shared.db, key, **more) for key in with_keys for more in ({}, {"sort": "name"})]
    said: list[str] = []
    event.listen(shared.db.engine, "before_cursor_execute", lambda *told: said.append(told[2]))

    def statements(some: list[Reader]) -> int:
        said.clear()
        hub.look(some)
        return len([each for each in said if not each.startswith(("BEGIN", "COMMIT", "ROLLBACK"))])

    assert (statements(readers[:1]), statements(readers)) == (2, 2)
    admins = [reader_of(shared.db, shared.admin) for _ in range(50)]
    assert statements(admins) == 2 and said[-1].count("FROM jobs") == 1, "the same page is read once"


def test_a_state_moves_with_the_jobs_that_its_reader_sees_and_no_others(shared: Scene, hub: ListHub) -> None:
    reader = reader_of(shared.db, shared.analyst)
    first = hub.look([reader])
    assert hub.look([reader]) == first
    add_job(shared, "theirs", "another")
    assert hub.look([reader]) == first
    shared.start(add_job(shared, "mine", "begun"))
    assert hub.look([reader]) != first


def test_a_reader_whose_key_or_grant_has_ended_sees_nothing(shared: Scene, hub: ListHub) -> None:
    readers = [reader_of(shared.db, shared.analyst), reader_of(shared.db, shared.analyst, dataset="mine")]
    assert EMPTY not in hub.look(readers)
    with shared.db.write() as session:
        grants.take_back(session, shared.owner.caller, "mine", shared.analyst.id)
    assert hub.look(readers) == [EMPTY, EMPTY]
    with shared.db.write() as session:
        session.get_one(ApiKey, shared.analyst.id).secret_hmac = "0" * 64
    assert hub.look([*readers, reader_of(shared.db, shared.admin)])[:2] == [None, None]


def heard(hub: ListHub, readers: list[Reader], last: str | None = None, is_there: bool = True) -> list[list[str]]:
    """What each reader hears until it ends, or until it has heard two messages."""

    async def listen(messages: AsyncIterator[str]) -> list[str]:
        found = []
        async for each in messages:
            found.append(each)
            if len(found) == 2:
                break
        return found

    async def all_of_them() -> list[list[str]]:
        return await asyncio.gather(*(listen(changes_of(hub, each, last, lambda: is_there)) for each in readers))

    return run(all_of_them())


class Told(ListHub):
    """A hub whose looks find what the test says; after that all sessions end."""

    def __init__(self, db: Database, states: list[str]) -> None:
        super().__init__(db, 0.0)
        self.states: Iterator[str] = iter(states)
        self.looks = 0

    def look(self, readers: Any) -> list[str | None]:
        self.looks += 1
        return [next(self.states, None)] * len(readers)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look is one at the database."""
    monkeypatch.setattr("app.web.open_lists.Changes.due", lambda _self: True)


@pytest.mark.usefixtures("always")
def test_a_change_is_told_once_and_a_page_that_has_seen_it_is_not_told_again(shared: Scene) -> None:
    def told(states: list[str], last: str | None = None) -> list[str]:
        return heard(Told(shared.db, states), [reader_of(shared.db, shared.admin)], last)[0]

    assert told(["aa"]) == ["id: aa\ndata: changed\n\n"] and told(["aa"], "aa") == []
    assert told(["bb"], "aa") == ["id: bb\ndata: changed\n\n"] and told([]) == []


def test_lists_outlive_a_look_that_failed(shared: Scene, hub: ListHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever failed: without a next look, a list would neither change nor end with its key."""
    failures = iter([sqlite3.OperationalError("disk I/O error"), RuntimeError("no more threads")])

    def due(_self: Changes) -> bool:
        failure = next(failures, None)
        if failure is not None:
            raise failure
        return True

    monkeypatch.setattr("app.web.open_lists.Changes.due", due)
    reader = reader_of(shared.db, shared.analyst)

    async def first() -> str:
        told = changes_of(hub, reader, None, lambda: True)
        try:
            return await asyncio.wait_for(anext(told), 30)
        finally:
            await told.aclose()

    assert run(first()).startswith("id: ") and next(failures, None) is None


@pytest.mark.usefixtures("always")
def test_a_quiet_list_keeps_its_connection(shared: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.web.open_lists.KEEP_ALIVE_S", 0.0)
    states = ["aa"] * 1000
    assert heard(Told(shared.db, states), [reader_of(shared.db, shared.admin)], "aa")[0] == [KEEP_ALIVE] * 2


@pytest.mark.usefixtures("always")
def test_an_empty_list_ends_with_its_data_set(shared: Scene) -> None:
    for is_there, messages in ((False, []), (True, [f"id: {EMPTY}\ndata: changed\n\n"])):
        hub = Told(shared.db, [EMPTY])
        assert heard(hub, [reader_of(shared.db, shared.admin)], is_there=is_there)[0] == messages


def test_all_open_lists_hear_of_a_change(shared: Scene, hub: ListHub) -> None:
    """The real look, in turns with a write between the first message and the second."""
    job = add_job(shared, "mine", "begins")

    async def follow() -> list[list[str]]:
        readers = [reader_of(shared.db, key) for key in (shared.admin, shared.owner, shared.analyst) for _ in range(3)]
        streams = [changes_of(hub, each, None, lambda: True) for each in readers]
        first = await asyncio.gather(*(anext(each) for each in streams))
        await asyncio.to_thread(shared.start, job)
        second = await asyncio.wait_for(asyncio.gather(*(anext(each) for each in streams)), 30)
        for each in streams:
            await each.aclose()
        return [first, second]

    first, second = run(follow())
    assert all(each.endswith("\ndata: changed\n\n") for each in (*first, *second))
    assert all(one != other for one, other in zip(first, second, strict=True)) and not hub._readers
