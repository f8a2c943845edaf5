"""The release's name: of the code and of the libraries that compute, and of nothing else. The hashes that a certificate
names are what `sha256sum` and pip say."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from worker.attempt import code_release as named
from worker.attempt.code_release import release

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A program of two files in place of ours; nothing of it is remembered."""
    for package in ("app", "core", "worker"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "a.py").write_text("x = 1\n")
    (tmp_path / "docs.py").write_text("x = 1\n")
    monkeypatch.setattr(named, "ROOT", tmp_path)
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    for each in (named.release, named.code, named._version):
        each.cache_clear()


def test_it_changes_with_code_and_libraries_alone(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = release()
    (fresh / "docs.py").write_text("x = 2\n")
    forget()
    assert release() == first
    (fresh / "app" / "a.py").write_text("x = 2\n")
    forget()
    assert release() != first
    (fresh / "app" / "a.py").write_text("x = 1\n")
    (fresh / "worker" / "b.so").write_bytes(b"compiled")
    forget()
    assert release() != first
    (fresh / "worker" / "b.so").unlink()
    forget()
    assert release() == first
    monkeypatch.setattr(named, "version", lambda _library: "another")
    forget()
    assert release() != first


def test_the_code_s_hash_is_of_sha256sum_s_lines(fresh: Path) -> None:
    (fresh / "worker" / "part.c").write_text("int x;")
    names = sorted(each.relative_to(fresh).as_posix() for name in named.OWN for each in (fresh / name).iterdir())
    summed = subprocess.run(["sha256sum", *names], cwd=fresh, capture_output=True, check=True).stdout
    assert named.code(*named.OWN) == hashlib.sha256(summed).hexdigest()


def test_the_packages_are_all_that_is_installed() -> None:
    lines = named.installed()
    assert lines == sorted(set(lines)) and {f"{name}=={version(name)}" for name in ("torch", "scrimp")} <= {*lines}
    told = subprocess.run(
        [sys.executable, "-m", "worker.attempt.code_release"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.splitlines()
    assert told == [*lines, f"# packages {named.packages()}", f"# code {named.code(*named.OWN)}"]
    assert named.packages() == hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()
