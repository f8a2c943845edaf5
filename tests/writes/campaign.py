"""Runs a history with a fault at its n-th operation, cuts the power, starts again without the library, and judges."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.invariants import ENDED
from tests.e2e.conftest import write_csv
from tests.writes.library import Fault, Map, library

Json = dict[str, Any]
HISTORIES = ("registered", "trained")
STEPS, ROUNDING = 2, 2  # steps of the job (tests/writes/history.py); units by which parts of a charge may differ
DELAYS = (1, 7, 40)  # operations between a lost one and the power cut


def delay_of(n: int) -> int:
    """How many operations after the n-th, which is lost, the power is cut."""
    return DELAYS[n % len(DELAYS)]


@dataclass
class Outcome:
    """What came of one fault.

    Attributes:
        hit: the operation and the file's kind; None: the history had no n-th operation.
        code: how the history's process ended.
        end: what the restart did.
        faults: what must not be.
    """

    history: str
    fault: Fault
    hit: tuple[str, str] | None = None
    code: int = 0
    end: str = "nothing"
    faults: list[str] = field(default_factory=list)


class Loaded:
    """A process that has loaded the service, and forks for each history."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("SCRIMP_")}
        self.folder = folder
        with (folder / "loaded.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.writes.history"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=plain | {"OMP_NUM_THREADS": "1", "SCRIMP_HOME": str(folder / "none")} | environment,
            )
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError((self.folder / "loaded.log").read_text())
        return line.strip()

    def act(self, act: str, home: Path, log: Path, csv: Path) -> int:
        """Runs an act; returns its exit code, or the signal that ended it, negative."""
        assert self.process.stdin is not None
        output = str(log.with_suffix(".out"))
        asked = {"act": act, "home": str(home), "log": str(log), "csv": str(csv), "output": output}
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        code = int(json.loads(self._line())["code"])
        self.end_attempts()
        return code

    def end_attempts(self) -> None:
        """Ends what a killed history left: as a machine that loses its power."""
        left = [each for each in psutil.Process(self.process.pid).children(recursive=True) if _is_left(each)]
        for each in left:
            with suppress(psutil.Error):
                each.kill()
        psutil.wait_procs(left, 30.0)

    def close(self) -> None:
        """Ends the process and all that it started."""
        tree = psutil.Process(self.process.pid).children(recursive=True)
        with self.process:  # closes its pipes
            self.process.kill()
        for each in tree:
            with suppress(psutil.Error):
                each.send_signal(signal.SIGKILL)


def _is_left(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.name() == "scrimp-attempt" and process.status() != psutil.STATUS_ZOMBIE
    return False


class Bench:
    """Homes to begin with, two loaded processes, and the map."""

    def __init__(self, folder: Path, map_: Map, faulty: Loaded, plain: Loaded) -> None:
        self.folder, self.map, self.faulty, self.plain = folder, map_, faulty, plain
        self.csv, self.last_count = write_csv(folder / "small.csv", rows=400, seed=7), 0
        self.case, self.begins = folder / "case", dict[str, Path]()
        self.home, self.side, self.log = self.case / "home", self.case / "side", self.case / "told.jsonl"
        self.home.mkdir(mode=0o700, parents=True)
        self._must(plain, "prepare", write_csv(folder / "priced.csv", rows=400, seed=8))
        self._keep("registered")
        self._must(plain, "registered", self.csv)
        self._keep("trained")

    def warm(self) -> None:
        """What each fork would do anew its parents do once: seconds, which a campaign saves many times."""
        self.begin("registered")
        for loaded in (self.plain, self.faulty):
            self._must(loaded, "warm", self.csv)

    def _keep(self, history: str) -> None:
        self.begins[history] = self.folder / history
        shutil.copytree(self.home, self.begins[history])

    def _must(self, loaded: Loaded, act: str, csv: Path) -> None:
        log = self.folder / f"{act}.jsonl"
        if loaded.act(act, self.home, log, csv) != 0:
            raise RuntimeError(f"{act} fails without a fault: {log.with_suffix('.out').read_text()}")

    def run(self, history: str, fault: Fault) -> Outcome:
        """One history with a fault, and what a restart finds."""
        self.begin(history)
        self.map.arm(self.home, self.side, fault)
        code = self.act(history)
        self.last_count, hit = self.map.count, self.map.hit
        if fault.kind == "lost":
            self.map.cut_power(fault, self.side)
        self.map.rest()
        outcome = Outcome(history, fault, None if hit is None else (hit[0], kind_of(hit[1], self.home)), code)
        if fault.at and hit is None:
            return outcome
        code_after, later = self.restart()
        judge(outcome, told(self.log), told(later), code_after, later.with_suffix(".out"))
        return outcome

    def begin(self, history: str) -> None:
        """Puts a home there on which the history begins."""
        shutil.rmtree(self.case, ignore_errors=True)
        self.case.mkdir()
        shutil.copytree(self.begins[history], self.home)

    def act(self, history: str) -> int:
        """Plays a history with the library; returns how it ended."""
        return self.faulty.act(history, self.home, self.log, self.csv)

    def restart(self) -> tuple[int, Path]:
        """Starts again without the library: how that ended, and what it told."""
        later = self.case / "after.jsonl"
        return self.plain.act("after", self.home, later, self.csv), later


def told(log: Path) -> list[Json]:
    """The lines of a log; the last one may be cut."""
    lines = []
    for line in log.read_text().splitlines() if log.exists() else []:
        with suppress(ValueError):
            lines.append(json.loads(line))
    return lines


def kind_of(path: Path, home: Path) -> str:
    """What a file is to the service."""
    parts = path.relative_to(home).parts
    if parts[0].startswith("scrimp.db"):
        return {"scrimp.db": "database", "scrimp.db-wal": "database's log"}.get(parts[0], parts[0])
    if parts[0] == "storage" and len(parts) > 1:
        return f"storage/{parts[1]}"
    return parts[0]


def judge(outcome: Outcome, before: list[Json], later: list[Json], code: int, output: Path) -> None:
    """Compares what was told before the restart with what is there after it."""
    by = {name: [each for each in later if each["what"] == name] for name in {each["what"] for each in later}}
    outcome.faults += [f"an unclear error: {each}" for each in before + later if each["what"] == "unclear"]
    if code != 0:
        outcome.faults.append(f"the restart ended with {code}: {output.read_text()[-600:]}")
        return
    if "refuses" in by:
        outcome.end = "refuses"
        return
    if "ledger" not in by:
        again = by["registered again"][0]["dataset"]
        known = "is behind" in by["restore"][0]["text"]
        outcome.end = "forgotten, and known outside"
        outcome.faults += [] if known and again is None else ["the data set is gone, and nothing says so"]
        return
    ledger = by["ledger"][0]
    behind = by["restore"][0]["behind"]
    outcome.end = "behind, posted" if behind else "goes on"
    # A charge that nobody posted yet stays held.
    outcome.faults += [each for each in ledger["faults"] if not each.startswith("the hold of chg_")]
    if not ledger["verified"]["valid"]:
        outcome.end = "found: " + str(ledger["verified"].get("problem"))[:80]
        return
    if by["statement"][0]["code"] != 0:
        outcome.faults.append(f"the service verifies, and its statement does not: {by['statement'][0]['text']}")
    statuses = {each["job"]: each["status"] for each in by.get("ended", ())}
    outcome.faults += [f"{job} has not ended: {status}" for job, status in statuses.items() if status not in ENDED]
    outcome.faults += list(overspent(before, ledger))
    if outcome.fault.kind in ("error", "full", "torn, dies") and not behind:  # the disk told the truth
        outcome.faults += [
            f"the admitted job {each['job']} is gone"
            for each in before
            if each["what"] == "admitted" and each["job"] not in statuses
        ]


def overspent(before: list[Json], ledger: Json) -> Iterator[str]:
    """What was begun before the restart and is neither spent nor held in the ledger; and what is beyond the cap."""
    train = ledger["accounts"]["train"]
    taken = train["spent"] + train["held"]
    units = {each["job"]: each["units"] for each in before if each["what"] == "admitted"}
    steps = {each["job"]: each["step"] for each in before if each["what"] == "started"}
    charges = {each["charge"]: each["units"] for each in before if each["what"] == "charged"}
    least = sum(units[job] * step // STEPS for job, step in steps.items()) + sum(charges.values())
    if taken + ROUNDING < least:
        yield f"{taken} are spent or held, and {least} were begun or charged: {steps}, {charges}"
    if taken > train["budget"]:
        yield f"overspent: {train}"


@contextmanager
def bench(folder: Path) -> Iterator[Bench | None]:
    """What campaigns run on; None without a C compiler."""
    made = library(folder)
    if made is None:
        yield None
        return
    map_ = Map(folder / "map")
    with ExitStack() as stack:
        faulty = Loaded(folder, {"LD_PRELOAD": str(made), "WRITES_MAP": str(map_.path)})
        stack.callback(faulty.close)
        plain = Loaded(folder, {})
        stack.callback(plain.close)
        yield Bench(folder, map_, faulty, plain)
