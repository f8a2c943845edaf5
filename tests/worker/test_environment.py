"""The two hashes of a worker that a certificate names: they are what `sha256sum` and pip say, and follow any change."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from worker.attempt import environment

ROOT = Path(__file__).resolve().parents[2]


def test_the_packages_are_all_that_is_installed() -> None:
    lines = environment.lines()
    assert (
        lines == sorted(set(lines))
        and f"torch=={version('torch')}" in lines
        and f"scrimp=={version('scrimp')}" in lines
    )
    assert environment.packages() == hashlib.sha256(("\n".join(lines) + "\n").encode()).hexdigest()


def test_the_command_prints_the_lines_and_their_hash() -> None:
    command = [sys.executable, "-m", "worker.attempt.environment"]
    *lines, packages, code = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.splitlines()
    assert (packages, code) == (f"# packages {environment.packages()}", f"# code {environment.code()}")
    assert hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest() == environment.packages()


def test_any_change_of_the_code_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("app", "worker"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "one.py").write_text("ONE = 1\n")
        monkeypatch.setattr(getattr(environment, name), "__path__", [str(tmp_path / name)])
    found = []
    for change in (None, ("one.py", "ONE = 2\n"), ("two.py", ""), ("part.c", "int x;")):
        if change is not None:
            (tmp_path / "worker" / change[0]).write_text(change[1])
        found.append(environment.code.__wrapped__())
    assert len(set(found)) == 4
    names = sorted(f"{path.parent.name}/{path.name}" for path in tmp_path.rglob("*.*"))
    summed = subprocess.run(["sha256sum", *names], cwd=tmp_path, capture_output=True, check=True).stdout
    assert hashlib.sha256(summed).hexdigest() == found[-1]
