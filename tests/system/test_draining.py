"""`scrimp worker --drain`: it finds the workers of a home on this machine, and returns when they have ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from app.db.database import Database
from app.settings import Settings
from scrimp.cli import app
from scrimp_server.draining import FOLDER, terminate
from tests.processes import until


def test_a_worker_is_told_to_stop_and_waited_for(settings: Settings, db: Database, tmp_path: Path) -> None:
    output = tmp_path / "worker.out"
    with output.open("w") as log:
        line = [sys.executable, "-m", "scrimp.cli", "worker", "--home", str(settings.home), "--devices", "cpu"]
        worker = subprocess.Popen(line, stdout=log, stderr=subprocess.STDOUT, env=os.environ | {"SCRIMP_DRAIN_S": "60"})
    try:
        until(lambda: "worker" in output.read_text() and any((settings.home / FOLDER).glob("*")))
        until(lambda: b"celery" in Path(f"/proc/{worker.pid}/cmdline").read_bytes())
        answer = CliRunner().invoke(app, ["worker", "--drain", "--home", str(settings.home)])
        said = f"waits for the end of {worker.pid} (process numbers)\n1 stopped\n"
        assert (answer.exit_code, answer.output) == (0, said), output.read_text()
        assert worker.wait(300) == 0, output.read_text()
    finally:
        worker.kill()
        worker.wait()
    again = CliRunner().invoke(app, ["worker", "--drain", "--home", str(settings.home)])
    assert again.output == "no worker of this home runs here\n"


def test_a_file_of_a_worker_that_is_gone_sends_no_signal(tmp_path: Path) -> None:
    """Its pid is this process's now: only who holds the lock is told."""
    folder = tmp_path / FOLDER
    folder.mkdir()
    mine, elsewhere = folder / f"{os.uname().nodename}:{os.getpid()}", folder / f"another-host:{os.getpid()}"
    mine.touch()
    elsewhere.touch()
    assert terminate(tmp_path) == {} and not mine.exists() and elsewhere.exists()
