"""A test that hangs, even in C and with the interpreter's lock, costs its own process alone, and says where it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLANTED = """
import ctypes

from hypothesis import given
from hypothesis import strategies as st


@given(st.integers())
def test_a(number: int) -> None:
    ctypes.PyDLL(None).pause()


def test_b() -> None:
    pass
"""


def test_a_test_that_hangs_fails_by_name_and_the_next_one_runs(tmp_path: Path) -> None:
    (tmp_path / "test_planted.py").write_text(PLANTED)
    settings = ("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "-o", "faulthandler_timeout=6")
    command = [sys.executable, "-m", "pytest", "-n", "1", "-p", "no:randomly", *settings, str(tmp_path)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    assert "1 failed, 1 passed" in ended.stdout, ended.stdout + ended.stderr
    assert "crashed while running 'test_planted.py::test_a'" in ended.stdout
    assert 'test_planted.py", line 10 in test_a' in ended.stderr
