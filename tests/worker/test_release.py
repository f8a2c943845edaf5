"""The release's name: of the code and of the libraries that compute, and of nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.attempt import release as named
from worker.attempt.release import release


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A program of two files in place of ours; nothing of it is remembered."""
    for package in ("app", "worker"):
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
