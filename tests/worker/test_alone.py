"""A Ray of this machine alone: the command beside it is connected to it, and each ends with the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from tests.processes import alive, until

WITHOUT = "Ray is not installed: pip install 'scrimp[ray]'"
ROOT = Path(__file__).resolve().parents[2]
COUNTS = """
import os, sys, time, ray
ray.init(address=os.environ["SCRIMP_RAY_ADDRESS"], log_to_driver=False)
environ = os.environ
print("GPUs", ray.cluster_resources()["GPU"], environ["RAY_AUTH_MODE"], len(environ["RAY_AUTH_TOKEN"]), flush=True)
sys.exit(7) if sys.argv[1] == "ends" else time.sleep(3600)
"""


def begun(says: str) -> subprocess.Popen[str]:
    if find_spec("ray") is None:
        assert not os.environ.get("SCRIMP_REQUIRE_RAY"), WITHOUT
        pytest.skip(WITHOUT)
    line = [sys.executable, "-m", "worker.cluster.alone", "--num-cpus=1", "--num-gpus=2"]
    line += ["--", sys.executable, "-c", COUNTS, says]
    return subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["the command ends", "a signal ends it", "Ray ends"])
def test_a_command_has_a_ray_of_its_own(how: str) -> None:
    with begun("ends" if how == "the command ends" else "stays") as process:
        assert process.stdout is not None
        line = next(each for each in process.stdout if each.startswith("GPUs"))
        assert line.split() == ["GPUs", "2.0", "token", "64"]
        family = psutil.Process(process.pid).children(recursive=True)
        if how == "a signal ends it":
            process.send_signal(signal.SIGTERM)
        elif how == "Ray ends":
            next(each for each in family if "gcs_server" in each.name()).kill()
        status = process.wait(300)
    # A command that is connected to Ray says in its own way that it was ended.
    assert status == 7 if how == "the command ends" else status not in (0, 7)
    until(lambda: not any(alive(each) for each in family))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["", "gcs_server"])
def test_a_signal_while_ray_starts_ends_ray(name: str) -> None:
    """It would otherwise be left behind: it has a session of its own."""
    with begun("stays") as process:
        beside = psutil.Process(process.pid)
        until(lambda: any(name in each.name() for each in beside.children(recursive=True)))
        started = beside.children()[0]
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 128 + signal.SIGTERM
    until(lambda: not any(alive(each) and session_of(each) == started.pid for each in psutil.process_iter()))


def session_of(process: psutil.Process) -> int | None:
    with suppress(ProcessLookupError):
        return os.getsid(process.pid)
    return None


def test_without_a_command_it_says_how_it_is_called(capsys: pytest.CaptureFixture[str]) -> None:
    from worker.cluster.alone import main

    assert main(["--num-gpus=2"]) == main(["--"]) == 2 and "ray start" in capsys.readouterr().err
