"""Which tests run which lines of the modules under mutation, and what each costs. Measured once per test file."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

Lines = set[str]  # each "path:line"


@dataclass(frozen=True)
class Test:
    """A test that passes on the code as it is."""

    __test__ = False

    id: str
    cpu_s: float
    lines: frozenset[str]

    @property
    def file(self) -> str:
        return self.id.partition("::")[0]


class Measuring:
    """A plugin: runs tests and notes the lines of `root`'s modules that each of them runs.

    What a fixture of a wider scope runs counts for every test that uses it.
    """

    def __init__(self, root: Path, modules: Sequence[str]) -> None:
        self.paths = {str(root / each): each for each in modules}
        self.now: Lines = set()
        self.fixtures: dict[str, Lines] = {}
        self.failed: set[str] = set()
        self.found: dict[str, tuple[float, Lines]] = {}
        self.known: dict[CodeType, str | None] = {}

    def _called(self, frame: FrameType, _event: str, _argument: object) -> Any:
        code = frame.f_code
        if code not in self.known:
            self.known[code] = self.paths.get(code.co_filename)
        path = self.known[code]
        if path is None:
            return None

        def line(frame: FrameType, event: str, _argument: object) -> Any:
            if event == "line":
                self.now.add(f"{path}:{frame.f_lineno}")
            return line

        return line

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[Any]:
        outer, self.now = self.now, set()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                self.fixtures.setdefault(fixturedef.argname, set()).update(self.now)
            outer |= self.now
            self.now = outer

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[Any]:
        self.now, began = set(), _cpu_s()
        sys.settrace(self._called)
        try:
            done = yield
        finally:
            sys.settrace(None)
        wide = (self.fixtures.get(name, set()) for name in item.fixturenames)
        self.found[item.nodeid] = (_cpu_s() - began, self.now.union(*wide))
        return done

    def pytest_runtest_logreport(self, report: Any) -> None:
        if not report.passed:
            self.failed.add(report.nodeid)


def _cpu_s() -> float:
    """Of this process and of those that it has waited for."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


class Known:
    """What was measured, on the disk by test file: a changed file, or a changed module, is measured again."""

    def __init__(self, path: Path, root: Path, modules: Sequence[str]) -> None:
        self.path, self.root, self.modules = path, root, modules
        text = "".join((root / each).read_text() for each in modules)
        self.of = hashlib.sha256(text.encode()).hexdigest()
        self.files: dict[str, Any] = {}
        self.read()

    def read(self) -> None:
        """Reads what is kept, which another process may have added to."""
        kept = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.files = kept["files"] if kept.get("of") == self.of else {}

    def _digest(self, file: str) -> str:
        return hashlib.sha256((self.root / file).read_bytes()).hexdigest()

    def missing(self, files: Sequence[str]) -> list[str]:
        """Those that are to be measured."""
        return [each for each in files if self.files.get(each, {}).get("sha256") != self._digest(each)]

    def add(self, measured: Measuring, files: Sequence[str]) -> None:
        """Keeps what was measured of these files."""
        self.read()
        for file in files:
            tests = {
                name: [round(cpu_s, 4), sorted(lines)]
                for name, (cpu_s, lines) in measured.found.items()
                if name.partition("::")[0] == file and name not in measured.failed
            }
            self.files[file] = {"sha256": self._digest(file), "tests": tests}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({"of": self.of, "files": self.files}))
        new.replace(self.path)

    def tests(self, files: Sequence[str], fast_s: float) -> list[Test]:
        """The tests of these files that take no longer than that and run a line of the modules."""
        return [
            Test(name, cpu_s, frozenset(lines))
            for file in files
            for name, (cpu_s, lines) in self.files[file]["tests"].items()
            if lines and cpu_s <= fast_s
        ]
