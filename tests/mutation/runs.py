"""Runs chosen tests against one fault: in a child of a process that has loaded everything, so that a start is free."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.mutation.inside import Importing, functions_of, replace
from tests.mutation.mutants import Mutant
from tests.mutation.tests_of import Test

MEMORY = 8 * 2**30  # of address space beyond its parent's, for a child whose fault makes it grow for ever
BROKEN = 99
LOADED_BEFORE = "ignore::pytest.PytestAssertRewriteWarning"  # of packages with a plugin: their assertions are not ours
OURS = ("app", "core", "worker", "scrimp", "scrimp_server", "tests", "alembic", "conftest", "loopback")


@dataclass(frozen=True)
class Home:
    """The repository, a folder in memory, and in it an empty database at the newest migration."""

    root: Path
    folder: Path
    template: Path

    @classmethod
    def made(cls, root: Path, folder: Path) -> Home:
        """Migrates the database in a child, as this process loads nothing of ours."""
        path = folder / "template.db"

        def act() -> bool:
            from app.db.migrate import upgrade

            upgrade(f"sqlite:///{path}")
            return True

        if in_a_child(act, 60.0) != "survived":
            raise SystemExit("the empty database could not be migrated")
        return cls(root, folder, path)


def arguments(home: Home, names: Iterable[str]) -> list[str]:
    """Of pytest: files in memory, nothing captured, no timer of its own, SQLite alone."""
    quiet = ["-q", "-s", "-o", "faulthandler_timeout=0", "-p", "no:xdist", "--tb=native", "-k", "not postgres"]
    return [*quiet, f"--basetemp={home.folder / 'pytest'}", *names]


class Quicker:
    """A plugin: databases are copies of one that is migrated already."""

    def __init__(self, template: Path) -> None:
        self.template = template

    def pytest_collection_finish(self) -> None:
        from app.db import migrate

        real, template = migrate.upgrade, self.template

        def upgrade(url: str, revision: str = "head") -> None:
            path = Path(url.removeprefix("sqlite:///"))
            if url.startswith("sqlite") and revision == "head" and not path.exists():
                shutil.copy(template, path)
            else:
                real(url, revision)

        for module in list(sys.modules.values()):
            if getattr(module, "upgrade", None) is real:
                module.upgrade = upgrade  # type: ignore[attr-defined]


class Loop:
    """A plugin: once the tests are loaded, does something else with them than running them all."""

    def __init__(self, act: Callable[[Any], None]) -> None:
        self.act = act

    def pytest_runtestloop(self, session: Any) -> bool:
        self.act(session)
        return True


def passed(session: Any, items: Sequence[Any]) -> bool:
    """Runs them up to the first that fails."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return False
    return True


def fork() -> int:
    """`os.fork`, without pytest's watchdog: its thread is not in the child, which would wait for it in vain."""
    faulthandler.cancel_dump_traceback_later()
    return os.fork()


def in_a_child(act: Callable[[], bool], expected_s: float) -> str:
    """What becomes of it there: "survived", "killed" or "timeout"; of processor time, as the machine may be busy."""
    pid = fork()
    if pid == 0:
        code, said = BROKEN, os.dup(2)
        gc.freeze()  # what its parent has is no garbage of its own: pytest looks for some, again and again
        try:
            os.setpgid(0, 0)
            limit = int(10 + 10 * expected_s)
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
            most = psutil.Process().memory_info().vms + MEMORY
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60 + 20 * limit)
            nothing = os.open(os.devnull, os.O_RDWR)
            for each in (0, 1, 2):
                os.dup2(nothing, each)
            code = 0 if act() else 1
        except Exception:
            os.write(said, traceback.format_exc().encode())
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)  # what its tests have started
    if os.WIFSIGNALED(status):
        return "timeout" if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGALRM) else "killed"
    if os.WEXITSTATUS(status) == BROKEN:
        raise SystemExit("a run of tests could not begin: nothing is known of this fault")
    return "survived" if os.WEXITSTATUS(status) == 0 else "killed"


def in_place(
    home: Home, chosen: Sequence[tuple[Mutant, list[Test]]], done: Callable[[Mutant, str], None], ends: float
) -> None:
    """Faults within functions, up to a moment: a child loads all tests, and forks with other code for each fault."""
    if not chosen:
        return
    files = sorted({each.file for _, tests in chosen for each in tests})

    def act(session: Any) -> None:
        items = {each.nodeid: each for each in session.items}
        functions = functions_of(home.root, sorted({mutant.module for mutant, _ in chosen}))
        gc.collect()
        gc.freeze()
        first = [items[each.id] for each in chosen[0][1]]
        if in_a_child(lambda: passed(session, first), _cpu_s(chosen[0][1])) != "survived":
            raise SystemExit("the tests fail without a fault")
        for mutant, tests in chosen:
            if time.monotonic() > ends:
                break

            def attempt(mutant: Mutant = mutant, tests: list[Test] = tests) -> bool:
                replace(mutant, home.root, functions)
                return passed(session, [items[each.id] for each in tests])

            done(mutant, in_a_child(attempt, _cpu_s(tests)))

    pid = fork()
    if pid == 0:
        code = 1
        gc.freeze()
        try:
            code = pytest.main(arguments(home, files), plugins=[Quicker(home.template), Loop(act)])
        finally:
            os._exit(code)
    if os.waitpid(pid, 0)[1] != 0:
        raise SystemExit("the tests could not be loaded, or fail without a fault")


def while_imported(home: Home, mutant: Mutant, tests: list[Test]) -> str:
    """A fault in what runs when a module is imported: a fork of this process, which has loaded none of ours."""

    def attempt() -> bool:
        Importing(mutant, home.root).install()
        line = [*arguments(home, [test.id for test in tests]), "-x", "-W", LOADED_BEFORE]
        return pytest.main(line, plugins=[Quicker(home.template)]) == 0

    return in_a_child(attempt, 15.0 + _cpu_s(tests))


def _cpu_s(tests: Iterable[Test]) -> float:
    return sum(each.cpu_s for each in tests)


def preload(names: Iterable[str]) -> None:
    """Loads what others have written, and none of ours."""
    for name in names:
        if name.partition(".")[0] not in OURS:
            with suppress(Exception):
                importlib.import_module(name)
