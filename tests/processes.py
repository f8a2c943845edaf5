"""Processes that do not load the program anew, and commands in this one: each import takes a second."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
from multiprocessing.context import ForkServerContext
from pathlib import Path

from typer.testing import CliRunner

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
