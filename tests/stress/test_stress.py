"""What ever failed is listed, with the order in which it did; the load ends with the run."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import hypothesis
import psutil
import pytest
from hypothesis.internal.conjecture import providers

from tests import spread
from tests.processes import alive, until
from tests.stress import cost, run
from tests.stress.load import _stopped, burning, standing_still
from tests.stress.once import Run


def test_the_load_burns_and_ends() -> None:
    with burning(2) as pids:
        assert all(alive(each) for each in pids) and len(pids) == 2
    assert not any(alive(each) for each in pids)


# Says when it has stood still, by a clock that goes on meanwhile; a child of it does so too.
STANDS = """
import subprocess, sys, time
if len(sys.argv) == 1:
    subprocess.Popen([sys.executable, "-S", "-c", PROGRAM, "child"])
before = time.monotonic()
while time.monotonic() - before < 1.0:
    before = time.monotonic()
    time.sleep(0.01)
sys.stdout.write("stood still\\n")  # in one piece, where another writes too
sys.stdout.flush()
time.sleep(600)
"""


def test_half_of_the_processes_stand_still_and_go_on() -> None:
    program = f"PROGRAM = {STANDS!r}\n{STANDS}"
    with subprocess.Popen([sys.executable, "-S", "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        with standing_still(process.pid, 1):
            lines = [process.stdout.readline() for _ in range(2)]
            below = psutil.Process(process.pid).children()
        statuses = [each.status() for each in (psutil.Process(process.pid), *below)]
        for each in below:
            each.kill()
        process.kill()  # before anything is asserted: the block's end waits for it
    assert lines == ["stood still\n"] * 2
    assert len(statuses) == 2 and psutil.STATUS_STOPPED not in statuses


def test_what_a_test_has_stopped_stays_so() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            process.send_signal(signal.SIGSTOP)
            until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
            stopped = [_stopped(process.pid, random.Random(seed)) for seed in range(20)]
        finally:
            process.kill()  # or the block's end would wait for what stands still
    assert not any(stopped)


def test_an_order_is_its_seed_s_whatever_else_is_run(request: pytest.FixtureRequest) -> None:
    """Files stay whole: what a file's tests share is made once."""
    items = [each for each in request.session.items if each.path == request.path]
    one, two = (sorted(items, key=lambda item: spread.shuffled(seed, item)) for seed in (1, 2))
    assert one == sorted(two, key=lambda item: spread.shuffled(1, item))
    assert len(items) < 5 or one != two
    files = [each.path for each in sorted(request.session.items, key=lambda item: spread.shuffled(1, item))]
    assert sum(first != second for first, second in pairwise(files)) == len(set(files)) - 1


def test_what_is_drawn_by_day_depends_on_no_test_before() -> None:
    """Of the modules that are loaded hypothesis draws constants by night alone. It may be by night that this runs."""
    mine = hypothesis.settings.get_current_profile_name()
    try:
        found = []
        for name in ("day", "night"):
            hypothesis.settings.load_profile(name)
            found.append(len(providers._get_local_constants()))
    finally:
        hypothesis.settings.load_profile(mine)
    assert found[0] == 0 < found[1]


def test_examples_depend_neither_on_ci_in_the_environment_nor_on_how_fast_a_machine_is() -> None:
    day, night = map(hypothesis.settings.get_profile, ("day", "night"))
    assert (day.derandomize, night.derandomize) == (True, False)
    for each in (day, night):
        assert each.deadline is None and hypothesis.HealthCheck.too_slow in each.suppress_health_check


def test_what_takes_longest_begins_first(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of this run's own tests: what shares a service or a server counts together, and stays in its order."""
    names = sorted({spread.file_of(item.nodeid) for item in request.session.items})
    durations = tmp_path / "durations.json"
    durations.write_text(json.dumps({name: float(n) for n, name in enumerate(names)}))
    monkeypatch.setattr(spread, "DURATIONS", durations)
    items = list(request.session.items)
    spread.longest_first(items)
    before, after = by_scope(request.session.items), by_scope(items)
    assert after == before
    totals = [sum(names.index(file) for file in {spread.file_of(name) for name in after[scope]}) for scope in after]
    assert totals == sorted(totals, reverse=True)


def by_scope(items: list[pytest.Item]) -> dict[str, list[str]]:
    scopes: dict[str, list[str]] = {}
    for item in items:
        scopes.setdefault(spread.scope(item.nodeid), []).append(item.nodeid)
    return scopes


def test_whatever_ever_failed_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = [Run(passed=3), Run(passed=2, failures={"tests/x.py::test_y": "AssertionError"}), Run(passed=3)]
    orders: list[str] = []

    def once(arguments: list[str], *, stalls: int) -> Run:
        assert arguments[arguments.index("--shuffle") + 1] == str(stalls)
        orders.append(arguments[arguments.index("--shuffle") + 1])
        return results[len(orders) - 1]

    monkeypatch.setattr(run, "once", once)
    report = tmp_path / "stress.md"
    for runs, status in (("3", 1), ("1", 0)):
        orders.clear()
        line = f"run --runs {runs} --seed 7 --load 0 --processes 2 --report {report}"
        monkeypatch.setattr(sys, "argv", line.split())
        assert run.main() == status
    written = report.read_text()
    for row in ("3 | 7 | 0 | 8 | 1 | 0", "1 | 7 | 0 | 3 | 0 | 0"):
        assert f"| all, on 2 processes | {row} |\n" in written
    assert written.count("* run 2, seed 8: `tests/x.py::test_y`\n") == 1
    assert "AssertionError" in capsys.readouterr().out


def test_a_run_that_dies_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert run.once([]).failures == {"the run itself": "it ended with 1"}


def test_what_failed_before_a_run_was_killed_is_kept(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(
        "import os\ndef test_bad(): assert 0\ndef test_killed(): os.kill(os.getpid(), 9)\n"
    )
    result = run.once([str(tmp_path / "test_one.py"), "-p", "no:cacheprovider"])
    assert [test.partition("::")[2] or test for test in result.failures] == ["test_bad", "the run itself"]


def test_a_test_that_fails_in_its_process_is_told(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("def test_good(): pass\ndef test_bad():\n print('a log')\n assert 1 == 2\n")
    file = tmp_path / "run.json"
    command = [sys.executable, "-m", "tests.stress.once", str(file), str(tmp_path), "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert '"passed": 1' in file.read_text() and "assert 1 == 2" in file.read_text()
    assert "--- Captured stdout call\\na log" in file.read_text()


def test_where_a_process_of_tests_crashed_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_one.py").write_text("import os\ndef test_that_aborts(): os.abort()\n")
    result = run.once([str(tmp_path / "test_one.py"), "-n", "1", "-p", "no:cacheprovider"])
    assert [test.partition("::")[2] for test in result.failures] == ["test_that_aborts"]
    printed = capsys.readouterr().out
    assert printed.startswith("Fatal Python error: Aborted") and "in test_that_aborts" in printed


HANGS = """
import subprocess, time
from pathlib import Path
import __main__

def test_good(): pass

def test_hangs():
    Path(__file__).with_name("pid").write_text(str(subprocess.Popen(["sleep", "600"]).pid))
    __main__.QUIET_S = 0.5
    time.sleep(600)
"""


def test_a_run_in_which_nothing_ends_any_more_is_ended_and_names_the_test(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(HANGS)
    result = run.once([str(tmp_path / "test_one.py"), "-p", "no:cacheprovider"])
    assert (result.passed, result.status) == (1, 1)
    ((test, error),) = result.failures.items()
    assert test.endswith("test_one.py::test_hangs") and error == "it runs, and no test has ended for 0.5 s"
    left = int((tmp_path / "pid").read_text())
    assert until(lambda: not alive(left)), "what it had started ends with it"


BURNING = """
import os, time

def test_that_leaves_a_process_behind():
    if os.fork() == 0:
        if os.fork() == 0:
            while time.process_time() < 1.5:
                pass
        os._exit(0)
    os.wait()
"""


def test_files_that_take_long_are_kept(tmp_path: Path) -> None:
    durations = tmp_path / "durations.json"
    cost.keep(durations, "tests/b", {"tests/b/test_x.py::test_1": 1.25, "tests/b/test_x.py::test_2[a]": 1.75})
    cost.keep(durations, "tests/bb", {"tests/bb/test_y.py::test": 3.0, "tests/bb/test_z.py::test": 1.9})
    cost.keep(durations, "tests/b", {"tests/b/test_x.py::test_1": 4.0})
    assert json.loads(durations.read_text()) == {"tests/b/test_x.py": 4.0, "tests/bb/test_y.py": 3.0}


def test_a_folder_costs_what_its_orphans_take_too(tmp_path: Path) -> None:
    folder, report, durations = tmp_path / "tests", tmp_path / "suite.md", tmp_path / "durations.json"
    folder.mkdir()
    (folder / "test_it.py").write_text(BURNING)
    durations.write_text(json.dumps({"tests/a/test_a.py": 2.5, f"{folder}/test_gone.py": 9.0}))
    report.write_text("# Cost\n\n| folder | before |\n|---|---|\n| `tests/a` | 2.5 |\n\nSaid below.\n")
    line = [
        sys.executable,
        "-m",
        "tests.stress.cost",
        "--report",
        str(report),
        "--durations",
        str(durations),
        str(folder),
    ]
    done = subprocess.run(line, cwd=run.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    head, *rows = [line.strip("| ").split(" | ") for line in report.read_text().splitlines() if line[:1] == "|"]
    costs = {row[0]: row[1:] for row in rows}
    assert head[:2] == ["folder", "before"] and costs["`tests/a`"][0] == "2.5"
    assert float(costs[f"`{folder}`"][-1]) > 1.5
    assert json.loads(durations.read_text()) == {"tests/a/test_a.py": 2.5}, "a file that is gone, and one that is short"
    assert report.read_text().startswith("# Cost\n") and report.read_text().endswith("\nSaid below.\n")
