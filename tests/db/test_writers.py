"""Writers of a SQLite file take turns: none is starved, whatever the others do, and a dead one frees its place."""

from __future__ import annotations

import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest
from sqlalchemy import text

from app.db.engine import Database
from tests import processes

WRITES = 60


@pytest.fixture
def url(tmp_path: Path) -> str:
    made = f"sqlite:///{tmp_path / 'x.db'}"
    with Database(made).write() as session:
        session.execute(text("CREATE TABLE turns (id INTEGER PRIMARY KEY, writer INTEGER)"))
    return made


def write_often(url: str, number: int, barrier: object) -> None:
    db = Database(url)
    barrier.wait()  # type: ignore[attr-defined]
    for _ in range(WRITES):
        with db.write() as session:
            session.execute(text("INSERT INTO turns (writer) VALUES (:writer)"), {"writer": number})


def test_four_busy_writers_take_turns(url: str) -> None:
    """Between two turns of a writer that always wants one, the others have few (unqueued, hundreds were seen)."""
    context = processes.quick()
    barrier = context.Barrier(4)
    writers = [context.Process(target=write_often, args=(url, number, barrier)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    with Database(url).read() as session:
        turns = list(session.scalars(text("SELECT writer FROM turns ORDER BY id")))
    assert len(turns) == 4 * WRITES
    busy = turns[: min(len(turns) - turns[::-1].index(number) for number in range(4))]
    for number in range(4):
        mine = [i for i, writer in enumerate(busy) if writer == number]
        assert max((b - a for a, b in pairwise(mine)), default=0) <= 30


def hold_for_ever(url: str, started: object) -> None:
    with Database(url).write():
        started.set()  # type: ignore[attr-defined]
        time.sleep(600)


def test_a_killed_writer_frees_its_place(url: str) -> None:
    context = processes.quick()
    started = context.Event()
    holder = context.Process(target=hold_for_ever, args=(url, started))
    holder.start()
    assert started.wait(30)
    assert holder.pid is not None
    holder.kill()
    with Database(url).write() as session:
        session.execute(text("INSERT INTO turns (writer) VALUES (9)"))
    holder.join()
    assert holder.exitcode == -signal.SIGKILL
