"""All crashes of one history. Each of its operations waits halfway, alone, while the home is copied: the copy is what
there is if all processes die there (`torn, dies`), and without an earlier operation what a power cut leaves (`lost`).

Copies whose files are the same, whose databases recover to the same bytes, and before which the same was told, are one
state: one restart stands for all operations that lead to it.
"""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from tests.writes.campaign import Bench, Outcome, delay_of, judge, kind_of, told
from tests.writes.library import Fault

DIED = -9
PATIENCE_S = 120.0  # without an operation


@dataclass
class State:
    """A home and what was told before, and the faults that lead there: each with what it hit, and how the history
    ended."""

    folder: Path
    cases: list[tuple[Fault, tuple[str, str], int]] = field(default_factory=list)


class Crashes:
    """The states of a history.

    Attributes:
        count: operations of the history.
        states: the distinct ones.
    """

    def __init__(self, bench: Bench, history: str) -> None:
        self.bench, self.history = bench, history
        self.folder = bench.folder / f"states-{history}"
        self.folder.mkdir()
        self.count, self.states = 0, list[State]()
        self._by_content: dict[str, State] = {}
        self._hits: dict[int, tuple[str, str]] = {}
        self._due: dict[int, list[int]] = defaultdict(list)
        bench.begin(history)
        code = self._played()
        for due in sorted(self._due):  # power cuts after the history's end
            for n in self._due[due]:
                self._add(Fault(n, "lost", due - n), code)
        bench.map.rest()

    def _played(self) -> int:
        """Plays the history, and notes the states at each operation. Returns its exit code."""
        codes, map_ = list[int](), self.bench.map
        map_.arm(self.bench.home, self.bench.side, None)
        acting = threading.Thread(target=lambda: codes.append(self.bench.act(self.history)), name="history")
        acting.start()
        heard = time.monotonic()
        while acting.is_alive():
            if (n := map_.waits) != 0:
                self._note(n)
                map_.go_on()
                heard = time.monotonic()
            elif time.monotonic() > heard + PATIENCE_S:
                raise RuntimeError(f"no operation after the {map_.count}th of {self.history}, and no end")
            else:
                time.sleep(0.0002)
        acting.join()
        if codes != [0]:
            raise RuntimeError(
                f"{self.history} fails without a fault: {self.bench.log.with_suffix('.out').read_text()}"
            )
        self.count = map_.count
        return codes[0]

    def _note(self, n: int) -> None:
        hit = self.bench.map.hit
        assert hit is not None
        self._hits[n] = (hit[0], kind_of(hit[1], self.bench.home))
        self._due[n + delay_of(n)].append(n)
        self._add(Fault(n, "torn, dies"), DIED)
        for lost in self._due.pop(n, ()):
            self._add(Fault(lost, "lost", n - lost), DIED, halfway=n)

    def _add(self, fault: Fault, code: int, halfway: int | None = None) -> None:
        """Copies the home, without what the fault loses, and keeps the copy if it is a new state."""
        folder = self.folder / f"{fault.at}-{fault.delay}"
        home = folder / self.bench.home.name
        folder.mkdir()
        shutil.copytree(self.bench.home, home)
        if self.bench.log.exists():
            shutil.copy(self.bench.log, folder)
        if fault.kind == "lost":
            self.bench.map.undo(halfway, (self.bench.home, home))
            side = self.bench.side.with_name(f"{self.bench.side.name}.{fault.at}")
            self.bench.map.cut_power(fault, side, (self.bench.home, home))
        content = content_of(folder)
        if content in self._by_content:
            shutil.rmtree(folder)
        else:
            self._by_content[content] = State(folder)
            self.states.append(self._by_content[content])
        self._by_content[content].cases.append((fault, self._hits[fault.at], code))

    def outcomes(self, done: Collection[tuple[str, Fault]] = ()) -> Iterator[Outcome]:
        """Restarts on each state, once; what came of each fault that is not done."""
        for state in self.states:
            cases = [case for case in state.cases if (self.history, case[0]) not in done]
            if not cases:
                continue
            shutil.rmtree(self.bench.case)
            shutil.copytree(state.folder, self.bench.case)
            code, later = self.bench.restart()
            before = told(self.bench.log)
            for fault, hit, ended in cases:
                outcome = Outcome(self.history, fault, hit, ended)
                judge(outcome, before, told(later), code, later.with_suffix(".out"))
                yield outcome


def content_of(folder: Path) -> str:
    """Names what a restart would find: all files, the database as it recovers, and what was told."""
    lines = []
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.name.startswith("scrimp.db"):
            continue
        lines.append(f"{name} {sha256(path.read_bytes()).hexdigest() if path.is_file() else ''}")
    lines.append(_recovered(next(folder.glob("*/scrimp.db"))))
    return sha256("\n".join(lines).encode()).hexdigest()


def _recovered(database: Path) -> str:
    """The digest of the database after its log is played; of database and log where SQLite refuses them."""
    log = database.with_name(database.name + "-wal")
    copy = database.parent.parent / "recovered.db"
    copied_log = copy.with_name(copy.name + "-wal")
    shutil.copy(database, copy)
    if log.exists():
        shutil.copy(log, copied_log)
    try:
        with closing(sqlite3.connect(copy)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return sha256(copy.read_bytes()).hexdigest()
    except sqlite3.DatabaseError:
        raw = database.read_bytes() + (log.read_bytes() if log.exists() else b"")
        return "refused " + sha256(raw).hexdigest()
    finally:
        for file in copy.parent.glob(copy.name + "*"):
            file.unlink()
