"""`scrimp serve` as a process: its first line, its lock, its port, and that nothing of it is left behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import Service, until


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    running = Service(tmp_path / "home").start()
    yield running
    running.stop()


def output(service: Service) -> str:
    return (service.home.parent / "serve.out").read_text()


def serve(home: Path, port: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scrimp.cli", "serve", "--home", str(home), "--port", str(port)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def descendants(service: Service) -> list[psutil.Process]:
    assert service.process is not None
    return psutil.Process(service.process.pid).children(recursive=True)


def running(service: Service, word: str) -> Callable[[], psutil.Process | None]:
    def look() -> psutil.Process | None:
        for process in descendants(service):
            try:
                if word in process.cmdline():
                    return process
            except psutil.Error:
                continue
        return None

    return look


def all_gone(processes: list[psutil.Process]) -> bool:
    return not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in processes)


@pytest.mark.slow
def test_life_of_a_service(service: Service) -> None:
    until(lambda: "\nready in" in output(service))
    key = service.home / "admin.key"
    first = output(service).splitlines()[0]
    assert first == f"Scrimp at http://127.0.0.1:{service.port}  (admin key in {key})"
    assert key.stat().st_mode & 0o777 == 0o600
    assert service.home.stat().st_mode & 0o777 == 0o700

    second = serve(service.home, service.port + 1)
    assert second.returncode == 1
    assert str(service.home / "serve.lock") in second.stderr
    assert "Traceback" not in second.stderr

    api = until(running(service, "scrimp_server.api"))
    assert api is not None
    api.kill()
    with service.client() as client:  # waits for the one that is started in its place
        assert list(client.jobs()) == []
    assert re.search(r"api was killed by SIGKILL; starting again in 0\.5 s", output(service))

    secret = key.read_text()
    family = descendants(service)
    service.kill()
    until(lambda: all_gone(family), 20)
    service.start()
    with service.client() as client:
        assert list(client.jobs()) == []
    assert key.read_text() == secret

    family = descendants(service)
    began = time.monotonic()
    assert service.stop() == 0
    assert time.monotonic() - began < 15
    until(lambda: all_gone(family), 20)
    assert output(service).splitlines()[-1] == "stopped"


@pytest.mark.nightly  # by day one signal ends it, above
def test_a_second_signal_ends_it_at_once(service: Service) -> None:
    until(lambda: "\nready in" in output(service))
    assert service.process is not None
    family = descendants(service)
    worker = until(running(service, "celery"))
    assert worker is not None
    os.kill(worker.pid, signal.SIGSTOP)  # it will not stop when it is asked to
    service.process.terminate()
    until(lambda: not running(service, "app.lifecycle.relay")())
    service.process.terminate()
    assert service.process.wait(20) == -signal.SIGTERM
    until(lambda: all_gone(family), 20)


def test_a_port_in_use_is_said(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        refused = serve(tmp_path / "home", port)
    assert refused.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in refused.stderr
    assert "--port" in refused.stderr
