"""An idle loop does not look at a database that nobody has changed, and misses no change."""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from app.db import changes
from app.db.changes import Changes
from app.db.database import Database
from app.repeat import in_thread, repeat
from tests.conftest import BACKINGS
from tests.processes import until

CHANGE = "DELETE FROM alembic_version"


@pytest.fixture(params=BACKINGS)
def backing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def watch(db: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Changes]:
    monkeypatch.setattr(changes, "LONGEST_S", 3600.0)
    found = Changes(db)
    yield found
    found.close()


def test_a_look_is_due_after_each_commit(db: Database, watch: Changes) -> None:
    always = db.engine.dialect.name == "postgresql"
    assert watch.due()
    assert watch.due() == always
    with db.write() as session:
        session.connection().exec_driver_sql(CHANGE)
        assert watch.due() == always  # not before the commit
    assert watch.due()
    assert watch.due() == always


def test_a_look_is_due_by_the_clock_too(db: Database, watch: Changes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "LONGEST_S", 0.0)
    assert watch.due() and watch.due()


def test_each_loop_has_a_clock_of_its_own(db: Database, watch: Changes) -> None:
    always = db.engine.dialect.name == "postgresql"
    with closing(Changes(db, 0.0)) as hasty:
        assert hasty.due() and hasty.due()
    assert watch.due()
    assert watch.due() == always


def test_a_look_that_is_being_made_is_not_closed(tmp_path: Path) -> None:
    """A cancelled task closed the connection that its thread was using, and the process ended by SIGSEGV."""
    watch = Changes(Database(f"sqlite:///{tmp_path}/any.db"))
    told: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    class Slow:
        def execute(self, _statement: str) -> Slow:
            begun.set()
            assert go_on.wait(300)
            told.append("answered")
            return self

        def fetchone(self) -> tuple[int]:
            return (1,)

        def close(self) -> None:
            told.append("closed")

    watch._connection = Slow()  # type: ignore[assignment] # SQLite cannot be told to be slow
    looking, closing = threading.Thread(target=watch.due), threading.Thread(target=watch.close)
    looking.start()
    assert begun.wait(300)
    closing.start()
    closing.join(0.05)
    go_on.set()
    for each in (looking, closing):
        each.join(300)
    assert told == ["answered", "closed"] and not watch.due()


def test_a_loop_sees_what_is_committed_while_it_looks(db: Database, watch: Changes) -> None:
    looks: list[int] = []
    stop = threading.Event()

    def look() -> bool:
        looks.append(1)
        if len(looks) == 1:  # another process, during the first look
            with db.write() as session:
                session.connection().exec_driver_sql(CHANGE)
            looks.append(0)  # it has not failed
        if len(looks) == 3:
            stop.set()
        return False

    loop = threading.Thread(target=repeat, args=(look, stop, 0.001, watch), daemon=True)
    loop.start()
    loop.join(300)
    assert looks == [1, 0, 1]


def test_a_loop_that_failed_or_has_more_asks_nobody() -> None:
    class Never:
        def due(self) -> bool:
            return False

        def rest(self, stop: threading.Event, poll_s: float) -> bool:
            return stop.wait(poll_s)

        def close(self) -> None:
            ends.append("closed")

    ends: list[str] = []
    stop = threading.Event()

    def work() -> bool:
        ends.append("called")
        if ends.count("called") == 2:
            raise OSError("away")
        if ends.count("called") == 3:
            stop.set()
        return True

    repeat(work, stop, 0.001, Never())
    assert ends == ["called"] * 3 + ["closed"]


@pytest.mark.parametrize("backing", ["sqlite"])
def test_idle_loops_sleep_while_one_thread_reads_the_files_version(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, version, stop = list[str](), changes._version, threading.Event()

    def read(connection: sqlite3.Connection) -> int:
        reads.append(threading.current_thread().name)
        return version(connection)

    monkeypatch.setattr(changes, "_version", read)
    loops = [Changes(db, 3600.0) for _ in range(3)]
    looks = [list[None]() for _ in loops]
    threads = [
        in_thread(f"loop-{n}", partial(looks[n].append, None), stop, 0.001, loop) for n, loop in enumerate(loops)
    ]
    until(lambda: all(looks))
    start = len(reads)
    until(lambda: len(reads) > start + 200)
    others = Counter(each for each in reads[start:] if each.startswith("loop-"))
    assert sum(others.values()) <= 2 * len(loops), "at most the first beat's"
    before = [len(each) for each in looks]
    with db.write() as session:
        session.connection().exec_driver_sql(CHANGE)
    until(lambda: all(len(each) > count for each, count in zip(looks, before, strict=True)))
    stop.set()
    for thread in threads:
        thread.join(300)
    assert not any(each.is_alive() for each in threads)
    pulse = changes._pulse(Path(str(db.engine.url.database)))
    until(lambda: not pulse._runs)  # its thread ends with them
