"""`make stress`: the tests N times, each in another order, on a busy machine parts of which stand still. Ends with
1 if anything ever failed.

Adds a row to benchmarks/reports/stress.md.

python -m tests.stress.run [--runs N] [--seed SEED] [--load L] [--processes P] [PATH ...]
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from tests.stress.load import burning, standing_still
from tests.stress.once import Run

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "benchmarks" / "reports" / "stress.md"
HEAD = """# The suite, shuffled and under load

`make stress N=20` runs the tests N times. Each run shuffles files, and tests within files, by a seed of its own: the
first run's is the row's, the k-th run's is larger by k − 1. Meanwhile other processes burn processor time at the lowest
priority (load), and since 2026-11-28 every four seconds another half of the run's own stands still for 1.5 s.
`pytest -n 3 --shuffle SEED` repeats an order.

| date | commit | tests | runs | first seed | load | passed | failed | minutes |
|---|---|---|---|---|---|---|---|---|
"""


def once(arguments: list[str], *, quiet: bool = True, stalls: int | None = None) -> Run:
    """Runs pytest in a process of its own, whose parts stand still by this seed. A run that was killed has failed."""
    with tempfile.TemporaryDirectory() as folder:
        file, printed = Path(folder) / "run.json", Path(folder) / "output.txt"
        command = [sys.executable, "-m", "tests.stress.once", str(file), *arguments]
        with ExitStack() as stack:
            output = stack.enter_context(printed.open("wb")) if quiet else None
            process = stack.enter_context(subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output))
            if stalls is not None:
                stack.enter_context(standing_still(process.pid, stalls))
            status = process.wait()
        if (where := stacks(printed.read_text(errors="replace") if quiet else "")) is not None:
            sys.stdout.write(f"{where}\n")
        run = Run(**json.loads(file.read_text())) if file.exists() else Run(status=status)
    if status < 0 or (status and not run.failures):
        run.failures["the run itself"] = f"it ended with {status}"
    return run


def stacks(printed: str) -> str | None:
    """Where the first process stood that crashed, or in which a test took too long, as faulthandler wrote it."""
    at = min((place for sign in ("Timeout (", "Fatal Python error") if (place := printed.find(sign)) >= 0), default=-1)
    return None if at < 0 else printed[at : at + 8000]


def commit() -> str:
    """The commit, with "+" if files differ from it."""
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return said.stdout.strip() or "unknown"


def append(report: Path, head: str, row: list[object], failures: list[str]) -> None:
    """Adds a row to a report's table, and below all rows what failed in it."""
    text = report.read_text() if report.exists() else head
    table, _, below = text.partition("\n\n## ")
    table = f"{table.rstrip()}\n| {' | '.join(map(str, row))} |\n"
    below = f"\n## {below.strip()}\n" if below else ""
    if failures:
        below += "\n".join(["", f"## {row[1]}, {row[0]}", "", *failures, ""])
    report.write_text(table + below)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress.run")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--load", type=int, default=os.cpu_count() or 1)
    # Half of them stand still for two fifths of the time: six keep two processors busy, four do not.
    parser.add_argument("--processes", type=int, default=3 * (os.cpu_count() or 1))
    parser.add_argument("--report", type=Path, default=REPORT)
    parser.add_argument("paths", nargs="*")
    asked = parser.parse_args()
    seed = secrets.randbelow(10**9) if asked.seed is None else asked.seed
    began, runs, lines = time.monotonic(), list[Run](), list[str]()
    with burning(asked.load):
        for number in range(asked.runs):
            order = seed + number
            run = once(
                ["-n", str(asked.processes), "--shuffle", str(order), "-q", *asked.paths],
                stalls=order,
            )
            runs.append(run)
            print(
                f"run {number + 1} of {asked.runs}, seed {order}: {run.passed} passed, {len(run.failures)} failed, "
                f"{run.took_s:.0f} s",
                flush=True,
            )
            for test, error in run.failures.items():
                print(f"  {test}\n    " + error.replace("\n", "\n    "), flush=True)
                lines.append(f"* run {number + 1}, seed {order}: `{test}`")
    tests = f"{' '.join(asked.paths) or 'all'}, on {asked.processes} processes"
    row = [datetime.now(UTC).date(), commit(), tests, len(runs), seed, asked.load]
    row += [sum(each.passed for each in runs), len(lines), f"{(time.monotonic() - began) / 60:.0f}"]
    append(asked.report, HEAD, row, lines)
    print("\n".join(["", *(lines or ["nothing ever failed"]), f"wrote {asked.report}"]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
