"""Writers of a SQLite file take turns: none is starved, whatever the others do, and a dead one frees its place."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import text

from app.db.database import Database
from tests import processes
from tests.locks import until_waits_for_file

ROUNDS = 5


@pytest.fixture
def url(tmp_path: Path) -> str:
    made = f"sqlite:///{tmp_path / 'x.db'}"
    with Database(made).write() as session:
        session.execute(text("CREATE TABLE turns (id INTEGER PRIMARY KEY, writer INTEGER)"))
    return made


def write(url: str, number: int) -> None:
    with Database(url).write() as session:
        session.execute(text("INSERT INTO turns (writer) VALUES (:writer)"), {"writer": number})


def test_a_busy_writer_waits_for_who_is_next_in_line(url: str, tmp_path: Path) -> None:
    """Unqueued, one that always wants a turn had hundreds before another's. The kernel says who waits for what: a
    process that stands still meanwhile misses nothing."""
    context, place, line = processes.quick(), tmp_path / "x.db.writer", tmp_path / "x.db.turnstile"
    for _ in range(ROUNDS):
        waiting = [context.Process(target=write, args=(url, number)) for number in (1, 2, 3)]
        with Database(url).write() as session:
            session.execute(text("DELETE FROM turns"))
            session.execute(text("INSERT INTO turns (writer) VALUES (0)"))
            waiting[0].start()
            until_waits_for_file(place)
            for process in waiting[1:]:
                process.start()
            until_waits_for_file(line, 2)
        write(url, 0)  # at once again
        for process in waiting:
            process.join()
        with Database(url).read() as session:
            turns = list(session.scalars(text("SELECT writer FROM turns ORDER BY id")))
        assert turns[:2] == [0, 1] and sorted(turns) == [0, 0, 1, 2, 3]


def hold_for_ever(url: str, started: object) -> None:
    with Database(url).write():
        started.set()  # type: ignore[attr-defined]
        time.sleep(600)


def test_a_killed_writer_frees_its_place(url: str) -> None:
    context = processes.quick()
    started = context.Event()
    holder = context.Process(target=hold_for_ever, args=(url, started))
    holder.start()
    assert started.wait(300)
    assert holder.pid is not None
    holder.kill()
    with Database(url).write() as session:
        session.execute(text("INSERT INTO turns (writer) VALUES (9)"))
    holder.join()
    assert holder.exitcode == -signal.SIGKILL


def test_a_lease_does_not_wait_for_all_who_submit(url: str) -> None:
    """Sixteen submitters had the renewal of an 8 s lease wait for sixteen turns each time; now for two, whatever a turn
    takes. Counted in turns: no clock.

    Attack (Reliability): SQLite under 16 submitters, lease 8 s
    Now: what an attempt writes waits for two at most; nothing is loaded within a transaction
    Also: tests/db/test_writers.py::test_no_transaction_waits_for_libraries_to_load
    """
    db, turns, stop = Database(url), itertools.count(), threading.Event()
    began = [0]

    def submit() -> None:
        while not stop.is_set():
            with db.write() as session:
                began[0] = next(turns)
                session.execute(text("INSERT INTO turns (writer) VALUES (1)"))

    submitters = [threading.Thread(target=submit) for _ in range(16)]
    for each in submitters:
        each.start()
    waited = []
    for _ in range(30):
        before = began[0]
        with db.write(urgent=True):
            waited.append(began[0] - before)
    stop.set()
    for each in submitters:
        each.join()
    # One writes, one is next, and some may pass between the look at the counter and the queue.
    assert sorted(waited)[len(waited) // 2] <= 3, waited


def test_no_transaction_waits_for_libraries_to_load() -> None:
    """Two to ten seconds on a busy machine, in which SQLite's one writer renewed no lease."""
    script = (
        "import sys\n"
        "from app.lifecycle import attempts, sweeper\n"
        "assert 'scipy.optimize' not in sys.modules and 'dp_accounting' not in sys.modules\n"
        "from core.privacy import events\n"
        "from core.privacy.filters import filter_of, load_numerics\n"
        "load_numerics()\n"
        "before = set(sys.modules)\n"
        "event = events.Gaussian(noise_multiplier=2.0)\n"
        "for of in (filter_of('gdp', None), filter_of('rdp', 6.0)):\n"
        "    of.charge_event(event), of.budget(4.0, 1e-5)\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "assert not new & {'scipy', 'dp_accounting', 'numpy'}, new\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
