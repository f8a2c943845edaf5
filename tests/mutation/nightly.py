"""Mutation testing of ledger, accounting and clipping: `make nightly-mutation`. Ends with 1 where a survivor is new.

python -m tests.mutation.nightly --seconds 3000     goes on where the last run ended
python -m tests.mutation.nightly --again            runs the survivors again, after tests were written for them
python -m tests.mutation.nightly --report-only      writes the report from what is known

Mutants are drawn by a public seed, round by round: each round takes some of every module, more of those where a slip
costs privacy. A module that has changed is drawn anew. Each mutant meets the fast tests that run its lines, those that
run little else first, up to the first that fails. A start costs nothing: the tests are loaded once, and each mutant is
a fork whose function has other code. Tools that start a process for each mutant (cosmic-ray) would spend seconds on
imports alone; one that forks (mutmut) leaves out decorated functions, data classes and constants of modules.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.mutation import report, runs
from tests.mutation.mutants import Mutant, of_module
from tests.mutation.tests_of import Known, Measuring, Test

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "mutation"
LOADED = CACHE / "loaded.json"
REPORT = ROOT / "benchmarks" / "reports" / "mutation.md"
MEMORY = Path("/dev/shm")  # noqa: S108 - databases that live for a second need no disk
SEED = 20261123
FAST_S, SLOW_S = 0.5, 2.0  # a test that takes longer is not for every mutant; is for none
MOST_S, AGAIN_S = 3.0, 12.0  # of tests for one mutant; for a survivor that is run again
# How many of a round: where a slip lets somebody overspend, or hides it, more than elsewhere.
SHARES = {
    "core/privacy/filters.py": 6,
    "app/ledger/accounts.py": 8,
    "app/ledger/sub_accounts.py": 3,
    "app/ledger/block_accounts.py": 3,
    "app/ledger/second.py": 3,
    "app/ledger/sub_account_rows.py": 3,
    "app/ledger/entries.py": 2,
    "app/ledger/verification.py": 6,
    "app/ledger/agreement.py": 2,
    "core/privacy/gdp.py": 4,
    "core/privacy/pld.py": 4,
    "core/privacy/rdp.py": 3,
    "core/privacy/events.py": 3,
    "core/privacy/calibration.py": 3,
    "core/privacy/accounting.py": 2,
    "core/privacy/foreign_claims.py": 4,
    "core/privacy/canary_bound.py": 3,
    "core/privacy/derive.py": 3,
    "core/privacy/pricing.py": 3,
    "core/privacy/mechanism.py": 3,
    "core/privacy/releases.py": 2,
    "core/privacy/shares.py": 3,
    "app/ledger/transparency/ledger_tree.py": 2,
    "core/merkle.py": 2,
    "app/ledger/transparency/heads.py": 2,
    "app/ledger/transparency/anchors.py": 2,
    "app/ledger/behind.py": 2,
    "app/ledger/joining.py": 2,
    "worker/clipping/accumulators.py": 3,
    "worker/clipping/adaptive.py": 2,
    "worker/clipping/engine.py": 4,
    "worker/clipping/terms.py": 3,
}
FOLDERS = ("app/ledger", "core/privacy", "worker/clipping")
TESTS = ("tests/ledger", "tests/privacy", "tests/budgets", "tests/hpo")
OF_CLIPPING = tuple(
    f"tests/worker/test_{name}.py"
    for name in (
        *("adaptive", "bookkeeping", "bound", "clipping", "examined", "float32_sums", "formed_sums", "methods"),
        *("planted", "shards", "views"),
    )
)
# Long calculations and processes that race: their few fast tests are not worth the rest.
LEFT_OUT = {
    "tests/hpo/test_races.py",
    "tests/ledger/test_long_chain.py",
    "tests/ledger/test_machine.py",
    "tests/ledger/test_races.py",
    "tests/ledger/test_witness.py",
    "tests/privacy/test_truncated.py",
    "tests/privacy/test_two_queries.py",
}


def modules() -> list[str]:
    """Every module under mutation, those with the largest share first."""
    paths = [ROOT / "core" / "merkle.py", *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))]
    found = sorted(str(path.relative_to(ROOT)) for path in paths)
    return sorted(found, key=lambda each: (-SHARES.get(each, 1), each))


@cache
def drawn() -> list[Mutant]:
    """All mutants, in the order in which they are run."""
    places = []
    for module in modules():
        found = of_module(module, (ROOT / module).read_text())
        random.Random(f"{SEED}:{module}").shuffle(found)
        places += [(place // SHARES.get(module, 1), mutant) for place, mutant in enumerate(found)]
    return [mutant for _, mutant in sorted(places, key=lambda each: each[0])]


class Journal:
    """What became of each mutant, a line each: a kill of this process loses the one that it was at."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.versions = {each: hashlib.sha256((ROOT / each).read_bytes()).hexdigest()[:16] for each in modules()}
        self.results: dict[str, str] = {}
        for line in path.read_text().splitlines() if path.exists() else []:
            said = json.loads(line)
            if self.versions.get(said["module"]) == said["version"]:
                self.results[said["name"]] = said["result"]

    def add(self, mutant: Mutant, result: str) -> None:
        self.results[mutant.name] = result
        line = {"module": mutant.module, "version": self.versions[mutant.module], "name": mutant.name, "result": result}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
        if result not in ("killed", "timeout"):
            print(f"{result}: {mutant.name} (line {mutant.lines[0]})", flush=True)


class Choice:
    """Chooses the tests that a mutant meets."""

    def __init__(self, tests: Sequence[Test]) -> None:
        self.by_line: dict[str, list[Test]] = {}
        self.by_module: dict[str, list[Test]] = {}
        self.aside: dict[tuple[str, str], int] = {}  # by module and file: lines elsewhere of its most pertinent test
        for test in tests:
            inside = Counter(line.partition(":")[0] for line in test.lines)
            for line in test.lines:
                self.by_line.setdefault(line, []).append(test)
            for module, lines in inside.items():
                self.by_module.setdefault(module, []).append(test)
                key, others = (module, test.file), len(test.lines) - lines
                self.aside[key] = min(others, self.aside.get(key, others))

    def of(self, mutant: Mutant, most_s: float = MOST_S) -> list[Test]:
        """Those that run its lines; of what runs at import, those that run any line of its module. For so long as a
        mutant may take, files first whose tests run little else."""
        lines = [f"{mutant.module}:{line}" for line in range(mutant.lines[0], mutant.lines[1] + 1)]
        found = {each.id: each for line in lines for each in self.by_line.get(line, [])}
        if not mutant.function:
            found = {each.id: each for each in self.by_module.get(mutant.module, [])}
        order = sorted(found.values(), key=lambda each: (self.aside[mutant.module, each.file], each.file, each.cpu_s))
        return at_most(order, most_s)


def test_files() -> list[str]:
    """The files whose fast tests are used."""
    found = (str(path.relative_to(ROOT)) for folder in TESTS for path in (ROOT / folder).glob("test_*.py"))
    return sorted({*found, *OF_CLIPPING} - LEFT_OUT)


def batches(files: Sequence[str], size: int) -> list[Sequence[str]]:
    return [files[begin : begin + size] for begin in range(0, len(files), size)]


def measure(known: Known, home: runs.Home, files: Sequence[str]) -> None:
    """Runs these files' tests once, in a child, and keeps what they run."""
    if not files:
        return

    def act() -> bool:
        measured = Measuring(ROOT, modules())
        pytest.main(runs.arguments(home, files), plugins=[runs.Quicker(home.template), measured])
        known.add(measured, files)
        LOADED.write_text(json.dumps(sorted(sys.modules)))
        return True

    print(f"measuring {len(files)} test files", flush=True)
    runs.in_a_child(act, 100.0)


def run(
    journal: Journal, todo: Sequence[Mutant], tests: Sequence[Test], home: runs.Home, ends: float, most_s: float
) -> None:
    """All of `todo`, or as many as there is time for."""
    choice = Choice(tests)
    chosen = [(mutant, choice.of(mutant, most_s)) for mutant in todo]
    within = [(mutant, found) for mutant, found in chosen if found and mutant.function]
    runs.in_place(home, within, journal.add, ends)
    runs.preload(json.loads(LOADED.read_text()))
    for mutant, found in chosen:
        if found and not mutant.function and time.monotonic() < ends:
            journal.add(mutant, runs.while_imported(home, mutant, found))
    for mutant in out_of_reach(chosen, journal.results):
        journal.add(mutant, "not reached")


def out_of_reach(chosen: Sequence[tuple[Mutant, list[Test]]], results: Mapping[str, str]) -> list[Mutant]:
    """Those that no test runs, up to the last one that was run: a sample is of all that were drawn until then."""
    last = max((place for place, (mutant, found) in enumerate(chosen) if found and mutant.name in results), default=-1)
    ends = len(chosen) if not any(found for _, found in chosen) else last + 1
    return [mutant for mutant, found in chosen[:ends] if not found]


def at_most(tests: Sequence[Test], seconds: float) -> list[Test]:
    """The first of them, for so long."""
    sums = itertools.accumulate(each.cpu_s for each in tests)
    return [each for each, so_far in zip(tests, sums, strict=True) if so_far <= seconds] or list(tests[:1])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.nightly")
    parser.add_argument("--seconds", type=float, default=3000.0, help="how long at most; the rest goes on later")
    parser.add_argument("--mutants", type=int, help="how many of those that are left at most")
    parser.add_argument("--module", default="", help="only modules whose path has this in it")
    parser.add_argument("--names", type=Path, help="only the mutants of this JSON list (tests.mutation.compare)")
    parser.add_argument("--tests", nargs="+", help="only these test files")
    parser.add_argument("--again", action="store_true", help="run the survivors again, against more tests")
    parser.add_argument("--report-only", action="store_true")
    parser.add_argument("--report", type=Path, default=REPORT)
    asked = parser.parse_args()
    ends = time.monotonic() + asked.seconds
    everything, journal = drawn(), Journal(CACHE / "results.jsonl")
    if not asked.report_only:
        with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as name:
            home = runs.Home.made(ROOT, Path(name))
            known = Known(CACHE / "tests.json", ROOT, [*modules(), "tests/by_night.py"])  # which cases run by day
            chosen = asked.tests or test_files()
            for files in batches(known.missing(chosen), 6):
                measure(known, home, files)
            known.read()
            alive = [each for each in everything if journal.results.get(each.name) in ("survived", "not reached")]
            left = alive if asked.again else [each for each in everything if each.name not in journal.results]
            names = json.loads(asked.names.read_text()) if asked.names else [each.name for each in left]
            todo = [each for each in left if asked.module in each.module and each.name in set(names)][: asked.mutants]
            fast, most_s = (SLOW_S, AGAIN_S) if asked.again else (FAST_S, MOST_S)
            run(journal, todo, known.tests(chosen, fast), home, ends, most_s)
    journal = Journal(journal.path)
    text, new = report.text(everything, journal.results, SEED)
    asked.report.write_text(text)
    print(
        f"{len(journal.results):,} of {len(everything):,} mutants; {new} survivors are not judged; wrote {asked.report}"
    )
    return int(new > 0)


if __name__ == "__main__":
    sys.exit(main())
