"""The processes under `scrimp serve`: started again, stopped, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scrimp_server.children import FIRST_WAIT_S, Child, stop
from tests.processes import alive, until


def child(tmp_path: Path, *arguments: str) -> Child:
    return Child("sleeper", arguments, tmp_path / "sleeper.log", [])


def test_a_child_that_dies_is_started_again_after_a_growing_wait(tmp_path: Path) -> None:
    failing = child(tmp_path, "sh", "-c", "echo it broke; exit 3")
    news: list[str] = []

    def second_death() -> bool:
        told = failing.tend()
        if told:
            news.append(told)
        return failing.failed_starts == 2

    until(second_death)
    assert news[0] == f"sleeper ended with exit code 3; starting again in {FIRST_WAIT_S:g} s (see {failing.log})"
    assert f"{2 * FIRST_WAIT_S:g} s" in news[1]
    assert failing.last_words() == "it broke\nit broke"
    assert failing.log.stat().st_mode & 0o777 == 0o600


def test_a_log_that_grows_is_moved_aside_and_few_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scrimp_server.children.LOG_BYTES", 1000)
    talking = child(tmp_path, "sh", "-c", "while read line; do echo $line; done < pipe; exec sleep 60")
    os.mkfifo(tmp_path / "pipe")
    talking.arguments[2] = talking.arguments[2].replace("pipe", str(tmp_path / "pipe"))
    talking.tend()
    with (tmp_path / "pipe").open("w") as pipe:
        for number in range(6):
            pipe.write(f"{number} {'x' * 1000}\n")
            pipe.flush()
            until(lambda: talking.log.stat().st_size >= 1000)
            talking.tend()
            assert talking.log.stat().st_size == 0, "emptied, and the process goes on writing at its start"
    names = sorted(path.name for path in tmp_path.glob("sleeper.log*"))
    assert names == ["sleeper.log", "sleeper.log.1", "sleeper.log.2", "sleeper.log.3"]
    assert [(tmp_path / name).read_text()[0] for name in names[1:]] == ["5", "4", "3"]
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in names} == {0o600}
    talking.kill()


def test_a_signal_is_named(tmp_path: Path) -> None:
    killed = child(tmp_path, "sh", "-c", "kill -KILL $$")
    news: list[str] = []
    until(lambda: (told := killed.tend()) and news.append(told) is None)
    assert "was killed by SIGKILL" in news[0]


def test_stopping_ends_also_what_ignores_it_and_what_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    stubborn = child(tmp_path, "sh", "-c", f"trap '' TERM; sleep 60 & echo $! > {pids}; wait; sleep 60")
    stubborn.tend()
    until(lambda: pids.exists() and pids.read_text().strip())
    stop([stubborn], timeout_s=0.3)
    assert stubborn.pid is None
    until(lambda: not alive(int(pids.read_text())))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_no_child_outlives_its_parent(tmp_path: Path, how: signal.Signals) -> None:
    program = f"""
import time
from pathlib import Path
from scrimp_server.children import Child
child = Child("sleeper", ["sleep", "60"], Path({str(tmp_path / "log")!r}), [])
child.tend()
print(child.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        os.kill(parent.pid, how)
        parent.wait()
    until(lambda: not alive(pid))
