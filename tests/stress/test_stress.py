"""What ever failed is listed, with the order in which it did; the load ends with the run."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests import spread
from tests.processes import alive
from tests.stress import run
from tests.stress.load import burning
from tests.stress.once import Run


def test_the_load_burns_and_ends() -> None:
    with burning(2) as pids:
        assert all(alive(each) for each in pids) and len(pids) == 2
    assert not any(alive(each) for each in pids)


def test_an_order_is_its_seed_s_whatever_else_is_run(request: pytest.FixtureRequest) -> None:
    """Files stay whole: what a file's tests share is made once."""
    items = [each for each in request.session.items if each.path == request.path]
    one, two = (sorted(items, key=lambda item: spread.shuffled(seed, item)) for seed in (1, 2))
    assert one == sorted(two, key=lambda item: spread.shuffled(1, item))
    assert len(items) < 5 or one != two
    files = [each.path for each in sorted(request.session.items, key=lambda item: spread.shuffled(1, item))]
    assert sum(first != second for first, second in pairwise(files)) == len(set(files)) - 1


def test_whatever_ever_failed_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = [Run(passed=3), Run(passed=2, failures={"tests/x.py::test_y": "AssertionError"}), Run(passed=3)]
    orders: list[str] = []

    def once(arguments: list[str]) -> Run:
        orders.append(arguments[arguments.index("--shuffle") + 1])
        return results[len(orders) - 1]

    monkeypatch.setattr(run, "once", once)
    report = tmp_path / "stress.md"
    for runs, status in (("3", 1), ("1", 0)):
        orders.clear()
        monkeypatch.setattr(sys, "argv", ["run", "--runs", runs, "--seed", "7", "--load", "0", "--report", str(report)])
        assert run.main() == status
    written = report.read_text()
    assert "| all | 3 | 7 | 0 | 8 | 1 | 0 |\n" in written and "| all | 1 | 7 | 0 | 3 | 0 | 0 |\n" in written
    assert written.count("* run 2, seed 8: `tests/x.py::test_y`\n") == 1
    assert "AssertionError" in capsys.readouterr().out


def test_a_run_that_dies_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert run.once([]).failures == {"the run itself": "exit code 1"}


def test_a_test_that_fails_in_its_process_is_told(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("def test_good(): pass\ndef test_bad(): assert 1 == 2\n")
    file = tmp_path / "run.json"
    command = [sys.executable, "-m", "tests.stress.once", str(file), str(tmp_path), "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert '"passed": 1' in file.read_text() and "assert 1 == 2" in file.read_text()
