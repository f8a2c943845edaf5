"""What the tests take in processor time: a folder at a time, in one process, with all that its tests start.

python -m tests.stress.cost [--report FILE] [--durations FILE] [--most N] [FOLDER ...]

Prints the N most expensive tests of each folder, and adds a column with this commit to a report's table. What each file
takes is kept in tests/durations.json, by which tests/spread.py begins with the longest. Processor time hardly depends
on what else the machine does, until it is so busy that its caches are shared among many.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.spread import DURATIONS, file_of
from tests.stress.run import ROOT, commit

REPORT = ROOT / "benchmarks" / "reports" / "suite.md"
PR_SET_CHILD_SUBREAPER = 36
SEPARATOR = "|---"
SHORT_S = 2.0  # a file that takes less may begin whenever a worker is free


class Costs:
    """A plugin: what each test takes in this process and in all that it started, also those that go on: servers.

    A test that kills a server loses what the server's own processes had taken: a negative number.

    Args:
        file: gets a line for each test, as soon as it has ended.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._before = spent_here()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        done = yield
        after = spent_here()
        with self._file.open("a") as lines:
            lines.write(json.dumps([item.nodeid, round(after - self._before, 2)]) + "\n")
        self._before = after
        return done


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", type=Path, help="where what each test takes is written")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Costs(config.getoption("costs")))


def spent(by: int) -> float:
    """Seconds of processor time."""
    usage = resource.getrusage(by)
    return usage.ru_utime + usage.ru_stime


def spent_here() -> float:
    """Seconds of processor time of this process, of those that it waited for, and of those that it started and live."""
    seconds = spent(resource.RUSAGE_SELF) + spent(resource.RUSAGE_CHILDREN)
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it ended meanwhile
            seconds += sum(process.cpu_times()[:4])
    return seconds


def measured(folder: str) -> tuple[float, dict[str, float]]:
    """Seconds of a run of a folder and of every process that it left, and those of its tests."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "costs.jsonl"
        file.touch()
        before = spent(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.stress.cost", "--costs", str(file), folder]
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        with suppress(ChildProcessError):  # what lost its parent came here
            while True:
                os.waitpid(-1, 0)
        seconds, tests = spent(resource.RUSAGE_CHILDREN) - before, dict(map(json.loads, file.read_text().splitlines()))
        if status:
            raise SystemExit(f"the tests of {folder} fail; they took {seconds:.1f} s")
        return seconds, tests


def folders() -> list[str]:
    """Those that have tests."""
    return sorted({str(path.parent.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")})


def keep(durations: Path, folder: str, tests: Mapping[str, float]) -> None:
    """Replaces what is kept of a folder's files."""
    files: defaultdict[str, float] = defaultdict(float)
    for name, took in tests.items():
        files[file_of(name)] += took
    others = json.loads(durations.read_text()) if durations.exists() else {}
    others = {file: took for file, took in others.items() if not file.startswith(f"{folder}/")}
    new = {file: round(took, 1) for file, took in files.items() if took >= SHORT_S}
    durations.write_text(json.dumps(others | new, indent=1, sort_keys=True) + "\n")


def table(report: Path, column: str, seconds: Mapping[str, float]) -> str:
    """The report's text with a column added, or replaced where it has one of this name."""
    lines = report.read_text().splitlines() if report.exists() else ["# What the tests take", "", "| folder |", "|---|"]
    at = next(place for place, line in enumerate(lines) if line.startswith(SEPARATOR)) - 1
    end = next((place for place in range(at, len(lines)) if not lines[place].startswith("|")), len(lines))
    head, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines[at:end] if SEPARATOR not in line
    ]
    kept = {row[0].strip("`"): dict(zip(head[1:], row[1:], strict=True)) for row in rows if row[0] != "all"}
    for folder, took in seconds.items():
        kept.setdefault(folder, {})[column] = f"{took:.1f}"
    names = [*(name for name in head[1:] if name != column), column]
    made = [f"| {' | '.join([head[0], *names])} |", "|---" * (len(names) + 1) + "|"]
    made += [
        f"| {' | '.join([f'`{folder}`', *(kept[folder].get(name, '') for name in names)])} |" for folder in sorted(kept)
    ]
    return "\n".join([*lines[:at], *made, *lines[end:]]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress.cost")
    parser.add_argument("--report", type=Path, default=REPORT)
    parser.add_argument("--durations", type=Path, default=DURATIONS)
    parser.add_argument("--most", type=int, default=10)
    parser.add_argument("folders", nargs="*")
    asked = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    seconds = {}
    for folder in asked.folders or folders():
        seconds[folder], tests = measured(folder)
        print(f"{folder}: {seconds[folder]:.1f} s of processor time", flush=True)
        for name, took in sorted(tests.items(), key=lambda each: -each[1])[: asked.most]:
            print(f"  {took:6.2f} {name}", flush=True)
        keep(asked.durations, folder, tests)
        asked.report.write_text(table(asked.report, commit(), {folder: seconds[folder]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
