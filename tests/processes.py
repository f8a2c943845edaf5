"""Processes that do not load the program anew, and commands in this one: each import takes a second. Whether a process
lives, and waits for what happens elsewhere."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import TypeVar

import psutil
from typer.testing import CliRunner

T = TypeVar("T")
LOADED = ["celery", "sqlalchemy.dialects.sqlite", "psycopg", "tests.lifecycle.contender", "tests.machine.races"]


def quick() -> ForkServerContext:
    """Forks them from a clean process, without threads or connections, that has loaded what they need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    return context


def scrimp(home: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Runs `scrimp …` in this process, over a home; leaves environment and umask as they were."""
    from scrimp.cli import app

    umask = os.umask(0o077)
    try:
        environment = {"SCRIMP_HOME": str(home)} | settings
        done = CliRunner().invoke(app, [*arguments, "--home", str(home)], env=environment)
    finally:
        os.umask(umask)
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)


def until(what: Callable[[], T], timeout_s: float = 300.0, every_s: float = 0.02) -> T:
    """The first true answer, asked for again and again until a deadline.

    What is asserted afterwards of something that changes is read from that answer: a second read may see more.

    Raises:
        TimeoutError: there is none in time.
    """
    deadline = time.monotonic() + timeout_s
    while not (answer := what()):
        if time.monotonic() > deadline:
            raise TimeoutError("it did not happen in time")
        time.sleep(every_s)
    return answer


def alive(process: int | psutil.Process) -> bool:
    """Runs: neither gone, at whatever moment, nor a zombie that nobody waits for."""
    try:
        found = psutil.Process(process) if isinstance(process, int) else process
        return bool(found.is_running() and found.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
