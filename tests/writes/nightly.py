"""A fault at every write of two short histories: `make nightly-writes`. Ends with 1 where something was found.

python -m tests.writes.nightly --seconds 3000             goes on where the last run ended
python -m tests.writes.nightly --one trained 120 torn     repeats one: history, operation, kind [, delay]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from tests.writes.campaign import HISTORIES, Bench, Outcome, bench, delay_of
from tests.writes.crashes import Crashes
from tests.writes.library import KINDS, Fault

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "benchmarks" / "reports" / "writes.md"
JOURNAL = ROOT / ".cache" / "writes.jsonl"
MEMORY = Path("/dev/shm")  # noqa: S108 - homes that live for a second need no disk
SEED = 20261128
MEANS = {
    "error": "it fails (EIO), and does nothing",
    "full": "it fails (ENOSPC), and does nothing",
    "torn": "half of it is done, and it reports success",
    "torn, dies": "half of it is done, and every process dies",
    "lost": "it reports success, every process dies soon, and nothing of it is there",
}
EARLIER = "## Earlier samples\n"  # what follows is written by hand, and stays
KINDS_SAID = (
    "A preloaded C library (`tests/writes/faulty.c`) counts each write, sync, truncation and rename below a home, of",
    "all processes together: SQLite's, Python's and those of what is written in Rust; API, relay, worker, the attempt",
    "and the process that reads an owner's file. One of them goes wrong, once:",
    "",
)
HISTORIES_SAID = (
    "admits a job, trains a step, stops, saves its state, goes on from it, settles, certifies, charges for another",
    "system and signs a checkpoint. Then a process without the library starts on the same home: `scrimp restore`, with",
    "`--post` where it says that entries are missing; open jobs run to their end. What must hold, as each ledger's",
    "entries are replayed: no overspend; steps that began and charges that were answered are spent or held; what",
    "`verify` finds valid, `scrimp ledger statement` does too; where the disk told the truth, no admitted job is gone;",
    "a refusal of the API is a problem document, a command's is a line and an exit code, and neither is a traceback.",
    "",
    "Both kinds that end all processes come from one play of a history: each operation waits halfway, alone, while the",
    "home is copied. Copies with the same files, the same recovered database, and the same answers before them are",
    "one state, on which one restart is tried (`tests/writes/crashes.py`; a test compares them with a play for each).",
    "",
)
CRASHES = ("torn, dies", "lost")  # kinds that end all processes
Case = tuple[str, Fault]


def cases(lengths: dict[str, int], seed: int = SEED) -> list[Case]:
    """Every operation with every kind of fault, in an order that a seed draws: a part of it is a fair sample."""
    every = [
        (history, Fault(n, kind, delay_of(n) if kind == "lost" else 0))
        for history, length in lengths.items()
        for n in range(1, length + 1)
        for kind in KINDS
    ]
    random.Random(seed).shuffle(every)
    return every


class Journal:
    """What came of each case, a line each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lengths: dict[str, int] = {}
        self.outcomes: list[Outcome] = []
        for line in path.read_text().splitlines() if path.exists() else []:
            said = json.loads(line)
            if "lengths" in said:
                self.lengths = said["lengths"]
            else:
                fault, hit = Fault(**said.pop("fault")), said.pop("hit")
                self.outcomes.append(Outcome(fault=fault, hit=None if hit is None else tuple(hit), **said))

    def begin(self, lengths: dict[str, int]) -> None:
        self.lengths = lengths
        self._write({"lengths": lengths})

    def add(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self._write(asdict(outcome))

    def _write(self, said: dict[str, object]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(said) + "\n")

    @property
    def done(self) -> set[Case]:
        return {(each.history, each.fault) for each in self.outcomes}


def text(journal: Journal) -> str:
    """The report, dated today."""
    outcomes = [each for each in journal.outcomes if each.hit is not None]
    found = [each for each in outcomes if each.faults]
    total = sum(journal.lengths.values()) * len(KINDS)
    lines = [
        "# Faults at each write",
        "",
        f"`make nightly-writes`, {datetime.now(UTC):%Y-%m-%d}, seed {SEED}: {len(outcomes):,} faults of {total:,} were "
        "tried;",
        f"{len(found)} led to something that must not be.",
        "",
        *KINDS_SAID,
        *(f"* **{kind}**: {meaning}." for kind, meaning in MEANS.items()),
        "",
        f"The first history registers a data set ({journal.lengths.get('registered', 0)} operations); the second "
        f"({journal.lengths.get('trained', 0)})",
        *HISTORIES_SAID,
        "| file | operation | fault | tried | history ended | died | the restart |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += rows(outcomes)
    if found:
        lines += ["", "## What must not be", ""]
        for each in found:
            delay = f" {each.fault.delay}" if each.fault.delay else ""
            lines.append(f"* `--one {each.history} {each.fault.at} '{each.fault.kind}'{delay}`: {each.faults[0][:300]}")
    return "\n".join(lines) + "\n"


def write(report: Path, journal: Journal) -> None:
    """Replaces the report, up to the samples before."""
    _, _, earlier = report.read_text().partition(EARLIER) if report.exists() else ("", "", "")
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(text(journal) + (f"\n{EARLIER}{earlier}" if earlier else ""))


def rows(outcomes: Iterable[Outcome]) -> list[str]:
    """A line for each file, operation and kind of fault."""
    groups: dict[tuple[str, str, str], list[Outcome]] = {}
    for each in outcomes:
        operation, file = each.hit or ("", "")
        groups.setdefault((file, operation, each.fault.kind), []).append(each)
    lines = []
    for (file, operation, kind), group in sorted(groups.items()):
        ends = Counter(each.end for each in group)
        said = ", ".join(f"{end} {count}" for end, count in ends.most_common())
        died = sum(each.code != 0 for each in group)
        lines.append(f"| {file} | {operation} | {kind} | {len(group)} | {len(group) - died} | {died} | {said} |")
    return lines


def left(bench_: Bench, journal: Journal) -> Iterator[Outcome]:
    """What comes of the cases that are not done: first of all crashes, which one history has."""
    done = journal.done
    if not journal.lengths or any(case not in done for case in cases(journal.lengths) if case[1].kind in CRASHES):
        crashes = [Crashes(bench_, history) for history in HISTORIES]
        if not journal.lengths:
            journal.begin({each.history: each.count for each in crashes})
        for each in crashes:
            yield from (one for one in each.outcomes(done) if one.fault.at <= journal.lengths[one.history])
    for case in cases(journal.lengths):
        if case not in done and case[1].kind not in CRASHES:
            yield bench_.run(*case)


def run(journal: Journal, report: Path, seconds: float, todo: Sequence[Case] | None = None) -> None:
    """Cases until all are done, or for so long."""
    ends = time.monotonic() + seconds
    with (
        tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as name,
        bench(Path(name)) as bench_,
    ):
        if bench_ is None:
            raise SystemExit("no C compiler is here: pip install ziglang")
        bench_.warm()
        for outcome in left(bench_, journal) if todo is None else (bench_.run(*case) for case in todo):
            journal.add(outcome)
            if outcome.faults:
                print(outcome, flush=True)
            if len(journal.outcomes) % 20 == 0:
                write(report, journal)
            if time.monotonic() > ends:
                break
    write(report, journal)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.writes.nightly")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="how long at most; the rest goes on later")
    parser.add_argument("--one", nargs="+", metavar="WORD", help="history, operation, kind and delay: this one alone")
    parser.add_argument("--journal", type=Path, default=JOURNAL)
    parser.add_argument("--report", type=Path, default=REPORT)
    asked = parser.parse_args()
    if asked.one:
        history, at, kind, *delay = asked.one
        journal = Journal(Path(os.devnull))
        run(journal, Path(os.devnull), 3600.0, [(history, Fault(int(at), kind, int(delay[0]) if delay else 0))])
        print(*journal.outcomes)
    else:
        journal = Journal(asked.journal)
        run(journal, asked.report, asked.seconds)
    found = [each for each in journal.outcomes if each.faults]
    print(f"{len(journal.outcomes)} faults tried, {len(found)} led to something that must not be")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
